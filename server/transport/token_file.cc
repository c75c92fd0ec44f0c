#include "server/transport/token_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossgauge::transport {
namespace {

constexpr std::size_t kMinBytes = 16;
constexpr std::size_t kMaxBytes = 512;

// The scheme's name is case-insensitive by its standard.
bool SkipBearer(std::string_view* text) {
  constexpr std::string_view kScheme = "bearer ";
  if (text->size() < kScheme.size()) return false;
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = (*text)[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return false;
  }
  text->remove_prefix(kScheme.size());
  return true;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseTokens(std::string_view text_untrusted) {
  std::vector<std::string> tokens;
  std::size_t number = 0;
  while (!text_untrusted.empty()) {
    const std::size_t end = text_untrusted.find('\n');
    const std::string_view line = Trimmed(text_untrusted.substr(0, end));
    text_untrusted.remove_prefix(end == std::string_view::npos ? text_untrusted.size() : end + 1);
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (line.size() < kMinBytes || line.size() > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the token in line ", number, " has ", line.size(), " bytes; 16 to 512 are taken"));
    }
    if (std::any_of(line.begin(), line.end(), [](char c) { return c <= 0x20 || c >= 0x7f; })) {
      return absl::InvalidArgumentError(absl::StrCat("the token in line ", number, " holds a byte that is not printable ASCII"));
    }
    tokens.emplace_back(line);
  }
  if (tokens.empty()) return absl::InvalidArgumentError("no token stands in it");
  return tokens;
}

absl::StatusOr<std::string> ReadToken(const std::string& flag, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(flag, path, true);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<std::string>> tokens = ParseTokens(*text);
  if (!tokens.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", tokens.status().message()));
  return std::move(tokens->front());
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Load(const std::string& flag, const std::string& path) {
  std::unique_ptr<TokenFile> file(new TokenFile(flag, path));
  file->watch_.Changed();
  if (const absl::Status status = file->Read(); !status.ok()) return status;
  return file;
}

TokenFile::Digest TokenFile::Hash(std::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::Status TokenFile::Read() {
  const absl::StatusOr<std::string> text = ReadSmallFile(flag_, path_, true);
  if (!text.ok()) return text.status();
  const absl::StatusOr<std::vector<std::string>> tokens = ParseTokens(*text);
  if (!tokens.ok()) return absl::InvalidArgumentError(absl::StrCat(flag_, ": ", path_, ": ", tokens.status().message()));
  digests_.clear();
  for (const std::string& token : *tokens) digests_.push_back(Hash(token));
  return absl::OkStatus();
}

bool TokenFile::Holds(std::string_view token_untrusted) {
  const Digest digest = Hash(token_untrusted);
  const std::lock_guard lock(mutex_);
  if (pace_.Due() && watch_.Changed()) {
    const absl::Status status = Read();
    if (status.ok()) {
      spdlog::info("{}: tokens read again: {}", flag_, digests_.size());
    } else {
      spdlog::error("tokens stay as they are: {}", std::string(status.message()));
    }
  }
  bool found = false;
  for (const Digest& known : digests_) found |= CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0;
  return found;
}

absl::Status WriteGuard::Check(std::string_view authorization_untrusted) const {
  if (read_only()) {
    counters_->Refuse(protocol_, state::Refusal::kReadOnly);
    return absl::PermissionDeniedError("this lossgauged is read-only: others than this machine can reach it and it was given no --token_file");
  }
  if (tokens_ == nullptr) return absl::OkStatus();
  std::string_view token = authorization_untrusted;
  if (SkipBearer(&token) && tokens_->Holds(Trimmed(token))) return absl::OkStatus();
  counters_->Refuse(protocol_, state::Refusal::kToken);
  return absl::UnauthenticatedError(authorization_untrusted.empty()
                                        ? "this call writes and needs a token: send authorization: Bearer TOKEN, with a token of lossgauged's --token_file"
                                        : "the token is not one of lossgauged's --token_file");
}

}  // namespace lossgauge::transport
