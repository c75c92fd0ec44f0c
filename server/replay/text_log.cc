#include "server/replay/text_log.h"

#include <algorithm>
#include <string>

#include "server/replay/json_record.h"
#include "server/replay/key_values.h"
#include "server/replay/megatron_line.h"

namespace lossgauge::replay {
namespace {

// A dictionary somewhere in the line: behind a logger's prefix, or glued to a progress bar.
bool ParseDictionary(std::string_view line, std::string* json, LogRecord* record, bool* cut_off) {
  // One without anything of use may hold another that has it. Looking within is bounded: each look goes over all that is left of the outer one.
  constexpr int kLooksWithin = 8;
  std::size_t tried_to = 0;
  int looks = 0;
  for (std::size_t at = line.find('{'); at != std::string_view::npos; at = line.find('{', at + 1)) {
    if (at < tried_to && looks == kLooksWithin) {
      at = tried_to - 1;
      continue;
    }
    const std::size_t quote = line.find_first_not_of(" ", at + 1);
    if (quote == std::string_view::npos || (line[quote] != '\'' && line[quote] != '"')) continue;
    if (at < tried_to) ++looks;
    const std::size_t bytes = PythonToJson(line.substr(at), json);
    tried_to = std::max(tried_to, at + bytes);
    if (bytes == 0) {
      *cut_off = line.find("loss", at) != std::string_view::npos;
      return false;
    }
    if (ParseJsonRecord(*json, record) == JsonOutcome::kRecord && !record->fields.empty()) {
      record->shape = kShapeDictionary;
      return true;
    }
  }
  return false;
}

// A line with nothing but the step, and indented lines with its values below it.
class Block {
 public:
  explicit Block(PointMaker* points) : points_(points) {}
  // True: the line belongs to the block.
  bool Takes(const LogLine& line, const LogRecord& values) {
    const bool is_indented = line.text.front() == ' ' || line.text.front() == '\t';
    if (!is_open_ || !is_indented || values.Has(Meaning::kStep)) {
      Close();
      return false;
    }
    for (const LogField& field : values.fields) {
      if (record_.fields.size() < LogRecord::kMaxFields) record_.fields.push_back(field);
    }
    return true;
  }
  bool Begins(const LogRecord& head) {
    const bool has_step = head.Has(Meaning::kStep);
    const auto is_head = [](const LogField& field) { return field.known.meaning == Meaning::kStep || field.known.meaning == Meaning::kEpoch; };
    if (!has_step || !std::all_of(head.fields.begin(), head.fields.end(), is_head)) return false;
    record_ = head;
    is_open_ = true;
    return true;
  }
  void Close() {
    if (is_open_ && record_.fields.size() > 1) points_->OnRecord(record_);
    is_open_ = false;
  }

 private:
  PointMaker* const points_;
  LogRecord record_;
  bool is_open_ = false;
};

}  // namespace

void ReadTextLog(LineReader* lines, PointMaker* points, LogReport* report) {
  LogRecord record;
  LogLine line;
  std::string json;
  Block block(points);
  while (lines->Next(&line)) {
    bool cut_off = false;
    record.Clear();
    record.line = line.number;
    if (auto checkpoint = ParseCheckpointLine(line.text)) {
      checkpoint->line = line.number;
      points->OnCheckpoint(*checkpoint);
      continue;
    }
    if (ParseMegatronLine(line.text, line.terminated, &record, &cut_off)) {
      record.shape = kShapeMegatron;
    } else if (ParseDictionary(line.text, &json, &record, &cut_off)) {
      // filled in
    } else if (!cut_off) {
      record.shape = kShapeKeyValues;
      cut_off = AddKeyValues(line.text, line.terminated, &record);
    }
    record.CountCommas(report);
    if (cut_off) report->Count(Oddity::kCutOff, line.number);
    if (block.Takes(line, record) || record.fields.empty()) continue;
    record.rank_tag = RankTag(line.text);
    if (!block.Begins(record)) points->OnRecord(record);
  }
  block.Close();
}

}  // namespace lossgauge::replay
