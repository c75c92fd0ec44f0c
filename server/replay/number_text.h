// Numbers as logs write them: plain, with a unit stuck to them, NaN and infinity in many spellings, commas as decimal points or between thousands.
#ifndef LOSSGAUGE_SERVER_REPLAY_NUMBER_TEXT_H_
#define LOSSGAUGE_SERVER_REPLAY_NUMBER_TEXT_H_

#include <cstddef>
#include <optional>
#include <string_view>

namespace lossgauge::replay {

struct ScannedNumber {
  double value = 0;
  std::size_t bytes = 0;  // of the text that it took
  bool word = false;      // NaN or infinity
};

// A number at the beginning of `text`: sign, digits, fraction, exponent, or a word for NaN or infinity that ends there. Too large is infinite.
std::optional<ScannedNumber> ScanNumber(std::string_view text);

enum class CommaUse { kNone, kThousands, kDecimal };

// All of `text`, spaces around it aside, is one number. A single comma is a decimal point, if `comma_is_decimal`, and commas between groups of
// three digits are dropped else; `comma` says what was found.
std::optional<double> ParseNumber(std::string_view text, bool comma_is_decimal, CommaUse* comma);

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Without the spaces and tabs around it.
std::string_view TrimSpaces(std::string_view text);

// "nan" in any case, with or without a sign.
bool IsNanWord(std::string_view text);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_NUMBER_TEXT_H_
