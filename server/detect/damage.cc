#include "server/detect/damage.h"

#include <algorithm>

namespace lossgauge::detect {
namespace {

constexpr std::int32_t kCleanSteps = 30;
constexpr double kLevelSlackNats = 0.25;

}  // namespace

void Damage::OnEnd(const RunFacts& facts) {
  for (const state::Incident* incident : facts.open) {
    if (!DamagesModel(incident->condition) || incident->severity < state::Severity::kWarning) continue;
    if (since_ >= 0 && incident->onset_step >= since_) continue;
    since_ = std::max<std::int64_t>(0, incident->onset_step);
    expected_nats_ = 0;
    for (const state::Evidence& item : incident->evidence) {
      if (item.name == "expected_loss") expected_nats_ = item.value;
    }
  }
  clean_ = 0;
}

void Damage::OnFirstStep(std::int64_t step) {
  clean_ = 0;
  if (step <= since_) since_ = -1;
}

void Damage::OnStep(const StepSignals& signals) {
  if (since_ < 0) return;
  const state::StepSummary& summary = signals.joined->summary;
  const bool finite = signals.loss && summary.nonfinite_rows == 0 && summary.nonfinite_grad_rows == 0;
  const bool at_level = finite && (expected_nats_ == 0 || *signals.loss <= expected_nats_ + kLevelSlackNats);
  clean_ = at_level ? clean_ + 1 : 0;
  if (clean_ >= kCleanSteps) since_ = -1;
}

void Damage::Save(StateWriter& out) const {
  out.Put(since_);
  out.Put(expected_nats_);
  out.Put(clean_);
}

void Damage::Restore(StateReader& in) {
  since_ = in.GetStep();
  expected_nats_ = in.GetFinite();
  clean_ = in.GetIn<std::int32_t>(0, kCleanSteps);
}

}  // namespace lossgauge::detect
