// The fields of one JSON object, as a line of our own export or a manifest has them. Untrusted: whatever is not of the type asked for is absent.
#ifndef LOSSGAUGE_SERVER_REPLAY_FLAT_OBJECT_H_
#define LOSSGAUGE_SERVER_REPLAY_FLAT_OBJECT_H_

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rapidjson/document.h"

namespace lossgauge::replay {

class FlatObject {
 public:
  bool Parse(std::string_view text) {
    document_.Parse<rapidjson::kParseIterativeFlag>(text.data(), text.size());
    return !document_.HasParseError() && document_.IsObject();
  }
  std::string Text(const char* name) const {
    const auto* value = Find(name);
    return value != nullptr && value->IsString() ? std::string(value->GetString(), value->GetStringLength()) : std::string();
  }
  std::vector<std::string> Texts(const char* name) const {
    std::vector<std::string> texts;
    const auto* value = Find(name);
    if (value == nullptr || !value->IsArray()) return texts;
    for (const auto& one : value->GetArray()) {
      if (one.IsString()) texts.emplace_back(one.GetString(), one.GetStringLength());
    }
    return texts;
  }
  std::optional<double> Number(const char* name) const {
    const auto* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (value->IsNumber()) return value->GetDouble();
    const std::string text = Text(name);
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
    return std::nullopt;
  }
  // Numbers, and numbers as text.
  template <class Integer>
  std::optional<Integer> Whole(const char* name) const {
    const auto* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (value->IsUint64() && value->GetUint64() <= static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) {
      return static_cast<Integer>(value->GetUint64());
    }
    if (value->IsInt64() && std::numeric_limits<Integer>::is_signed) return static_cast<Integer>(value->GetInt64());
    if (!value->IsString()) return std::nullopt;
    Integer number{};
    const char* end = value->GetString() + value->GetStringLength();
    const auto [rest, error] = std::from_chars(value->GetString(), end, number);
    return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
  }

 private:
  const rapidjson::Value* Find(const char* name) const {
    const auto found = document_.FindMember(name);
    return found == document_.MemberEnd() ? nullptr : &found->value;
  }
  rapidjson::Document document_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_FLAT_OBJECT_H_
