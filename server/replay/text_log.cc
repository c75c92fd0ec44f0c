#include "server/replay/text_log.h"

#include <string>

#include "server/replay/json_record.h"
#include "server/replay/key_values.h"
#include "server/replay/megatron_line.h"

namespace lossgauge::replay {
namespace {

// A dictionary somewhere in the line: behind a logger's prefix, or glued to a progress bar.
bool ParseDictionary(std::string_view line, std::string* json, LogRecord* record, bool* cut_off) {
  for (std::size_t at = line.find('{'); at != std::string_view::npos; at = line.find('{', at + 1)) {
    const std::size_t quote = line.find_first_not_of(" ", at + 1);
    if (quote == std::string_view::npos || (line[quote] != '\'' && line[quote] != '"')) continue;
    if (!PythonToJson(line.substr(at), json)) {
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

}  // namespace

void ReadTextLog(LineReader* lines, PointMaker* points, LogReport* report) {
  LogRecord record;
  LogLine line;
  std::string json;
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
    if (cut_off) report->Count(Oddity::kCutOff, line.number);
    if (record.fields.empty()) continue;
    record.rank_tag = RankTag(line.text);
    points->OnRecord(record);
  }
}

}  // namespace lossgauge::replay
