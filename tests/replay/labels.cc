#include "tests/replay/labels.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lossgauge::replay {
namespace {

constexpr std::pair<absl::string_view, LabelKind> kKinds[] = {
    {"spike", LabelKind::kSpike},         {"divergence", LabelKind::kDivergence}, {"collapse", LabelKind::kCollapse},
    {"loss_collapse", LabelKind::kCollapse}, {"nonfinite", LabelKind::kNonfinite}, {"grad_explosion", LabelKind::kGradExplosion},
    {"blip", LabelKind::kBlip},           {"restart", LabelKind::kRestart}};

std::optional<LogPlace> ParsePlace(absl::string_view text) {
  LogPlace place;
  place.is_index = absl::ConsumePrefix(&text, "#");
  if (!absl::SimpleAtoi(text, &place.value)) return std::nullopt;
  return place;
}

// "[points #57-#63]" anywhere in the note.
void ReadPoints(absl::string_view note, Label* label) {
  const std::size_t at = note.find("[points #");
  if (at == std::string_view::npos) return;
  const absl::string_view inside = note.substr(at + 9, note.find(']', at) - at - 9);
  const std::vector<absl::string_view> ends = absl::StrSplit(inside, "-#");
  std::uint64_t first = 0, last = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last)) return;
  label->first_point = first;
  label->last_point = last;
}

}  // namespace

std::string_view LabelKindName(LabelKind kind) {
  for (const auto& [name, one] : kKinds) {
    if (one == kind) return {name.data(), name.size()};
  }
  return "";
}

absl::StatusOr<std::map<std::string, LabelledLog>> ParseLabels(std::string_view tsv) {
  std::map<std::string, LabelledLog> logs;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(tsv.data(), tsv.size()), '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (number == 1 || line.empty()) continue;  // the names of the columns
    std::vector<absl::string_view> cells = absl::StrSplit(line, '\t');
    cells.resize(6);
    const auto wrong = [&](absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", what)); };
    LabelledLog& log = logs[std::string(cells[0])];
    const bool ambiguous = absl::StrContains(cells[5], "ambiguous");
    if (cells[3] == "clean") {
      log.clean = true;
      continue;
    }
    if (cells[3] == "worst_verdict") {
      if (!ambiguous) {
        for (const absl::string_view verdict : absl::StrSplit(cells[5], '|')) log.verdicts.emplace_back(verdict);
      }
      continue;
    }
    Label label;
    bool known = false;
    for (const auto& [name, kind] : kKinds) {
      if (cells[3] != name) continue;
      label.kind = kind;
      known = true;
    }
    if (!known) return wrong(absl::StrCat("unknown kind \"", cells[3], "\""));
    const auto onset = ParsePlace(cells[1]);
    const auto end = ParsePlace(cells[2]);
    if (!onset || !end) return wrong("onset and end must be whole numbers");
    label.onset = *onset;
    label.end = *end;
    if (!cells[4].empty()) {
      label.latest = ParsePlace(cells[4]);
      if (!label.latest) return wrong("latest_detection must be a whole number");
    }
    label.ambiguous = ambiguous;
    label.note = std::string(cells[5]);
    ReadPoints(cells[5], &label);
    log.labels.push_back(std::move(label));
  }
  return logs;
}

}  // namespace lossgauge::replay
