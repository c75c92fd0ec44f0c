#include "server/detect/logit_blowup.h"

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr FactorIncident::Names kNames{{state::Condition::kLogitBlowup}, "max_abs_logit", "peak_max_abs_logit"};

}  // namespace

void LogitBlowupDetector::Look(StepSignals& signals, const Policy& policy) {
  if (!signals.max_abs_logit) return;
  const FactorWatch::Result result =
      watch_.OnValue(*signals.max_abs_logit, policy.logit_deviations, policy.logit_factor, static_cast<int>(policy.loss_baseline_steps));
  signals.logit_factor = result.factor;
  signals.logit_high = result.high;
}

void LogitBlowupDetector::Report(const StepSignals& signals, bool loss_explains, IncidentBook& book) {
  if (!signals.logit_high) return incident_.OnQuiet(kNames, signals.moment, signals.interval_steps, book);
  const state::Incident* open = book.FindOpen(kNames.slot);
  if (loss_explains && open == nullptr) return;
  Finding finding = incident_.OnHigh(kNames, *signals.max_abs_logit, signals.logit_factor, signals.moment, book);
  finding.summary =
      absl::StrFormat("max|z| %.4g at step %d, %.1f times its usual value", *signals.max_abs_logit, signals.moment.step, signals.logit_factor);
  if (signals.joined->summary.worst_logit) {
    const state::Place& place = *signals.joined->summary.worst_logit;
    finding.rank = open == nullptr ? place.rank : open->rank;  // the first to rise: that of now would change the verdict at every step
    finding.evidence.push_back({"worst_logit", place.value, "", absl::StrFormat("rank %d, position %d, column %d", place.rank, place.position, place.token)});
  }
  book.Report(kNames.slot, std::move(finding), signals.moment);
}

void LogitBlowupDetector::Save(StateWriter& out) const {
  watch_.Save(out);
  incident_.Save(out);
}

void LogitBlowupDetector::Restore(StateReader& in) {
  watch_.Restore(in);
  incident_.Restore(in);
}

}  // namespace lossgauge::detect
