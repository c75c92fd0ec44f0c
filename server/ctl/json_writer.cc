#include "server/ctl/json_writer.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {

std::string JsonText(std::string_view value_untrusted) {
  std::string json = "\"";
  while (!value_untrusted.empty()) {
    const std::size_t bytes = CharacterBytes(value_untrusted);
    const unsigned char first = static_cast<unsigned char>(value_untrusted[0]);
    if (bytes == 0) {
      json += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      json += '\\';
      json += value_untrusted[0];
    } else if (first < 0x20 || first == 0x7f) {
      absl::StrAppendFormat(&json, "\\u%04x", first);
    } else {
      json.append(value_untrusted.substr(0, bytes));
    }
    value_untrusted.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return json + '"';
}

std::string JsonNumber(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return absl::StrFormat("%.17g", value);
}

void JsonWriter::Begin(std::string_view key) {
  if (!first_) out_ << ',';
  if (depth_ > 0) out_ << '\n' << std::string(static_cast<std::size_t>(2 * depth_), ' ');
  if (!key.empty()) out_ << JsonText(key) << ": ";
  first_ = false;
}

void JsonWriter::OpenObject(std::string_view key) {
  Begin(key);
  out_ << '{';
  ++depth_;
  first_ = true;
}

void JsonWriter::OpenArray(std::string_view key) {
  Begin(key);
  out_ << '[';
  ++depth_;
  first_ = true;
}

void JsonWriter::Close(char bracket) {
  --depth_;
  if (!first_) out_ << '\n' << std::string(static_cast<std::size_t>(2 * depth_), ' ');
  out_ << bracket;
  first_ = false;
  if (depth_ == 0) out_ << '\n';
}

void JsonWriter::CloseObject() { Close('}'); }
void JsonWriter::CloseArray() { Close(']'); }

void JsonWriter::Raw(std::string_view key, std::string_view json) {
  Begin(key);
  out_ << json;
}

void JsonWriter::Text(std::string_view key, std::string_view value_untrusted) { Raw(key, JsonText(value_untrusted)); }
void JsonWriter::Number(std::string_view key, double value) { Raw(key, JsonNumber(value)); }
void JsonWriter::Small(std::string_view key, std::uint32_t value) { Raw(key, absl::StrFormat("%d", value)); }
void JsonWriter::Wide(std::string_view key, std::uint64_t value) { Raw(key, absl::StrFormat("\"%d\"", value)); }
void JsonWriter::Wide(std::string_view key, std::int64_t value) { Raw(key, absl::StrFormat("\"%d\"", value)); }
void JsonWriter::Bool(std::string_view key, bool value) { Raw(key, value ? "true" : "false"); }

}  // namespace lossgauge::ctl
