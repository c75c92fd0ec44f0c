#include "server/replay/number_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace lossgauge::replay {
namespace {

bool IsLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }

bool StartsWithIgnoringCase(std::string_view text, std::string_view word) {
  if (text.size() < word.size()) return false;
  return std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) { return a == absl::ascii_tolower(static_cast<unsigned char>(b)); });
}

}  // namespace

std::string_view TrimSpaces(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<ScannedNumber> ScanNumber(std::string_view text) {
  std::size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) ++i;
  const double sign = negative ? -1.0 : 1.0;
  for (const auto& [word, value] : {std::pair<std::string_view, double>{"infinity", INFINITY}, {"inf", INFINITY}, {"nan", NAN}}) {
    if (!StartsWithIgnoringCase(text.substr(i), word)) continue;
    const std::size_t end = i + word.size();
    // "nanms" is NaN milliseconds and "(+nanz)" a NaN deviation; "info" and "nano" are words.
    std::size_t letters = end;
    while (letters < text.size() && (IsLetter(text[letters]) || text[letters] == '_')) ++letters;
    const std::string_view unit = text.substr(end, letters - end);
    if (!unit.empty() && unit != "ms" && unit != "s" && unit != "z") return std::nullopt;
    return ScannedNumber{sign * value, end, true};
  }
  const std::size_t digits = i;
  while (i < text.size() && IsDigit(text[i])) ++i;
  bool any = i > digits;
  if (i < text.size() && text[i] == '.') {
    const std::size_t fraction = i + 1;
    std::size_t end = fraction;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (end > fraction || any) {
      any = any || end > fraction;
      i = end;
    }
  }
  if (!any) return std::nullopt;
  if (i + 1 < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    std::size_t end = i + 1;
    if (text[end] == '-' || text[end] == '+') ++end;
    const std::size_t exponent = end;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (end > exponent) i = end;
  }
  const std::size_t begin = text[0] == '+' ? 1 : 0;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + i, value);
  if (error == std::errc::result_out_of_range) {
    // from_chars leaves the value: an exponent below is 0, above is infinite.
    const std::string_view mantissa = text.substr(0, i);
    const bool tiny = mantissa.find("e-") != std::string_view::npos || mantissa.find("E-") != std::string_view::npos;
    value = tiny ? 0 : sign * std::numeric_limits<double>::infinity();
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  return ScannedNumber{value, i, false};
}

std::optional<double> ParseNumber(std::string_view text, bool comma_is_decimal, CommaUse* comma) {
  *comma = CommaUse::kNone;
  text = TrimSpaces(text);
  if (text.empty() || text.size() > 400) return std::nullopt;
  std::string plain;
  if (const std::size_t first = text.find(','); first != std::string_view::npos) {
    const bool is_single = text.find(',', first + 1) == std::string_view::npos;
    if (comma_is_decimal && is_single && text.find('.') == std::string_view::npos) {
      plain = text;
      plain[first] = '.';
      *comma = CommaUse::kDecimal;
    } else {
      std::size_t group = 0;
      bool in_groups = false;
      for (const char c : text) {
        if (c == ',') {
          if (in_groups && group != 3) return std::nullopt;
          in_groups = true;
          group = 0;
          continue;
        }
        if (in_groups && !IsDigit(c)) {
          if (group != 3) return std::nullopt;
          in_groups = false;
        }
        ++group;
        plain.push_back(c);
      }
      if (in_groups && group != 3) return std::nullopt;
      *comma = CommaUse::kThousands;
    }
    text = plain;
  }
  const auto number = ScanNumber(text);
  if (!number || number->bytes != text.size()) return std::nullopt;
  return number->value;
}

bool IsNanWord(std::string_view text) {
  text = TrimSpaces(text);
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text.size() == 3 && StartsWithIgnoringCase(text, "nan");
}

}  // namespace lossgauge::replay
