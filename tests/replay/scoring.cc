#include "tests/replay/scoring.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replay/attempt_names.h"
#include "server/replay/read_log.h"
#include "server/replay/replay.h"
#include "tests/replay/public_rules.h"

namespace lossgauge::replay {
namespace {

constexpr std::uint64_t kLead = 10;
constexpr std::uint64_t kEcho = 30;

// The library's own view is not std's here.
absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

bool IsOfLoss(LabelKind kind) {
  return kind == LabelKind::kSpike || kind == LabelKind::kDivergence || kind == LabelKind::kCollapse || kind == LabelKind::kNonfinite;
}
bool IsDamage(LabelKind kind) { return IsOfLoss(kind) && kind != LabelKind::kSpike; }

std::uint64_t Before(std::uint64_t point, std::uint64_t distance) { return point - std::min(point, distance); }

// The first point at or behind a step, in the first attempt that reaches it.
std::uint64_t PointAt(const std::vector<PointPlace>& points, std::int64_t step) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const PointPlace& point) { return point.step >= step; });
  return static_cast<std::uint64_t>((found == points.end() ? points.end() - 1 : found) - points.begin());
}

// The last point at or before a step.
std::uint64_t PointUpTo(const std::vector<PointPlace>& points, std::int64_t step) {
  const std::uint64_t at = PointAt(points, step);
  return points[at].step > step && at > 0 ? at - 1 : at;
}

FoundLabel Locate(const std::vector<PointPlace>& points, const Label& label) {
  FoundLabel found;
  found.label = label;
  const bool steps_repeat = points.back().attempt != points.front().attempt;
  if (steps_repeat && label.first_point && *label.last_point < points.size()) {
    found.first = *label.first_point;
    found.last = *label.last_point;
    found.latest = found.last;
    if (label.latest) {
      const std::uint32_t attempt = points[found.first].attempt;
      found.latest = found.first;
      while (found.latest + 1 < points.size() && points[found.latest + 1].attempt == attempt && points[found.latest + 1].step <= label.latest->value) {
        ++found.latest;
      }
    }
  } else {
    const std::uint64_t end = points.size() - 1;
    const auto at = [&](const LogPlace& place, bool up_to) {
      if (place.is_index) return std::min<std::uint64_t>(end, static_cast<std::uint64_t>(std::max<std::int64_t>(0, place.value)));
      return up_to ? PointUpTo(points, place.value) : PointAt(points, place.value);
    };
    found.first = at(label.onset, false);
    found.last = std::max(found.first, at(label.end, true));
    found.latest = label.latest ? at(*label.latest, true) : found.last;
  }
  found.step = points[found.first].step;
  return found;
}

// Where trouble of the loss began that reaches up to this label without a long pause.
std::uint64_t StretchBegin(const std::vector<FoundLabel>& located, const FoundLabel& label) {
  std::uint64_t begin = label.first;
  for (bool grew = true; grew;) {
    grew = false;
    for (const FoundLabel& other : located) {
      if (IsOfLoss(other.label.kind) && other.first < begin && other.last + kEcho >= begin) {
        begin = other.first;
        grew = true;
      }
    }
  }
  return begin;
}

bool CanFind(const Detection& detection, LabelKind kind) {
  switch (kind) {
    case LabelKind::kNonfinite: return detection.kind == DetectionKind::kNonfinite;
    case LabelKind::kGradExplosion: return detection.kind == DetectionKind::kGradient || detection.kind == DetectionKind::kLoss;
    default: return detection.kind == DetectionKind::kLoss || (IsDamage(kind) && detection.kind == DetectionKind::kNonfinite);
  }
}

bool Excuses(const FoundLabel& label, const Detection& detection) {
  if (label.label.kind == LabelKind::kRestart && !label.label.ambiguous) return false;
  if (detection.kind != DetectionKind::kGradient && !IsOfLoss(label.label.kind) && !label.label.ambiguous) return false;
  return detection.onset >= Before(label.first, kLead) && detection.onset <= label.last + kEcho;
}

void Find(const std::vector<PointPlace>& points, const std::vector<FoundLabel>& located, const std::vector<Detection>& detections, FoundLabel* label) {
  const std::uint64_t from = Before(IsOfLoss(label->label.kind) ? StretchBegin(located, *label) : label->first, kLead);
  std::optional<std::uint64_t> earliest;
  for (const Detection& detection : detections) {
    if (!detection.warned || !CanFind(detection, label->label.kind)) continue;
    if (detection.onset < from || detection.onset > label->last || detection.last < Before(label->first, kLead)) continue;
    if (!earliest || *detection.warned < *earliest) earliest = detection.warned;
  }
  if (!earliest) return;
  label->found = *earliest <= label->latest;
  label->late = !label->found;
  // One that was said before this label began had begun for another.
  label->delay_steps = *earliest < Before(label->first, kLead) ? 0 : points[*earliest].step - label->step;
}

