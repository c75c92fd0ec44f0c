#include "server/api/json.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "server/api/text.h"

namespace lossgauge::api {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message, bool indent) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indent;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(absl::StrCat("cannot write ", message.GetTypeName(), " as JSON: ", status.ToString()));
  return json;
}

absl::Status FromJson(std::string_view json_untrusted, google::protobuf::Message* message) {
  if (!IsValidUtf8(json_untrusted)) return absl::InvalidArgumentError("body: not valid UTF-8");
  const auto status = google::protobuf::util::JsonStringToMessage(std::string(json_untrusted), message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("body: not a JSON ", message->GetDescriptor()->name(), ": ", ValidUtf8(status.ToString().substr(0, 400))));
}

std::string ErrorJson(const absl::Status& status) {
  google::protobuf::Value message;  // for its escapes; a Struct around it would have its fields in random order
  message.set_string_value(ValidUtf8(std::string(status.message())));
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text).ok()) text = "\"\"";
  return absl::StrCat("{\"error\":{\"code\":", static_cast<int>(status.code()), ",\"status\":\"", absl::StatusCodeToString(status.code()),
                      "\",\"message\":", text, "}}");
}

}  // namespace lossgauge::api
