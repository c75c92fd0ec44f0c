#include "server/replay/key_values.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

bool IsWordByte(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || static_cast<unsigned char>(c) >= 0x80; }

struct Key {
  std::string_view name;
  std::string_view unit;  // in parentheses behind the name
};

// The name in the text between two numbers: what stands behind the last separator, without the sign that joins it to its number.
Key KeyOf(std::string_view between) {
  Key key;
  between = TrimSpaces(between);
  if (between.ends_with("tensor(")) between = TrimSpaces(between.substr(0, between.size() - 7));  // "loss tensor(2.3, device='cuda:0')"
  while (!between.empty() && (between.back() == ':' || between.back() == '=' || between.back() == '"' || between.back() == '\'')) {
    between.remove_suffix(1);
    between = TrimSpaces(between);
  }
  if (!between.empty() && between.back() == ')') {
    const std::size_t open = between.rfind('(');
    if (open == std::string_view::npos) return key;
    key.unit = between.substr(open + 1, between.size() - open - 2);
    between = TrimSpaces(between.substr(0, open));
  }
  std::size_t begin = between.size();
  while (begin > 0) {
    const char c = between[begin - 1];
    const bool is_separator = c == '|' || c == ',' || c == ';' || c == '\t' || c == '(' || c == ')' || c == '[' || c == ']' || c == '{' || c == '}' ||
                              c == ':' || c == '=' || c == '"' || c == '\'' || c == '>' || c == '<';
    const bool is_gap = c == ' ' && begin > 1 && between[begin - 2] == ' ';
    const bool is_dash = c == '-' && begin > 1 && begin < between.size() && between[begin - 2] == ' ' && between[begin] == ' ';
    if (is_separator || is_gap || is_dash) break;
    --begin;
  }
  key.name = TrimSpaces(between.substr(begin));
  return key;
}

// The longest end of a phrase that is a known name: "Train Epoch 3 loss" says loss, "31: INFO step" says step. No name is longer than a few words:
// only the last ones are looked at, whatever stands before them.
std::string_view KnownEnd(std::string_view phrase) {
  constexpr std::size_t kLongestName = 80;
  std::string_view rest = phrase;
  if (rest.size() > kLongestName) {
    rest.remove_prefix(rest.size() - kLongestName);
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return {};
    rest = TrimSpaces(rest.substr(space));
  }
  const std::string_view last_words = rest;
  while (!rest.empty()) {
    if (LookUpName(NormalName(rest)).meaning != Meaning::kNone) return rest;
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) break;
    rest = TrimSpaces(rest.substr(space));
  }
  return last_words;
}

// "1,234" and "2,345": the number that begins `text` together with its commas, if it has any.
std::optional<ScannedNumber> WithCommas(std::string_view text, const ScannedNumber& number, Meaning meaning, CommaUse* comma) {
  std::size_t end = number.bytes;
  const bool has_comma = end + 1 < text.size() && text[end] == ',' && IsDigit(text[end + 1]);
  if (meaning == Meaning::kNone || !has_comma || !std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), IsDigit)) return std::nullopt;
  while (end < text.size() && (IsDigit(text[end]) || (text[end] == ',' && end + 1 < text.size() && IsDigit(text[end + 1])))) ++end;
  CommaUse use = CommaUse::kNone;
  const auto value = ParseNumber(text.substr(0, end), !IsCount(meaning), &use);
  if (!value) return std::nullopt;
  *comma = use;
  return ScannedNumber{*value, end, false};
}

}  // namespace

std::string_view RankTag(std::string_view line) {
  line = TrimSpaces(line.substr(0, std::min<std::size_t>(line.size(), 64)));
  std::size_t digits = 0;
  while (digits < line.size() && IsDigit(line[digits])) ++digits;
  if (digits > 0 && digits <= 6 && digits + 1 < line.size() && line[digits] == ':' && line[digits + 1] == ' ') return line.substr(0, digits);
  for (const std::string_view prefix : {std::string_view("[default"), std::string_view("[rank"), std::string_view("[Rank "), std::string_view("[RANK ")}) {
    if (!line.starts_with(prefix)) continue;
    const std::size_t close = line.find(']');
    if (close == std::string_view::npos || close == prefix.size()) return {};
    const std::string_view number = line.substr(prefix.size(), close - prefix.size());
    if (std::all_of(number.begin(), number.end(), IsDigit)) return number;
  }
  return {};
}

bool AddKeyValues(std::string_view line, bool terminated, LogRecord* record) {
  bool left_out = false;
  const std::size_t first = line.find_first_not_of(" \t");
  std::size_t begin = 0;  // of the text before the next number
  for (std::size_t i = 0; i < line.size();) {
    const char c = line[i];
    const char before = i == 0 ? ' ' : line[i - 1];
    const bool may_start = IsDigit(c) || ((c == '-' || c == '+' || c == '.') && i + 1 < line.size() && !IsWordByte(before)) ||
                           c == 'n' || c == 'N' || c == 'i' || c == 'I';
    if (!may_start || IsWordByte(before) || before == '.') {
      ++i;
      continue;
    }
    auto number = ScanNumber(line.substr(i));
    if (!number) {
      ++i;
      continue;
    }
    const Key key = KeyOf(line.substr(begin, i - begin));
    const std::string_view known_name = KnownEnd(key.name);
    CommaUse comma = CommaUse::kNone;
    if (const auto whole = WithCommas(line.substr(i), *number, LookUpName(NormalName(known_name)).meaning, &comma)) {
      number = whole;
      record->NoteComma(comma);
    }
    const std::size_t end = i + number->bytes;
    std::size_t after = end;
    while (after < line.size() && (IsWordByte(line[after]) || line[after] == '%')) ++after;
    const std::string_view suffix = line.substr(end, after - end);
    // "8b", "3rd", "0x10": names and other things that begin with a digit; a unit is short.
    const bool is_value = suffix.size() <= 3 && !(suffix.size() == 1 && (suffix[0] == 'x' || suffix[0] == 'X') && line[i] == '0');
    const bool touches_end = !terminated && after == line.size();
    if (is_value && !(number->word && key.name.empty())) {
      std::string_view unit = suffix.empty() ? key.unit : suffix;
      std::string_view name = known_name;
      double value = number->value;
      if (suffix == "K" || suffix == "k") value *= 1e3;
      if (suffix == "M") value *= 1e6;
      // "120 | loss 3.1": whose first number has no name gives the step.
      if (name.empty() && suffix.empty() && i == first && line.substr(end).starts_with(" | ")) name = "step";
      // llm.c gives the time of a step as a number of ms without a name.
      const bool is_nameless_time = name.empty() && suffix.empty() && line.substr(end).starts_with(" ms") && line.substr(0, i).ends_with("| ");
      // "time 123.45ms" of a step; without a unit it may be of anything.
      const bool is_time = name == "time" && suffix == "ms";
      if (is_nameless_time || is_time) {
        name = "dt";
        unit = "ms";
      }
      // A date's or a counter's other half: "12/500", "2026-08-18", "03:54:59".
      const bool is_half = name.empty() && !is_nameless_time;
      if (!is_half && LookUpName(NormalName(name)).meaning != Meaning::kNone) {
        if (touches_end) {
          left_out = true;
        } else {
          record->Add(name, value, unit);
        }
      }
    }
    begin = i = std::max(after, i + 1);
  }
  return left_out;
}

}  // namespace lossgauge::replay
