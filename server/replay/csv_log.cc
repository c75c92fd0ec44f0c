#include "server/replay/csv_log.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "server/replay/field_names.h"
#include "server/replay/json_record.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMaxCells = 4096;

enum class Quotes { kAsTheyCome, kStrict };  // strict: nothing but spaces follows a quote that closes

// Cells by RFC 4180. False: a quote stays open, as where a cell goes on in the line below, or there are more than kMaxCells.
bool SplitCells(std::string_view line, char delimiter, std::vector<std::string>* cells, Quotes quotes = Quotes::kAsTheyCome) {
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
      if (quotes == Quotes::kStrict && was_quoted && !quoted && line[i] != ' ') return false;
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

// Rows of a table. A quoted cell may go on in the lines below it. A quote that nobody closes soon, or not where a row ends, is in a line that does not parse,
// and takes no other line with it.
class RowReader {
 public:
  RowReader(char delimiter, LineReader* lines) : delimiter_(delimiter), lines_(lines) {}

  // False at the end. *whole is false if the line is no row. `row` is the row's first line; whether it is terminated is said of its last one.
  // `columns`: those of a row that has several lines.
  bool Next(std::size_t columns, LogLine* row, std::vector<std::string>* cells, bool* whole) {
    if (kept_.empty()) {
      if (!lines_->Next(row)) return false;
      *whole = SplitCells(row->text, delimiter_, cells);
      if (*whole) return true;
      Keep(*row);
    }
    current_ = std::move(kept_.front());
    kept_.pop_front();
    *row = {current_.text, current_.number, current_.terminated};
    *whole = SplitCells(current_.text, delimiter_, cells) || Join(columns, row, cells);
    return true;
  }

 private:
  static constexpr std::size_t kMaxRowLines = 64;
  static constexpr std::size_t kMaxRowBytes = std::size_t{64} << 10;
  struct Line {
    std::string text;
    std::uint64_t number = 0;
    bool terminated = true;
  };

  static bool IsOdd(const std::string& text) { return std::count(text.begin(), text.end(), '"') % 2 != 0; }
  void Keep(const LogLine& line) { kept_.push_back({std::string(line.text), line.number, line.terminated}); }

  bool Join(std::size_t columns, LogLine* row, std::vector<std::string>* cells) {
    std::string joined = current_.text;
    bool is_open = IsOdd(joined);
    for (std::size_t i = 0; is_open && i < kMaxRowLines && joined.size() < kMaxRowBytes; ++i) {
      if (i == kept_.size()) {
        LogLine line;
        if (!lines_->Next(&line)) return false;
        Keep(line);
      }
      joined += "\n" + kept_[i].text;
      is_open = is_open != IsOdd(kept_[i].text);
      if (is_open) continue;
      if (!SplitCells(joined, delimiter_, cells, Quotes::kStrict) || cells->size() != columns) return false;
      row->terminated = kept_[i].terminated;
      kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    return false;
  }

  const char delimiter_;
  LineReader* const lines_;
  std::deque<Line> kept_;  // read ahead
  Line current_;
};

// A text of our own export as it was before its mark.
std::string_view WithoutMark(std::string_view cell) {
  return cell.size() > 1 && cell.front() == kNoFormula && IsFormula(cell.substr(1)) ? cell.substr(1) : cell;
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
  if (!SplitCells(header, delimiter, &names)) return false;
  (void)SplitCells(row, delimiter, &cells);  // the row may go on in further lines
  for (std::size_t i = 0; i < std::min(names.size(), cells.size()); ++i) {
    CommaUse comma;
    if (LookUpName(NormalName(names[i])).meaning != Meaning::kNone && ParseNumber(cells[i], true, &comma)) return true;
  }
  return false;
}

bool IsFormula(std::string_view text) { return !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos; }

void ReadCsvLog(char delimiter, LineReader* lines, PointMaker* points, LogReport* report) {
  std::vector<std::string> header, cells;
  std::vector<Meaning> meanings;
  LogRecord record;
  record.shape = kShapeCsv;
  LogLine line;
  bool whole = true;
  for (RowReader rows(delimiter, lines); rows.Next(header.size(), &line, &cells, &whole);) {
    if (line.text.front() == '#' && header.empty()) continue;
    if (!whole) {
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
        AddTextValue(header[i], WithoutMark(cells[i]), &record);  // attempt, split
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
