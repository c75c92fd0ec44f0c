// Who may write: bearer tokens from a file.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_TOKEN_FILE_H_
#define LOSSGAUGE_SERVER_TRANSPORT_TOKEN_FILE_H_

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/service_counters.h"
#include "server/transport/secret_file.h"

namespace lossgauge::transport {

// The tokens of a file's text: one a line, any of them is good, so that they can be changed one after the other; empty lines and lines
// that begin with '#' are passed over. INVALID_ARGUMENT: none, one of fewer than 16 or more than 512 bytes, a byte that is not printable ASCII.
absl::StatusOr<std::vector<std::string>> ParseTokens(std::string_view text_untrusted);

// The first token of a file, for clients. Errors name `flag` and path.
absl::StatusOr<std::string> ReadToken(const std::string& flag, const std::string& path);

// Thread-safe. Looks at the file at most once a second; what cannot be read leaves the tokens as they are, and is logged once.
class TokenFile {
 public:
  static absl::StatusOr<std::unique_ptr<TokenFile>> Load(const std::string& flag, const std::string& path);
  // In a time that does not depend on where the bytes differ.
  bool Holds(std::string_view token_untrusted);

 private:
  using Digest = std::array<unsigned char, 32>;
  TokenFile(std::string flag, std::string path) : flag_(std::move(flag)), path_(std::move(path)), watch_({path_}) {}
  absl::Status Read();
  static Digest Hash(std::string_view token);

  const std::string flag_;
  const std::string path_;
  std::mutex mutex_;
  FileWatch watch_;
  Pace pace_{std::chrono::milliseconds(1000)};
  std::vector<Digest> digests_;
};

// Whether a call that writes may go on. One for each listener.
class WriteGuard {
 public:
  // `tokens` null: no token file; then only a listener that nobody but this machine reaches takes what writes. `counters` outlives the guard.
  WriteGuard(state::Protocol protocol, TokenFile* tokens, bool loopback, state::ServiceCounters* counters)
      : protocol_(protocol), tokens_(tokens), loopback_(loopback), counters_(counters) {}

  // `authorization`: the header or metadata of that name, "" if there is none. UNAUTHENTICATED: no good token; PERMISSION_DENIED: read-only.
  // Refusals are counted.
  absl::Status Check(std::string_view authorization_untrusted) const;
  bool read_only() const { return tokens_ == nullptr && !loopback_; }

 private:
  const state::Protocol protocol_;
  TokenFile* const tokens_;
  const bool loopback_;
  state::ServiceCounters* const counters_;
};

}  // namespace lossgauge::transport

#endif  // LOSSGAUGE_SERVER_TRANSPORT_TOKEN_FILE_H_
