#include "server/replay/json_log.h"

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "rapidjson/reader.h"
#include "server/replay/json_record.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

constexpr unsigned kFlags = rapidjson::kParseNanAndInfFlag | rapidjson::kParseIterativeFlag;
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 20;  // RapidJSON keeps a string whole

// What RapidJSON reads from. Ends early where a string has no end in sight.
class JsonStream {
 public:
  typedef char Ch;
  explicit JsonStream(ByteSource* source) : source_(source) { Fill(); }

  Ch Peek() const { return position_ < buffer_.size() && !too_long_ ? buffer_[position_] : '\0'; }
  Ch Take() {
    const Ch c = Peek();
    if (position_ >= buffer_.size() || too_long_) return c;
    if (c == '\n') ++line_;
    if (c == '"') {
      since_quote_ = 0;
    } else if (++since_quote_ > kMaxTokenBytes && c != ' ' && c != '\n') {
      too_long_ = true;
    }
    ++offset_;
    if (++position_ == buffer_.size()) Fill();
    return c;
  }
  std::size_t Tell() const { return offset_; }
  // Of a stream that is written to; never called.
  Ch* PutBegin() { return nullptr; }
  void Put(Ch) {}
  void Flush() {}
  std::size_t PutEnd(Ch*) { return 0; }

  std::uint64_t line() const { return line_; }
  bool at_end() const { return position_ >= buffer_.size(); }

 private:
  void Fill() {
    buffer_.resize(std::size_t{64} << 10);
    buffer_.resize(source_->Read(buffer_.data(), buffer_.size()));
    position_ = 0;
  }

  ByteSource* const source_;
  std::string buffer_;
  std::size_t position_ = 0;
  std::size_t offset_ = 0;
  std::size_t since_quote_ = 0;
  std::uint64_t line_ = 1;
  bool too_long_ = false;
};

// Objects that are elements of an array are entries of a log; "values": {"5": 12.6} below a name are golden values of it; numbers at the top are an
// entry of their own.
class DocumentHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, DocumentHandler> {
 public:
  DocumentHandler(const JsonStream* stream, PointMaker* points, LogReport* report) : stream_(stream), points_(points), report_(report) {
    record_.shape = kShapeJsonEntry;
    golden_.shape = kShapeGolden;
    top_.shape = kShapeJsonEntry;
  }

