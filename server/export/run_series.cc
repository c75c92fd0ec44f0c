#include "server/export/run_series.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "server/export/counter_series.h"
#include "server/export/label_text.h"
#include "server/state/current_verdict.h"
#include "server/state/kinds.h"

namespace lossgauge::export_ {
namespace {

using state::Condition;

constexpr std::size_t kConditions = static_cast<std::size_t>(Condition::kCount);
constexpr std::size_t kMaxReasons = 16;  // bounds what a verdict can add to the page
constexpr state::Action kActions[] = {state::Action::kContinue, state::Action::kWatch, state::Action::kRestart, state::Action::kHalt,
                                      state::Action::kUnknown};
constexpr state::Severity kSeverities[] = {state::Severity::kInfo, state::Severity::kWarning, state::Severity::kCritical};
constexpr std::string_view kPhases[] = {"train", "warm_up", "evaluation", "checkpoint", "data_loading", "other"};
constexpr std::string_view kOther = "other";  // a kind outside the closed set still counts, under one name

double Seconds(state::TimeNs time_ns) { return static_cast<double>(time_ns) * 1e-9; }

template <typename T>
std::optional<double> Number(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return static_cast<double>(*value);
}

// Values by label of a closed set, all present at 0.
class ByLabel {
 public:
  template <typename Labels>
  void Declare(const Labels& labels) {
    for (const std::string_view label : labels) values_[std::string(label)] = 0;
  }
  void Count(const std::string& label, double amount) {
    const auto it = values_.find(label);
    if (it != values_.end()) {
      it->second += amount;
    } else {
      values_[std::string(kOther)] += amount;
    }
  }
  void Add(Metric metric, std::string_view run, FamilyBuilder& page) const {
    for (const auto& [label, value] : values_) page.Add(metric, {run, label}, value);
  }

