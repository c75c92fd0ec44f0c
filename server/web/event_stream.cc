#include "server/web/event_stream.h"

#include "absl/strings/str_cat.h"

namespace lossgauge::web {

// JSON as we write it holds no line break, which would end the field.
std::string EventText(const std::string& id, const std::string& json) {
  return id.empty() ? absl::StrCat("data: ", json, "\n\n") : absl::StrCat("id: ", id, "\ndata: ", json, "\n\n");
}

std::string EndText(const absl::Status& status) { return absl::StrCat("event: end\ndata: ", api::ErrorJson(status), "\n\n"); }

}  // namespace lossgauge::web
