// Labelled events of real logs, as events.tsv gives them. See README.md beside the logs: columns file, onset, end, kind, latest_detection, note.
#ifndef LOSSGAUGE_TESTS_REPLAY_LABELS_H_
#define LOSSGAUGE_TESTS_REPLAY_LABELS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lossgauge::replay {

enum class LabelKind { kSpike, kDivergence, kCollapse, kNonfinite, kGradExplosion, kBlip, kRestart };
std::string_view LabelKindName(LabelKind kind);

// A place in a log: its own step, or the number of a point from 0.
struct LogPlace {
  std::int64_t value = 0;
  bool is_index = false;
};

struct Label {
  LabelKind kind = LabelKind::kSpike;
  bool ambiguous = false;  // neither to be found nor false where it stands
  LogPlace onset;
  LogPlace end;
  std::optional<LogPlace> latest;  // where it must have been found
  // By number of point, where the note says so: the only way in logs whose steps repeat.
  std::optional<std::uint64_t> first_point;
  std::optional<std::uint64_t> last_point;
  std::string note;
};

struct LabelledLog {
  bool clean = false;                // a row says so
  std::vector<std::string> verdicts;  // the worst ones that are right; empty: not scored
  std::vector<Label> labels;          // in the order of the file
};

// By file. INVALID_ARGUMENT names the line.
absl::StatusOr<std::map<std::string, LabelledLog>> ParseLabels(std::string_view tsv);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_TESTS_REPLAY_LABELS_H_