  bool Null() { return true; }
  bool Bool(bool) { return true; }
  bool Int(int value) { return Number(value, std::nullopt); }
  bool Int64(std::int64_t value) { return Number(static_cast<double>(value), std::nullopt); }
  bool Uint(unsigned value) { return Number(value, value); }
  bool Uint64(std::uint64_t value) { return Number(static_cast<double>(value), value); }
  bool Double(double value) { return Number(value, std::nullopt); }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    const std::string_view view(text, size);
    if (size > 200) return true;
    if (InGolden()) {
      if (IsNanWord(view)) {
        report_->Count(Oddity::kMissingAsNan, stream_->line());  // they pad the table to a length
        return true;
      }
      CommaUse comma;
      if (const auto value = ParseNumber(view, false, &comma)) Golden(*value);
    } else if (InEntry()) {
      AddTextValue(Path(), view, &record_);
    }
    return true;
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    key_.assign(text, std::min<std::size_t>(size, 256));
    return true;
  }
  bool StartObject() {
    if (levels_.size() >= kMaxDepth) return false;
    const bool in_array = !levels_.empty() && levels_.back().is_array;
    if (in_array && entry_level_ == 0 && !InGolden()) {
      entry_level_ = levels_.size() + 1;
      record_.Clear();
      record_.line = stream_->line();
    }
    levels_.push_back({false, key_});
    key_.clear();
    return true;
  }
  bool EndObject(rapidjson::SizeType) {
    if (entry_level_ == levels_.size() && entry_level_ != 0) {
      entry_level_ = 0;
      if (!record_.fields.empty()) {
        ++entries_;
        points_->OnRecord(record_);
      }
    }
    levels_.pop_back();
    if (levels_.empty() && entries_ == 0 && golden_values_ == 0 && top_.Has(Meaning::kTrainingLoss)) points_->OnRecord(top_);
    return true;
  }
  bool StartArray() {
    if (levels_.size() >= kMaxDepth) return false;
    if (key_ == "log_history") is_trainer_state_ = true;
    levels_.push_back({true, key_});
    key_.clear();
    return true;
  }
  bool EndArray(rapidjson::SizeType) {
    levels_.pop_back();
    return true;
  }

  std::string Format() const { return golden_values_ > entries_ ? "golden_values" : is_trainer_state_ ? "hf_trainer_state" : "json"; }
  bool found_any() const { return entries_ + golden_values_ > 0 || top_.Has(Meaning::kTrainingLoss); }

 private:
  struct Level {
    bool is_array;
    std::string name;
  };

  bool InEntry() const { return entry_level_ != 0 && !levels_.back().is_array; }
  bool InGolden() const { return levels_.size() >= 3 && entry_level_ == 0 && !levels_.back().is_array && levels_.back().name == "values"; }
  std::string Path() const {
    std::string path;
    for (std::size_t i = entry_level_; i < levels_.size(); ++i) path += levels_[i].name + "/";
    return path + key_;
  }
  void Golden(double value) {
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(key_.data(), key_.data() + key_.size(), step);
    if (error != std::errc() || end != key_.data() + key_.size()) return;
    golden_.Clear();
    golden_.line = stream_->line();
    golden_.Add("step", static_cast<double>(step));
    golden_.Add(levels_[levels_.size() - 2].name, value);
    ++golden_values_;
    points_->OnRecord(golden_);
  }
  bool Number(double value, std::optional<std::uint64_t> exact) {
    if (levels_.empty()) return true;
    if (InGolden()) {
      Golden(value);
    } else if (InEntry()) {
      record_.Add(Path(), value, "", exact);
    } else if (levels_.size() == 1 && !levels_.back().is_array) {
      top_.line = 1;
      top_.Add(key_, value, "", exact);
    }
    return true;
  }

  const JsonStream* const stream_;
  PointMaker* const points_;
  LogReport* const report_;
  std::vector<Level> levels_;
  std::string key_;
  std::size_t entry_level_ = 0;  // levels_.size() within the entry's object; 0 = not in one
  LogRecord record_, golden_, top_;
  std::uint64_t entries_ = 0;
  std::uint64_t golden_values_ = 0;
  bool is_trainer_state_ = false;
};

}  // namespace

void ReadJsonLines(LineReader* lines, PointMaker* points, LogReport* report) {
  report->format = "jsonl";
  LogRecord record;
  record.shape = kShapeJsonLines;
  LogLine line;
  while (lines->Next(&line)) {
    record.Clear();
    record.line = line.number;
    switch (ParseJsonRecord(line.text, &record)) {
      case JsonOutcome::kRecord:
        if (!record.fields.empty()) points->OnRecord(record);
        break;
      case JsonOutcome::kBroken:
        report->Count(line.terminated ? Oddity::kUnreadable : Oddity::kCutOff, line.number);
        break;
      case JsonOutcome::kNotAnObject:
        report->Count(Oddity::kUnreadable, line.number);
        break;
    }
  }
}

void ReadJsonDocument(ByteSource* source, PointMaker* points, LogReport* report) {
  JsonStream stream(source);
  DocumentHandler handler(&stream, points, report);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, handler);
  if (result.IsError()) report->Count(stream.at_end() ? Oddity::kCutOff : Oddity::kUnreadable, stream.line());
  report->lines = stream.line();
  report->format = handler.Format();
  if (!handler.found_any() && !result.IsError()) report->Count(Oddity::kUnknownShape, 1);
  // What stands behind an error is not JSON any more, but may be counted.
  char rest[4096];
  while (source->Read(rest, sizeof rest) > 0) {
  }
}

}  // namespace lossgauge::replay
