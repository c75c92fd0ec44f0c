// How well a log was judged: what a replay said against what a person had labelled.
//
// All places are numbers of points. What matches what:
// - A label is found by a detection of its kind above info whose onset lies between 10 points before the label (a gradient norm may lead) and its
//   end, and that was said no later than the label's latest point. Labels of the loss no more than 30 points apart are one stretch of trouble: a
//   detection that began in it and is still alive at a later label finds that, too.
// - A detection above info is false if its onset lies in no label from 10 points before it to 30 behind it. Detections of the loss need a label of
//   the loss, those of the gradient any label but a restart. Conditions that labels know nothing of (step time, ranks) are neither.
// - A verdict is wrong if the log's worst is not the labelled one, and RESTART or HALT wherever no divergence, collapse or NaN has begun.
#ifndef LOSSGAUGE_TESTS_REPLAY_SCORING_H_
#define LOSSGAUGE_TESTS_REPLAY_SCORING_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/detect/policy.h"
#include "server/replay/log_point.h"
#include "server/state/verdict.h"
#include "tests/replay/labels.h"

namespace lossgauge::replay {

enum class DetectionKind { kLoss, kNonfinite, kGradient, kOther };

struct Detection {
  DetectionKind kind = DetectionKind::kLoss;
  std::string what;            // condition and summary, for a person
  std::uint64_t onset = 0;     // points
  std::uint64_t last = 0;
  std::optional<std::uint64_t> warned;  // said above info
};

struct FoundLabel {
  Label label;
  std::uint64_t first = 0, last = 0, latest = 0;  // points
  std::int64_t step = 0;
  bool found = false;
  bool late = false;                       // found, but behind the latest point; counts as missed
  std::optional<std::int64_t> delay_steps;  // of what was found, late or not
};

struct FalseDetection {
  Detection detection;
  std::int64_t step = 0;
};

struct Score {
  std::uint64_t points = 0;
  std::vector<FoundLabel> labels;  // those that are scored: not the ambiguous ones, no restarts
  std::vector<FalseDetection> false_detections;
  std::vector<Detection> others;  // above info, of conditions that no label knows
  std::uint64_t Labelled(LabelKind kind) const;
  std::uint64_t Found(LabelKind kind) const;
};

struct PointPlace {
  std::uint32_t attempt = 0;
  std::int64_t step = 0;
};

// `points` by their numbers; `detections` in any order.
Score MakeScore(const std::vector<PointPlace>& points, const std::vector<Label>& labels, const std::vector<Detection>& detections);

struct LogScore {
  std::string file;
  std::string format;
  LogReport report;
  Score ours;
  std::vector<Score> rules;  // as MakePublicRules
  state::Action worst = state::Action::kUnknown;
  std::string worst_reason;
  std::int64_t worst_step = 0;
  std::vector<std::string> right_verdicts;
  bool verdict_right = true;       // true where none is labelled
  bool wrong_restart = false;      // RESTART or HALT where the label allows none, or before anything that deserves it had begun
  std::string wrong_restart_text;  // where and why
};

// Reads and replays one log. An error names the file.
absl::StatusOr<LogScore> ScoreLog(const std::string& path, const LabelledLog& labelled, const detect::PolicySet& policies);

struct Totals {
  std::uint64_t points = 0;
  std::uint64_t spikes = 0, spikes_found = 0;
  std::uint64_t damages = 0, damages_found = 0;  // divergence, collapse, NaN
  std::uint64_t gradients = 0, gradients_found = 0;
  std::uint64_t false_detections = 0;
  std::uint64_t verdicts = 0, verdicts_right = 0, wrong_restarts = 0;
  std::vector<std::int64_t> delays;  // of spikes, divergences, collapses and NaN, sorted

  double FalsePer10k() const { return points == 0 ? 0 : 1e4 * static_cast<double>(false_detections) / static_cast<double>(points); }
};
void Add(const Score& score, Totals* totals);
Totals Total(const std::vector<LogScore>& scores);                          // ours
Totals TotalOfRule(const std::vector<LogScore>& scores, std::size_t rule);  // no verdicts

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_TESTS_REPLAY_SCORING_H_
