// Tables: comma, semicolon or tab between cells, a header with names, columns in any order, empty cells absent.
#ifndef LOSSGAUGE_SERVER_REPLAY_CSV_LOG_H_
#define LOSSGAUGE_SERVER_REPLAY_CSV_LOG_H_

#include <optional>
#include <string_view>

#include "server/replay/line_reader.h"
#include "server/replay/point_maker.h"

namespace lossgauge::replay {

inline constexpr std::string_view kShapeCsv = "csv";

// Whether a spreadsheet would compute a cell with this text instead of showing it; with kNoFormula before it, it shows it.
bool IsFormula(std::string_view text);
inline constexpr char kNoFormula = '\'';

// The delimiter if `line` is the header of a table with a loss in it.
std::optional<char> HeaderDelimiter(std::string_view line);

// `row` holds a number below a name that is known: `header` is one.
bool IsRowBelow(std::string_view header, std::string_view row, char delimiter);

void ReadCsvLog(char delimiter, LineReader* lines, PointMaker* points, LogReport* report);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_CSV_LOG_H_
