#include "server/replay/csv_log.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "server/replay/field_names.h"
#include "server/replay/json_record.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMaxCells = 4096;

// Cells by RFC 4180, but for line feeds in quotes. False: a quote stays open.
bool SplitCells(std::string_view line, char delimiter, std::vector<std::string>* cells) {
  cells->clear();
  std::string cell;
  bool quoted = false, was_quoted = false, is_blank = true;  // so far
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i == line.size() || (!quoted && line[i] == delimiter)) {
      if (cells->size() >= kMaxCells) return false;
      cells->push_back(was_quoted ? cell : std::string(TrimSpaces(cell)));
      cell.clear();
      was_quoted = false;
      is_blank = true;
    } else if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cell.push_back('"');
      ++i;
    } else if (line[i] == '"' && (quoted || is_blank)) {
      if (!quoted) cell.clear();
      quoted = !quoted;
      was_quoted = true;
    } else {
      is_blank = is_blank && line[i] == ' ';
      cell.push_back(line[i]);
    }
  }
  return !quoted;
}

// What TensorBoard gives for a curve that is downloaded from it: the curve's name is in that of the file.
bool IsDownloadedCurve(const std::vector<std::string>& cells) {
  return cells.size() == 3 && NormalName(cells[0]) == "wall_time" && NormalName(cells[1]) == "step" && NormalName(cells[2]) == "value";
}

bool IsHeader(const std::vector<std::string>& cells) {
  if (IsDownloadedCurve(cells)) return true;
  bool has_loss = false;
  for (const std::string& cell : cells) {
    CommaUse comma;
    if (ParseNumber(cell, true, &comma)) return false;
    const Meaning meaning = LookUpName(NormalName(cell)).meaning;
    has_loss = has_loss || meaning == Meaning::kTrainingLoss || meaning == Meaning::kEvaluationLoss;
  }
  return has_loss && cells.size() >= 2;
}

}  // namespace

std::optional<char> HeaderDelimiter(std::string_view line) {
  std::vector<std::string> cells;
  for (const char delimiter : {',', ';', '\t'}) {
    if (line.find(delimiter) == std::string_view::npos) continue;
    if (SplitCells(line, delimiter, &cells) && IsHeader(cells)) return delimiter;
  }
  return std::nullopt;
}

bool IsRowBelow(std::string_view header, std::string_view row, char delimiter) {
  std::vector<std::string> names, cells;
  if (!SplitCells(header, delimiter, &names) || !SplitCells(row, delimiter, &cells)) return false;
  for (std::size_t i = 0; i < std::min(names.size(), cells.size()); ++i) {
    CommaUse comma;
    if (LookUpName(NormalName(names[i])).meaning != Meaning::kNone && ParseNumber(cells[i], true, &comma)) return true;
  }
  return false;
}

void ReadCsvLog(char delimiter, LineReader* lines, PointMaker* points, LogReport* report) {
  std::vector<std::string> header, cells;
  std::vector<Meaning> meanings;
  LogRecord record;
  record.shape = kShapeCsv;
  LogLine line;
  while (lines->Next(&line)) {
    if (line.text.front() == '#' && header.empty()) continue;
    if (!SplitCells(line.text, delimiter, &cells)) {
      report->Count(line.terminated ? Oddity::kUnreadable : Oddity::kCutOff, line.number);
      continue;
    }
    if (IsHeader(cells)) {  // again where files were joined
      header = cells;
      if (IsDownloadedCurve(cells)) header[2] = "loss";
      meanings.clear();
      for (const std::string& cell : header) meanings.push_back(LookUpName(NormalName(cell)).meaning);
      continue;
    }
    if (header.empty() || cells.size() > header.size()) {
      report->Count(Oddity::kUnreadable, line.number);
      continue;
    }
    const bool is_short = cells.size() < header.size();
    if (is_short && line.terminated) report->Count(Oddity::kShortRow, line.number);
    if (!line.terminated && (is_short || (!cells.back().empty() && meanings.back() != Meaning::kNone))) {
      report->Count(Oddity::kCutOff, line.number);
      cells.pop_back();  // its last number may lack digits
    }
    std::size_t filled = 0, nans = 0;
    for (const std::string& cell : cells) {
      filled += !cell.empty();
      nans += IsNanWord(cell);
    }
    // A row that is mostly "nan" comes from a writer that fills gaps with it.
    const bool nan_is_missing = nans * 2 > filled && filled > 2;
    record.Clear();
    record.line = line.number;
    bool missing = false, broken = false;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      if (nan_is_missing && IsNanWord(cells[i])) {
        missing = missing || meanings[i] == Meaning::kTrainingLoss;
        continue;
      }
      if (meanings[i] == Meaning::kNone) {
        AddTextValue(header[i], cells[i], &record);  // attempt, split
        continue;
      }
      CommaUse comma = CommaUse::kNone;
      const auto value = ParseNumber(cells[i], !IsCount(meanings[i]), &comma);
      if (comma == CommaUse::kDecimal) report->Count(Oddity::kDecimalComma, line.number);
      if (comma == CommaUse::kThousands) report->Count(Oddity::kThousandsComma, line.number);
      if (!value) {
        broken = broken || meanings[i] == Meaning::kStep || meanings[i] == Meaning::kTrainingLoss;
        continue;
      }
      if (std::fabs(*value) >= 9007199254740992.0) {
        AddTextValue(header[i], cells[i], &record);
      } else {
        record.Add(header[i], *value);
      }
    }
    if (missing) report->Count(Oddity::kMissingAsNan, line.number);
    if (broken) report->Count(Oddity::kUnreadable, line.number);
    if (!broken && !record.fields.empty()) points->OnRecord(record);
  }
}

}  // namespace lossgauge::replay
