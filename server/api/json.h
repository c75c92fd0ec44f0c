// The one JSON mapping of lossgauge.v1: protobuf JSON, lowerCamelCase, 64-bit integers as strings. Plain fields are always written, absent
// optional ones never: what is missing was not measured.
#ifndef LOSSGAUGE_SERVER_API_JSON_H_
#define LOSSGAUGE_SERVER_API_JSON_H_

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossgauge::api {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message, bool indent = false);

// INVALID_ARGUMENT for anything that is not exactly this message; the text says where. Unknown fields are refused.
absl::Status FromJson(std::string_view json_untrusted, google::protobuf::Message* message);

// {"error": {"code": 5, "status": "NOT_FOUND", "message": "..."}}
std::string ErrorJson(const absl::Status& status);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_JSON_H_