// Points of a log on their way to a replay, and the public rules beside it.
class Observer final : public LogSink {
 public:
  Observer(Replay* replay, std::vector<std::unique_ptr<PublicRule>> rules) : replay_(replay), rules_(std::move(rules)), flagged_(rules_.size()) {}

  void OnPoint(const LogPoint& point) override {
    if (!points.empty() && points.back().attempt != point.attempt) {
      for (auto& rule : rules_) rule->BeginAttempt();
    }
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (rules_[i]->Flags(point)) Flag(point.index, rules_[i]->name(), &flagged_[i]);
    }
    if (points.empty() || points.back().attempt != point.attempt) attempt_ = names_.Name(point);
    points.push_back({point.attempt, point.step});
    by_attempt[attempt_].emplace_back(point.step, point.index);
    replay_->OnPoint(point);
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { replay_->OnEvaluation(evaluation); }
  void OnCheckpoint(const LogCheckpoint& checkpoint) override { replay_->OnCheckpoint(checkpoint); }

  const std::vector<std::vector<Detection>>& flagged() const { return flagged_; }
  // Of a step as an incident names it.
  std::uint64_t Find(const std::string& attempt, std::int64_t step, bool up_to) const {
    const auto found = by_attempt.find(attempt);
    if (found == by_attempt.end()) return 0;
    const auto& steps = found->second;
    auto at = std::lower_bound(steps.begin(), steps.end(), std::make_pair(step, std::uint64_t{0}));
    if (at == steps.end() || (up_to && at->first > step && at != steps.begin())) --at;
    return at->second;
  }

  std::vector<PointPlace> points;
  std::map<std::string, std::vector<std::pair<std::int64_t, std::uint64_t>>> by_attempt;  // step, point

 private:
  // Flags no more than 30 points apart are one detection, as an episode of ours is.
  static void Flag(std::uint64_t point, const std::string& name, std::vector<Detection>* flagged) {
    if (flagged->empty() || flagged->back().last + kEcho < point) {
      Detection detection;
      detection.what = name;
      detection.onset = point;
      detection.warned = point;
      flagged->push_back(detection);
    }
    flagged->back().last = point;
  }

  Replay* const replay_;
  AttemptNames names_;  // as the replay's
  std::string attempt_;
  std::vector<std::unique_ptr<PublicRule>> rules_;
  std::vector<std::vector<Detection>> flagged_;
};

DetectionKind KindOf(state::Condition condition) {
  switch (condition) {
    case state::Condition::kLossSpike:
    case state::Condition::kBlip:
    case state::Condition::kLevelShift:
    case state::Condition::kDivergence:
    case state::Condition::kLossCollapse: return DetectionKind::kLoss;
    case state::Condition::kNonfinite: return DetectionKind::kNonfinite;
    case state::Condition::kGradExplosion:
    case state::Condition::kLogitBlowup: return DetectionKind::kGradient;
    default: return DetectionKind::kOther;
  }
}

Detection ToDetection(const IncidentLife& life, const Observer& observer) {
  const state::Incident& incident = life.incident;
  Detection detection;
  detection.kind = KindOf(incident.condition);
  detection.what = absl::StrCat(Text(state::ConditionName(incident.condition)), " (", Text(state::SeverityName(life.worst)), "): ", incident.summary);
  detection.onset = observer.Find(incident.attempt, incident.onset_step, false);
  detection.last = std::max(detection.onset, observer.Find(incident.attempt, incident.last_step, true));
  if (life.warned) detection.warned = life.warned->point;
  return detection;
}

bool IsDrastic(state::Action action) { return action == state::Action::kRestart || action == state::Action::kHalt; }

void ScoreVerdicts(const ReplayResult& result, const LabelledLog& labelled, const std::vector<PointPlace>& points, LogScore* score) {
  score->worst = result.worst;
  score->right_verdicts = labelled.verdicts;
  for (const VerdictChange& change : result.verdicts) {
    if (change.verdict.action != result.worst) continue;
    score->worst_reason = change.verdict.reason;
    score->worst_step = change.at.step;
    break;
  }
  const auto allows = [&](std::string_view name) { return std::find(labelled.verdicts.begin(), labelled.verdicts.end(), name) != labelled.verdicts.end(); };
  if (!labelled.verdicts.empty()) {
    // A log too short to be judged: nothing was said, and nothing had to be.
    const bool silent = result.worst == state::Action::kUnknown && allows("CONTINUE");
    score->verdict_right = silent || allows(std::string_view(state::ActionName(result.worst)));
  }
  std::uint64_t earliest = points.size();  // from here on something deserves a drastic word
  for (const Label& label : labelled.labels) {
    if (IsDamage(label.kind) || (label.ambiguous && label.kind == LabelKind::kSpike)) earliest = std::min(earliest, Before(Locate(points, label).first, kLead));
  }
  const bool none_is_right = labelled.verdicts.empty() ? labelled.clean : !allows("RESTART") && !allows("HALT");
  for (const VerdictChange& change : result.verdicts) {
    if (!IsDrastic(change.verdict.action)) continue;
    if (!none_is_right && (labelled.verdicts.empty() || change.at.point >= earliest)) continue;
    score->wrong_restart = true;
    score->wrong_restart_text = absl::StrCat(Text(state::ActionName(change.verdict.action)), " at step ", change.at.step, ": ", change.verdict.reason);
    break;
  }
}

}  // namespace

