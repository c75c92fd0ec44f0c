#include "server/api/convert_policy.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

// In double quotes, as YAML takes it: a version is free text of whoever wrote the policy file.
std::string YamlText(const std::string& text) {
  std::string out = "\"";
  for (const char c : ValidUtf8(text)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      if (c == '"' || c == '\\') out.push_back('\\');
      out.push_back(c);
    }
  }
  return out + "\"";
}

}  // namespace

void ToMessage(const std::string& run, const state::PolicyView& policy, v1::Policy* message) {
  message->set_run(ValidUtf8(run));
  message->set_version(ValidUtf8(policy.version));
  message->set_mode(ValidUtf8(policy.mode));
  std::string text = absl::StrCat("version: ", YamlText(policy.version), "\nmode: ", policy.mode, "\n");
  std::string section;
  for (const auto& threshold : policy.thresholds) {
    if (threshold.section != section) absl::StrAppend(&text, threshold.section, ":\n");
    section = threshold.section;
    char number[32];
    const auto end = std::to_chars(number, number + sizeof number, threshold.value).ptr;
    absl::StrAppend(&text, "  ", threshold.key, ": ", std::string(number, end), "\n");
  }
  message->set_text(ValidUtf8(text));
}

}  // namespace lossgauge::api
