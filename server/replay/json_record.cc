#include "server/replay/json_record.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "rapidjson/error/en.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/reader.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

constexpr unsigned kFlags = rapidjson::kParseNanAndInfFlag | rapidjson::kParseIterativeFlag | rapidjson::kParseStopWhenDoneFlag;
constexpr std::size_t kMaxDepth = 32;

// Names are joined along the path; elements of arrays have no name and are passed over.
class RecordHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, RecordHandler> {
 public:
  explicit RecordHandler(LogRecord* record) : record_(record) {}

  bool Null() { return true; }
  bool Bool(bool) { return true; }
  bool Int(int value) { return Whole(value); }
  bool Int64(std::int64_t value) { return Whole(value); }
  bool Uint(unsigned value) { return Unsigned(value); }
  bool Uint64(std::uint64_t value) { return Unsigned(value); }
  bool Double(double value) {
    if (arrays_ == 0) record_->Add(Path(), value);
    return true;
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    if (arrays_ == 0 && size < 200) AddTextValue(Path(), {text, size}, record_);
    return true;
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    key_.assign(text, std::min<std::size_t>(size, 256));
    return true;
  }
  bool StartObject() {
    if (++depth_ > kMaxDepth) return false;
    lengths_.push_back(path_.size());
    if (depth_ > 1 && arrays_ == 0) path_ += key_ + "/";
    return true;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    path_.resize(lengths_.back());
    lengths_.pop_back();
    return true;
  }
  bool StartArray() { return ++arrays_ <= kMaxDepth && depth_ > 0; }
  bool EndArray(rapidjson::SizeType) {
    --arrays_;
    return true;
  }

 private:
  bool Whole(std::int64_t value) {
    if (arrays_ == 0) record_->Add(Path(), static_cast<double>(value));
    return true;
  }
  bool Unsigned(std::uint64_t value) {
    if (arrays_ == 0) record_->Add(Path(), static_cast<double>(value), "", value);
    return true;
  }
  std::string Path() const { return path_ + key_; }

  LogRecord* const record_;
  std::string path_, key_;
  std::vector<std::size_t> lengths_;
  std::size_t depth_ = 0;
  std::size_t arrays_ = 0;
};

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

}  // namespace

void AddTextValue(std::string_view name, std::string_view text, LogRecord* record) {
  CommaUse comma = CommaUse::kNone;
  const std::string normal = NormalName(name);
  if (normal == "attempt") {
    record->attempt = std::string(text.substr(0, 120));
    return;
  }
  if (normal == "split" || normal == "phase" || normal == "mode" || normal == "stage" || normal == "type" || normal == "subset" || normal == "event") {
    if (IsEvaluationWord(absl::AsciiStrToLower(std::string(text)))) record->is_evaluation = true;
    return;
  }
  const auto value = ParseNumber(text, !IsCount(LookUpName(normal).meaning), &comma);
  if (!value) return;
  record->NoteComma(comma);
  std::optional<std::uint64_t> exact;
  if (std::uint64_t whole = 0; *value >= 9007199254740992.0 && text.size() < 21) {
    bool digits = true;
    for (const char c : text) {
      digits = digits && c >= '0' && c <= '9' && whole <= (std::numeric_limits<std::uint64_t>::max() - 9) / 10;
      if (digits) whole = whole * 10 + static_cast<std::uint64_t>(c - '0');
    }
    if (digits) exact = whole;
  }
  record->Add(name, *value, "", exact);
}

JsonOutcome ParseJsonRecord(std::string_view text, LogRecord* record) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  if (text.empty() || text.front() != '{') return JsonOutcome::kNotAnObject;
  RecordHandler handler(record);
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  if (reader.Parse<kFlags>(stream, handler).IsError()) {
    record->fields.clear();
    return JsonOutcome::kBroken;
  }
  return JsonOutcome::kRecord;
}

std::size_t PythonToJson(std::string_view text, std::string* json) {
  json->clear();
  if (text.empty() || text.front() != '{') return 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\'' || c == '"') {
      json->push_back('"');
      for (++i; i < text.size() && text[i] != c; ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) {
          ++i;
          continue;
        }
        if (text[i] == '"') continue;
        json->push_back(text[i]);
      }
      if (i >= text.size()) return 0;
      json->push_back('"');
    } else if (c == '(' || c == ')') {
      json->push_back(c == '(' ? '[' : ']');
    } else if (absl::ascii_isalpha(static_cast<unsigned char>(c)) && (i == 0 || !IsWord(text[i - 1]))) {
      std::size_t end = i;
      while (end < text.size() && IsWord(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      i = end - 1;
      if (word == "True" || word == "true") {
        *json += "true";
      } else if (word == "False" || word == "false") {
        *json += "false";
      } else if (word == "None" || word == "null") {
        *json += "null";
      } else if (IsNanWord(word)) {
        *json += "NaN";
      } else if (word == "inf" || word == "Infinity") {
        *json += "Inf";
      } else if (i + 1 < text.size() && text[i + 1] == '(') {  // tensor(2.3), array(...), float32(...): what is inside
        int inner = 0;
        std::size_t close = i + 1;
        for (; close < text.size(); ++close) {
          inner += text[close] == '(' ? 1 : text[close] == ')' ? -1 : 0;
          if (inner == 0) break;
        }
        if (close >= text.size()) return 0;
        const auto number = ScanNumber(text.substr(i + 2, close - i - 2));
        *json += !number ? "null" : number->word ? (std::isnan(number->value) ? "NaN" : number->value > 0 ? "Inf" : "-Inf")
                                                 : std::string(text.substr(i + 2, number->bytes));
        i = close;
      } else {
        return 0;
      }
    } else {
      json->push_back(c);
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth == 0) return i + 1;
    }
  }
  return 0;
}

}  // namespace lossgauge::replay
