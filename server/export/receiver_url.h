// The address of a remote-write receiver, as a flag gives it.
#ifndef LOSSGAUGE_SERVER_EXPORT_RECEIVER_URL_H_
#define LOSSGAUGE_SERVER_EXPORT_RECEIVER_URL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace lossgauge::export_ {

struct ReceiverUrl {
  bool tls = false;
  std::string host;  // without brackets
  std::uint16_t port = 0;
  std::string path;  // with its query, from '/'
  std::string Origin() const;  // up to the port
  std::string Text() const;
};

// http://HOST[:PORT]/PATH or https://. INVALID_ARGUMENT says what is wrong with it: another scheme, no path, a name and password in it (they
// belong into the headers file), bytes that do not belong into a URL.
absl::StatusOr<ReceiverUrl> ParseReceiverUrl(std::string_view text_untrusted);

// "Name: value" lines, for what a receiver wants besides: Authorization, X-Scope-OrgID. Empty lines and lines that begin with '#' are passed over.
// INVALID_ARGUMENT names the line: no colon, a name that is none, a header that is ours to set, a byte that is not printable.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseHeaderLines(std::string_view text_untrusted);

// "name=value,name=value": labels of every sample, sorted by name. INVALID_ARGUMENT: a name that is no label name, is one of ours or comes twice, an
// empty value, more than 32.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseLabels(std::string_view text_untrusted);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_RECEIVER_URL_H_
