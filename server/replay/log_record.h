// One line, row, object or event of a log as names and values, before anybody has decided what is the loss in it.
#ifndef LOSSGAUGE_SERVER_REPLAY_LOG_RECORD_H_
#define LOSSGAUGE_SERVER_REPLAY_LOG_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/replay/field_names.h"
#include "server/replay/log_point.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {

struct LogField {
  std::string name;  // normal
  FieldName known;
  double value = 0;
  std::optional<std::uint64_t> exact;  // of a whole number: a double would cut fingerprints
};

struct LogRecord {
  static constexpr std::size_t kMaxFields = 256;

  std::uint64_t line = 0;
  std::string_view shape;  // the grammar that it was read by; outlives the record
  std::string rank_tag;    // "default7", "31": who printed the line, where it says so
  std::string attempt;     // where the log names it
  bool is_evaluation = false;  // the record says of itself that it is no training step
  bool has_decimal_comma = false;    // in a number of it
  bool has_thousands_comma = false;  // likewise
  std::vector<LogField> fields;

  void Clear() {
    line = 0;
    rank_tag.clear();
    attempt.clear();
    is_evaluation = has_decimal_comma = has_thousands_comma = false;
    fields.clear();
  }
  void Add(std::string_view raw_name, double value, std::string_view unit = "", std::optional<std::uint64_t> exact = std::nullopt);
  void NoteComma(CommaUse comma) {
    has_decimal_comma = has_decimal_comma || comma == CommaUse::kDecimal;
    has_thousands_comma = has_thousands_comma || comma == CommaUse::kThousands;
  }
  // Tells `report` of the commas that were found.
  void CountCommas(LogReport* report) const {
    if (has_decimal_comma) report->Count(Oddity::kDecimalComma, line);
    if (has_thousands_comma) report->Count(Oddity::kThousandsComma, line);
  }
  const LogField* Best(Meaning meaning) const;           // lowest rank, then first
  const LogField* Named(std::string_view normal_name) const;  // first
  bool Has(Meaning meaning) const { return Best(meaning) != nullptr; }
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_LOG_RECORD_H_