 private:
  std::map<std::string, double> values_;
};

bool IsMismatch(Condition condition) { return condition == Condition::kIntegrity || condition == Condition::kAccounting; }

ByLabel MismatchKinds() {
  ByLabel kinds;
  kinds.Declare(state::kIntegrityKinds);
  kinds.Declare(state::kAccountingKinds);
  return kinds;
}

void AddVerdict(std::string_view label, const state::RunSnapshot& run, state::TimeNs now_ns, FamilyBuilder& page) {
  const state::Verdict verdict = state::CurrentVerdict(run, now_ns);
  for (const state::Action action : kActions) {
    page.Add(Metric::kVerdict, {label, state::ActionName(action)}, verdict.action == action ? 1.0 : 0.0);
  }
  std::set<std::string> reasons;  // a code named twice would be a duplicate series
  for (const std::string& code : verdict.reason_codes) {
    if (reasons.size() < kMaxReasons && reasons.insert(LabelText(code)).second) {
      page.Add(Metric::kVerdictReason, {label, state::ActionName(verdict.action), LabelText(code)}, 1.0);
    }
  }
  page.Add(Metric::kVerdictChanges, {label}, static_cast<double>(run.verdict_changes));
  // The judge's own: they tell how long it has been silent.
  if (run.verdict.evaluated_at_ns > 0) page.Add(Metric::kVerdictEvaluated, {label}, Seconds(run.verdict.evaluated_at_ns));
  if (run.verdict.valid_until_ns > 0) page.Add(Metric::kVerdictValidUntil, {label}, Seconds(run.verdict.valid_until_ns));
  if (verdict.since_ns) page.Add(Metric::kVerdictSince, {label}, Seconds(*verdict.since_ns));
}

void AddIncidents(std::string_view label, const state::RunSnapshot& run, FamilyBuilder& page) {
  std::array<std::array<double, std::size(kSeverities)>, kConditions> open{};
  double hidden = 0;
  ByLabel open_mismatches = MismatchKinds();
  for (const state::Incident& incident : run.incidents) {
    const auto condition = static_cast<std::size_t>(incident.condition);
    if (run.ended || !incident.open || condition >= kConditions) continue;
    if (!incident.hidden_by.empty()) {
      ++hidden;
      continue;
    }
    const auto severity = std::find(std::begin(kSeverities), std::end(kSeverities), incident.severity) - std::begin(kSeverities);
    if (severity < std::ssize(kSeverities)) ++open[condition][static_cast<std::size_t>(severity)];
    if (IsMismatch(incident.condition)) open_mismatches.Count(incident.kind, 1);
  }
  for (std::size_t c = 0; c < kConditions; ++c) {
    for (std::size_t s = 0; s < std::size(kSeverities); ++s) {
      page.Add(Metric::kIncidentsOpen, {label, state::ConditionName(static_cast<Condition>(c)), state::SeverityName(kSeverities[s])},
               open[c][s]);
    }
  }
  page.Add(Metric::kIncidentsHidden, {label}, hidden);
  open_mismatches.Add(Metric::kMismatchesOpen, label, page);

  std::array<double, kConditions> opened{};
  ByLabel spikes;
  spikes.Declare(state::kSpikeCauses);
  ByLabel mismatches = MismatchKinds();
  for (const auto& entry : run.incident_counters.incidents) {
    const auto condition = static_cast<std::size_t>(entry.condition);
    if (condition >= kConditions) continue;
    const double count = static_cast<double>(entry.opened);
    opened[condition] += count;
    if (entry.condition == Condition::kLossSpike) spikes.Count(entry.kind, count);
    if (IsMismatch(entry.condition)) mismatches.Count(entry.kind, count);
  }
  for (std::size_t c = 0; c < kConditions; ++c) {
    page.Add(Metric::kIncidents, {label, state::ConditionName(static_cast<Condition>(c))}, opened[c]);
  }
  spikes.Add(Metric::kSpikes, label, page);
  mismatches.Add(Metric::kMismatches, label, page);
}

const char* ReductionName(std::uint32_t reduction) {
  switch (reduction) {
    case LG_GRADIENT_REDUCTION_SUM: return "sum";
    case LG_GRADIENT_REDUCTION_MEAN: return "mean";
    default: return "unknown";
  }
}

void AddLastStep(std::string_view label, const state::StepSummary& step, FamilyBuilder& page) {
  page.Add(Metric::kRunStep, {label}, static_cast<double>(step.step));
  page.Add(Metric::kRunLoss, {label}, step.loss_nats);
  page.Add(Metric::kRunPerplexity, {label}, step.perplexity);
  page.Add(Metric::kRunBitsPerByte, {label}, step.bits_per_byte);
  page.Add(Metric::kRunObjective, {label}, step.objective_nats);
  page.Add(Metric::kRunZLoss, {label}, step.z_loss_nats);
  page.Add(Metric::kRunReportedLoss, {label}, step.reported_loss_nats);
  page.Add(Metric::kRunAccuracy, {label}, step.accuracy);
  page.Add(Metric::kRunGradNorm, {label}, step.grad_norm);
  page.Add(Metric::kRunLogitGradNorm, {label}, step.logit_grad_norm);
  page.Add(Metric::kRunHiddenGradNorm, {label}, step.hidden_grad_norm);
  page.Add(Metric::kRunHeadGradNorm, {label}, step.head_grad_norm);
  page.Add(Metric::kRunMaxAbsLogit, {label}, step.max_abs_logit);
  page.Add(Metric::kRunLogZ, {label}, step.log_z_mean_nats);
  page.Add(Metric::kRunLogZMax, {label}, step.log_z_max_nats);
  page.Add(Metric::kRunLearningRate, {label}, step.learning_rate);
  page.Add(Metric::kRunStepSeconds, {label}, step.step_seconds);
  page.Add(Metric::kRunStepTokens, {label}, static_cast<double>(step.tokens));
  page.Add(Metric::kRunStepUnmaskedTokens, {label}, static_cast<double>(step.unmasked_tokens));
  page.Add(Metric::kRunMissingRanks, {label}, static_cast<double>(step.missing_ranks.size()));
  if (step.receive_time_ns > 0) page.Add(Metric::kRunLastStepTime, {label}, Seconds(step.receive_time_ns));
}

// The last loss of processes that are all gone would look like the loss of now.
bool AnyProducerUp(const state::RunSnapshot& run) {
  return run.any_left_out_up || std::any_of(run.ranks.begin(), run.ranks.end(), [](const state::RankView& rank) {
    return rank.liveness.producer_state == state::ProducerState::kLive || rank.liveness.producer_state == state::ProducerState::kFrozen;
  });
}

void AddLiveSeries(std::string_view label, const state::RunSnapshot& run, FamilyBuilder& page) {
  page.Add(Metric::kRunWorldSize, {label}, static_cast<double>(run.layout.world_size));
  page.Add(Metric::kRunUnreachableRanks, {label}, static_cast<double>(run.unreachable_ranks));
  page.Add(Metric::kRunRanks, {label}, static_cast<double>(run.ranks.size() + run.ranks_left_out));
  page.Add(Metric::kRunAttempts, {label}, static_cast<double>(run.attempts.size()));
  const bool known = std::find(std::begin(kPhases), std::end(kPhases), run.phase) != std::end(kPhases);
  for (const std::string_view phase : kPhases) {
    page.Add(Metric::kRunPhase, {label, phase}, phase == (known ? std::string_view(run.phase) : kOther) ? 1.0 : 0.0);
  }
  if (run.last_checkpoint) page.Add(Metric::kRunCheckpointStep, {label}, static_cast<double>(run.last_checkpoint->step));
  page.Add(Metric::kRunEvaluationLoss, {label}, run.evaluation_loss_nats);
  page.Add(Metric::kRunEvaluationStep, {label}, Number(run.evaluation_step));
  if (run.layout.vocab_size > 0) page.Add(Metric::kRunVocabSize, {label}, static_cast<double>(run.layout.vocab_size));
  if (!AnyProducerUp(run)) return;
  if (run.last_step) AddLastStep(label, *run.last_step, page);
  page.Add(Metric::kRunMaxLoss, {label}, run.max_60s.loss_nats);
  page.Add(Metric::kRunMaxGradNorm, {label}, run.max_60s.grad_norm);
  page.Add(Metric::kRunMaxAbsLogit60, {label}, run.max_60s.max_abs_logit);
  page.Add(Metric::kRunMaxLogZ, {label}, run.max_60s.log_z_max_nats);
  page.Add(Metric::kRunMaxStepSeconds, {label}, run.max_60s.step_seconds);
}

}  // namespace

void AddRunSeries(std::string_view run_label, const state::RunSnapshot& run, state::TimeNs now_ns, FamilyBuilder& page) {
  AddRunCounters(run_label, run.totals, page);
  AddVerdict(run_label, run, now_ns, page);
  AddIncidents(run_label, run, page);
  page.Add(Metric::kRunInfo, {run_label, run.mode == "shadow" ? "shadow" : "advise", ReductionName(run.layout.gradient_reduction)}, 1.0);
  page.Add(Metric::kRunActive, {run_label}, run.ended ? 0.0 : 1.0);
  page.Add(Metric::kRunShadow, {run_label}, run.mode == "shadow" ? 1.0 : 0.0);
  if (run.ended && run.ended_time_ns > 0) page.Add(Metric::kRunEnded, {run_label}, Seconds(run.ended_time_ns));
  if (run.first_seen_ns > 0) page.Add(Metric::kRunFirstSeen, {run_label}, Seconds(run.first_seen_ns));
  if (!run.ended) AddLiveSeries(run_label, run, page);
}

}  // namespace lossgauge::export_
