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
constexpr unsigned kOneValue = kFlags | rapidjson::kParseStopWhenDoneFlag;

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
    if (!in_string_) {
      in_string_ = c == '"';
      string_bytes_ = 0;
      is_escaped_ = false;
    } else if (is_escaped_) {
      is_escaped_ = false;
      ++string_bytes_;
    } else if (c == '"') {
      in_string_ = false;
    } else {
      is_escaped_ = c == '\\';
      too_long_ = ++string_bytes_ > kMaxTokenBytes;
    }
    ++offset_;
    if (++position_ == buffer_.size()) Fill();
    return c;
  }
  std::size_t Tell() const { return offset_; }
  // Behind an error, where nobody knows whether this is within a string.
  void Resume() { in_string_ = too_long_ = false; }
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
  std::size_t string_bytes_ = 0;
  std::uint64_t line_ = 1;
  bool in_string_ = false;
  bool is_escaped_ = false;  // within a string: the character behind a backslash
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
      if (const auto value = ParseNumber(view, true, &comma)) Golden(*value, comma);
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
    if (levels_.empty()) {
      top_.Clear();
      top_.line = stream_->line();
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
        record_.CountCommas(report_);
        points_->OnRecord(record_);
      }
    }
    levels_.pop_back();
    if (levels_.empty() && entries_ == 0 && golden_values_ == 0 && top_.Has(Meaning::kTrainingLoss)) {
      ++tops_;
      points_->OnRecord(top_);
    }
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
  bool found_any() const { return entries_ + golden_values_ + tops_ > 0; }
  bool at_root() const { return levels_.empty(); }
  // Behind an error: what comes next counts as an element of the array that the broken value was in, or as another document.
  void Recover() {
    if (entry_level_ != 0) levels_.resize(entry_level_ - 1);
    while (!levels_.empty() && (!levels_.back().is_array || levels_.size() >= kMaxDepth)) levels_.pop_back();
    entry_level_ = 0;
    key_.clear();
  }

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
  void Golden(double value, CommaUse comma = CommaUse::kNone) {
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(key_.data(), key_.data() + key_.size(), step);
    if (error != std::errc() || end != key_.data() + key_.size()) return;
    golden_.Clear();
    golden_.line = stream_->line();
    golden_.Add("step", static_cast<double>(step));
    golden_.Add(levels_[levels_.size() - 2].name, value);
    golden_.NoteComma(comma);
    golden_.CountCommas(report_);
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
  std::uint64_t tops_ = 0;
  bool is_trainer_state_ = false;
};

// Behind a whole document: white space and the end, or another one.
bool NextIsValue(JsonStream* stream) {
  while (!stream->at_end() && (stream->Peek() == ' ' || stream->Peek() == '\n' || stream->Peek() == '\r' || stream->Peek() == '\t')) stream->Take();
  return stream->at_end() || stream->Peek() == '{' || stream->Peek() == '[';
}

// To where the next object may begin, or to the end. Braces within strings are tried, too: they give nothing.
bool GoToObject(JsonStream* stream) {
  while (!stream->at_end() && stream->Peek() != '{') {
    stream->Take();
    stream->Resume();
  }
  return !stream->at_end();
}

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
        record.CountCommas(report);
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
  std::uint64_t errors = 0;
  do {
    rapidjson::Reader reader;
    const std::size_t begin = stream.Tell();
    if (reader.Parse<kOneValue>(stream, handler).IsError()) {
      report->Count(stream.at_end() ? Oddity::kCutOff : Oddity::kUnreadable, stream.line());
      ++errors;
      handler.Recover();
      stream.Resume();
      if (stream.Tell() == begin) stream.Take();  // else it would be tried for ever
    } else if (handler.at_root() && !NextIsValue(&stream)) {
      report->Count(Oddity::kUnreadable, stream.line());
      ++errors;
    }
  } while (GoToObject(&stream));
  report->lines = stream.line();
  report->format = handler.Format();
  if (!handler.found_any() && errors == 0) report->Count(Oddity::kUnknownShape, 1);
}

}  // namespace lossgauge::replay
