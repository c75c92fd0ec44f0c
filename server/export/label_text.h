// Label values that can never break a page, whatever a producer called itself.
#ifndef LOSSGAUGE_SERVER_EXPORT_LABEL_TEXT_H_
#define LOSSGAUGE_SERVER_EXPORT_LABEL_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lossgauge::export_ {

inline constexpr std::size_t kMaxLabelBytes = 256;

// Valid UTF-8 of at most kMaxLabelBytes, never empty (an empty label value means "no such label" to Prometheus). Text that is so already
// comes back unchanged. Anything else is repaired (invalid bytes become U+FFFD, the end is cut) and ends in '~' and 8 hex digits of the
// original's hash, so that two broken names stay two. Quotes, backslashes and newlines are left alone: the serializer escapes them.
std::string LabelText(std::string_view untrusted);

// The text with '~' and 8 hex digits of its hash: for a name that is taken already.
std::string WithHash(std::string_view text, std::string_view hashed);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_LABEL_TEXT_H_
