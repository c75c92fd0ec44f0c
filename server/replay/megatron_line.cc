#include "server/replay/megatron_line.h"

#include <charconv>
#include <string>

#include "absl/strings/ascii.h"
#include "server/replay/number_text.h"

namespace lossgauge::replay {
namespace {

std::optional<std::int64_t> WholeAt(std::string_view text) {
  text = TrimSpaces(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// "name: number" of one cell between bars.
void AddCell(std::string_view cell, LogRecord* record) {
  const std::size_t colon = cell.rfind(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = TrimSpaces(cell.substr(0, colon));
  const std::string_view text = TrimSpaces(cell.substr(colon + 1));
  CommaUse comma = CommaUse::kNone;
  const auto number = ParseNumber(text, !IsCount(LookUpName(NormalName(name)).meaning), &comma);
  if (!number) return;
  record->NoteComma(comma);
  record->Add(name, *number);
}

}  // namespace

bool ParseMegatronLine(std::string_view line, bool terminated, LogRecord* record, bool* cut_off) {
  *cut_off = false;
  constexpr std::string_view kIteration = "iteration ";
  const std::size_t bar = line.find('|');
  if (bar == std::string_view::npos) return false;
  const std::string_view head = line.substr(0, bar);
  const std::size_t word = head.find(kIteration);
  if (word == std::string_view::npos) return false;
  const std::string_view number = head.substr(word + kIteration.size());
  const auto step = WholeAt(number);
  if (!step) return false;
  const std::string_view before = TrimSpaces(head.substr(0, word));
  if (before.ends_with("loss at") || before.ends_with("loss for")) {  // "validation loss at iteration 100 | lm loss value: ..."
    record->is_evaluation = true;
  } else if (number.find('/') == std::string_view::npos) {
    return false;
  }
  record->Add("iteration", static_cast<double>(*step));
  std::string_view rest = line.substr(bar + 1);
  while (!rest.empty()) {
    const std::size_t end = rest.find('|');
    if (end == std::string_view::npos) {  // every cell ends in a bar: this one was cut
      if (!terminated && !TrimSpaces(rest).empty()) {
        *cut_off = true;
        break;
      }
      AddCell(rest, record);
      break;
    }
    AddCell(rest.substr(0, end), record);
    rest.remove_prefix(end + 1);
  }
  return true;
}

std::optional<LogCheckpoint> ParseCheckpointLine(std::string_view line) {
  // Seldom, so looked for in this order: a cheap word first.
  if (line.find("checkpoint") == std::string_view::npos) return std::nullopt;
  const auto at = [&](std::string_view words) -> std::string_view {
    const std::size_t found = line.find(words);
    return found == std::string_view::npos ? std::string_view() : line.substr(found + words.size());
  };
  if (const std::string_view rest = at("saving checkpoint at iteration"); !rest.empty()) {
    const auto step = WholeAt(rest);
    const std::size_t to = rest.find(" to ");
    if (step && *step >= 0 && to != std::string_view::npos) {
      std::string_view path = TrimSpaces(rest.substr(to + 4));
      path = path.substr(0, path.find(' '));
      return LogCheckpoint{0, *step, std::string(path)};
    }
  }
  if (const std::string_view rest = at("Saving model checkpoint to "); !rest.empty()) {  // .../checkpoint-500
    std::string_view path = TrimSpaces(rest);
    path = path.substr(0, path.find(' '));
    const std::size_t dash = path.rfind('-');
    const auto step = dash == std::string_view::npos ? std::nullopt : WholeAt(path.substr(dash + 1));
    if (step && *step >= 0) return LogCheckpoint{0, *step, std::string(path)};
  }
  return std::nullopt;
}

}  // namespace lossgauge::replay
