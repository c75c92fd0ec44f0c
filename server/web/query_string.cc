#include "server/web/query_string.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/text.h"

namespace lossgauge::web {
namespace {

using google::protobuf::FieldDescriptor;

constexpr std::size_t kMaxPairs = 64;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

absl::StatusOr<std::string> Decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      decoded += ' ';
    } else if (text[i] != '%') {
      decoded += text[i];
    } else {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("query: ", api::Quoted(text.substr(i, 3)), " is no percent-encoded byte; write a percent sign as %25"));
      }
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return decoded;
}

const FieldDescriptor* FindField(const google::protobuf::Descriptor& descriptor, const std::string& name) {
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (descriptor.field(i)->name() == name || descriptor.field(i)->json_name() == name) return descriptor.field(i);
  }
  return nullptr;
}

std::string FieldNames(const google::protobuf::Descriptor& descriptor) {
  if (descriptor.field_count() == 0) return "this call takes none";
  std::string names = "there are ";
  for (int i = 0; i < descriptor.field_count(); ++i) absl::StrAppend(&names, i == 0 ? "" : ", ", descriptor.field(i)->name());
  return names;
}

template <typename Integer>
bool ParseInteger(const std::string& text, Integer* value) {
  // SimpleAtoi forgives blanks and a plus sign; a query does not need them.
  return text.find_first_not_of("-0123456789") == std::string::npos && absl::SimpleAtoi(text, value);
}

// False if `value` is not of the field's type; `expected` then says what is.
bool SetField(const FieldDescriptor& field, const std::string& value, google::protobuf::Message* message, const char** expected) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(message, &field, value);
      return true;
    case FieldDescriptor::CPPTYPE_BOOL:
      *expected = "true or false";
      if (value != "true" && value != "false" && value != "1" && value != "0") return false;
      reflection.SetBool(message, &field, value == "true" || value == "1");
      return true;
    case FieldDescriptor::CPPTYPE_INT32: {
      *expected = "an integer of 32 bits";
      std::int32_t number = 0;
      if (!ParseInteger(value, &number)) return false;
      reflection.SetInt32(message, &field, number);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      *expected = "an integer of 64 bits";
      std::int64_t number = 0;
      if (!ParseInteger(value, &number)) return false;
      reflection.SetInt64(message, &field, number);
      return true;
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      *expected = "an integer of 64 bits that is not negative";
      std::uint64_t number = 0;
      if (value.find('-') != std::string::npos || !ParseInteger(value, &number)) return false;
      reflection.SetUInt64(message, &field, number);
      return true;
    }
    default:
      *expected = "a POST";  // no request of a GET has such a field
      return false;
  }
}

}  // namespace

std::string_view QueryOf(std::string_view target_untrusted) {
  const std::size_t question = target_untrusted.find('?');
  if (question == std::string_view::npos) return {};
  target_untrusted.remove_prefix(question + 1);
  return target_untrusted.substr(0, target_untrusted.find('#'));
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view query_untrusted) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!query_untrusted.empty()) {
    const std::size_t end = query_untrusted.find('&');
    const std::string_view part = query_untrusted.substr(0, end);
    query_untrusted = end == std::string_view::npos ? std::string_view() : query_untrusted.substr(end + 1);
    if (part.empty()) continue;
    if (pairs.size() == kMaxPairs) return absl::InvalidArgumentError(absl::StrCat("query: more than ", kMaxPairs, " parameters"));
    const std::size_t equals = part.find('=');
    absl::StatusOr<std::string> name = Decode(part.substr(0, equals));
    if (!name.ok()) return name.status();
    absl::StatusOr<std::string> value = equals == std::string_view::npos ? std::string() : Decode(part.substr(equals + 1));
    if (!value.ok()) return value.status();
    pairs.emplace_back(std::move(*name), std::move(*value));
  }
  return pairs;
}

absl::Status FillFromQuery(std::string_view query_untrusted, google::protobuf::Message* message) {
  const auto pairs = ParseQuery(query_untrusted);
  if (!pairs.ok()) return pairs.status();
  const google::protobuf::Descriptor& descriptor = *message->GetDescriptor();
  std::set<const FieldDescriptor*> seen;
  for (const auto& [name, value] : *pairs) {
    const FieldDescriptor* field = FindField(descriptor, name);
    if (field == nullptr) return absl::InvalidArgumentError(absl::StrCat("query: no parameter ", api::Quoted(name), "; ", FieldNames(descriptor)));
    if (!seen.insert(field).second) return absl::InvalidArgumentError(absl::StrCat(field->name(), ": given more than once"));
    if (!api::IsValidUtf8(value)) return absl::InvalidArgumentError(absl::StrCat(field->name(), ": not valid UTF-8"));
    if (value.empty() && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;  // "page_size=" is as good as none
    const char* expected = "";
    if (!SetField(*field, value, message, &expected)) {
      return absl::InvalidArgumentError(absl::StrCat(field->name(), ": ", api::Quoted(value), " is not ", expected));
    }
  }
  return absl::OkStatus();
}

}  // namespace lossgauge::web