std::uint64_t Score::Labelled(LabelKind kind) const {
  return static_cast<std::uint64_t>(std::count_if(labels.begin(), labels.end(), [&](const FoundLabel& one) { return one.label.kind == kind; }));
}
std::uint64_t Score::Found(LabelKind kind) const {
  return static_cast<std::uint64_t>(
      std::count_if(labels.begin(), labels.end(), [&](const FoundLabel& one) { return one.label.kind == kind && one.found; }));
}

Score MakeScore(const std::vector<PointPlace>& points, const std::vector<Label>& labels, const std::vector<Detection>& detections) {
  Score score;
  score.points = points.size();
  if (points.empty()) return score;
  std::vector<FoundLabel> located;
  for (const Label& label : labels) located.push_back(Locate(points, label));
  for (FoundLabel label : located) {
    if (label.label.ambiguous || label.label.kind == LabelKind::kRestart) continue;
    Find(points, located, detections, &label);
    score.labels.push_back(std::move(label));
  }
  for (const Detection& detection : detections) {
    if (!detection.warned) continue;
    if (detection.kind == DetectionKind::kOther) {
      score.others.push_back(detection);
      continue;
    }
    const bool excused = std::any_of(located.begin(), located.end(), [&](const FoundLabel& label) { return Excuses(label, detection); });
    if (!excused) score.false_detections.push_back({detection, points[std::min<std::uint64_t>(detection.onset, points.size() - 1)].step});
  }
  return score;
}

absl::StatusOr<LogScore> ScoreLog(const std::string& path, const LabelledLog& labelled, const detect::PolicySet& policies) {
  LogScore score;
  score.file = std::filesystem::path(path).filename().string();
  Replay replay(score.file, policies);
  Observer observer(&replay, MakePublicRules());
  auto report = ReadLogFile(path, &observer);
  if (!report.ok()) return report.status();
  if (!report->read_error.empty()) return absl::DataLossError(report->read_error);
  score.report = *report;
  score.format = report->format;
  const ReplayResult result = replay.Finish();
  if (observer.points.empty()) return absl::FailedPreconditionError(absl::StrCat(path, ": no points"));

  std::vector<Detection> detections;
  for (const IncidentLife& life : result.incidents) detections.push_back(ToDetection(life, observer));
  score.ours = MakeScore(observer.points, labelled.labels, detections);
  for (const std::vector<Detection>& flagged : observer.flagged()) score.rules.push_back(MakeScore(observer.points, labelled.labels, flagged));
  ScoreVerdicts(result, labelled, observer.points, &score);
  return score;
}

void Add(const Score& score, Totals* totals) {
  totals->points += score.points;
  totals->false_detections += score.false_detections.size();
  for (const FoundLabel& label : score.labels) {
    const std::uint64_t found = label.found ? 1 : 0;
    switch (label.label.kind) {
      case LabelKind::kSpike: ++totals->spikes, totals->spikes_found += found; break;
      case LabelKind::kDivergence:
      case LabelKind::kCollapse:
      case LabelKind::kNonfinite: ++totals->damages, totals->damages_found += found; break;
      case LabelKind::kGradExplosion: ++totals->gradients, totals->gradients_found += found; break;
      case LabelKind::kBlip:
      case LabelKind::kRestart: break;
    }
    if (IsOfLoss(label.label.kind) && label.delay_steps) totals->delays.push_back(*label.delay_steps);
  }
  std::sort(totals->delays.begin(), totals->delays.end());
}

Totals Total(const std::vector<LogScore>& scores) {
  Totals totals;
  for (const LogScore& score : scores) {
    Add(score.ours, &totals);
    if (!score.right_verdicts.empty()) {
      ++totals.verdicts;
      totals.verdicts_right += score.verdict_right ? 1 : 0;
    }
    totals.wrong_restarts += score.wrong_restart ? 1 : 0;
  }
  return totals;
}

Totals TotalOfRule(const std::vector<LogScore>& scores, std::size_t rule) {
  Totals totals;
  for (const LogScore& score : scores) Add(score.rules[rule], &totals);
  return totals;
}

}  // namespace lossgauge::replay
