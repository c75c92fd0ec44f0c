#include "server/detect/factor_incident.h"

#include "server/detect/verdict_words.h"

namespace lossgauge::detect {
namespace {

// The loss follows a gradient norm within about ten steps or not at all.
constexpr std::int32_t kCloseSteps = 10;
constexpr std::int32_t kSparseCloseSteps = 3;  // points of a log of every tenth step or fewer: each says nothing of the next

}  // namespace

void FactorIncident::OnQuiet(const Names& names, const Moment& moment, std::int64_t interval_steps, IncidentBook& book) {
  const state::Incident* open = book.FindOpen(names.slot);
  if (open != nullptr && ++clean_ >= (interval_steps > 1 ? kSparseCloseSteps : kCloseSteps)) book.Resolve(names.slot, moment, open->last_step - onset_step_ + 1);
}

Finding FactorIncident::OnHigh(const Names& names, double value, double factor, const Moment& moment, const IncidentBook& book) {
  const state::Incident* open = book.FindOpen(names.slot);
  clean_ = 0;
  if (open == nullptr) onset_step_ = moment.step;
  Finding finding;
  finding.condition = names.slot.condition;
  finding.onset_step = onset_step_;
  finding.peak_step = moment.step;
  double peak = value;
  if (open != nullptr && !open->evidence.empty() && open->evidence[0].value > value) {
    peak = open->evidence[0].value;
    finding.peak_step = open->peak_step;
  }
  finding.evidence = {{names.peak, peak, "", ""}, {names.value, value, "", TimesUsual(factor)}};
  return finding;
}

void FactorIncident::Save(StateWriter& out) const {
  out.Put(onset_step_);
  out.Put(clean_);
}

void FactorIncident::Restore(StateReader& in) {
  onset_step_ = in.GetStep();
  clean_ = in.GetIn<std::int32_t>(0, 1 << 30);
}

}  // namespace lossgauge::detect
