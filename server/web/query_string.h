// A query string as a request message: names are those of the message's fields.
#ifndef LOSSGAUGE_SERVER_WEB_QUERY_STRING_H_
#define LOSSGAUGE_SERVER_WEB_QUERY_STRING_H_

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossgauge::web {

// Pairs in order; percent-decoded, '+' is a space. INVALID_ARGUMENT for a broken percent sequence or more than 64 pairs.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view query_untrusted);

// The part of a request target behind '?'.
std::string_view QueryOf(std::string_view target_untrusted);

// Sets fields of an empty message: page_size or pageSize. INVALID_ARGUMENT names a parameter that is unknown, repeated, not UTF-8 or not of its
// field's type, and what may stand there.
absl::Status FillFromQuery(std::string_view query_untrusted, google::protobuf::Message* message);

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_QUERY_STRING_H_
