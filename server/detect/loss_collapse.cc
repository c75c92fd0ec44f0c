#include "server/detect/loss_collapse.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kLossCollapse};
constexpr int kLow = 5;

}  // namespace

void LossCollapseDetector::OnStep(const StepSignals& signals, const RecentValues& recent, const Policy& policy, IncidentBook& book) {
  const double loss = *signals.loss;
  if (open_) {
    clean_ = loss > policy.loss_collapse_nats ? clean_ + 1 : 0;
    if (clean_ >= policy.loss_close_steps) {
      book.Resolve(kSlot, signals.moment, signals.moment.step - onset_step_ + 1);
      OnAttempt();
      return;
    }
  } else {
    if (loss > policy.loss_collapse_nats || recent.size() < kLow + 3) return;
    for (int i = 0; i < kLow; ++i) {
      if (recent.Get(i) > policy.loss_collapse_nats) return;
    }
    // Three values, so that a single odd batch before it does not make a collapse of an overfit run.
    int before = 0;
    double level = 0;
    for (int i = kLow; i < recent.size(); ++i) {
      if (recent.Get(i) >= policy.loss_collapse_from_nats) {
        ++before;
        level = std::max(level, recent.Get(i));
      }
    }
    if (before < 3) return;
    open_ = true;
    from_nats_ = level;
    onset_step_ = std::max<std::int64_t>(0, signals.moment.step - kLow + 1);
    clean_ = 0;
  }
  Finding finding;
  finding.condition = state::Condition::kLossCollapse;
  finding.severity = state::Severity::kCritical;
  finding.onset_step = onset_step_;
  finding.peak_step = onset_step_;
  finding.summary = absl::StrFormat("Loss fell from %.3f to %.4f nats within 16 steps at step %d: nothing learns that fast; "
                                    "suspect targets leaking into the input, or a mask that leaves only trivial tokens",
                                    from_nats_, loss, onset_step_);
  finding.evidence = {{"loss_before", from_nats_, "nats", ""}, {"loss_now", loss, "nats", ""},
                      {"unmasked_tokens", static_cast<double>(signals.joined->summary.unmasked_tokens), "tokens", ""}};
  book.Report(kSlot, std::move(finding), signals.moment);
}

void LossCollapseDetector::Save(StateWriter& out) const {
  out.Put<std::uint8_t>(open_);
  out.Put(from_nats_);
  out.Put(onset_step_);
  out.Put(clean_);
}

void LossCollapseDetector::Restore(StateReader& in) {
  open_ = in.GetBool();
  from_nats_ = in.GetFinite();
  onset_step_ = in.GetStep();
  clean_ = in.GetIn<std::int32_t>(0, 1 << 30);
}

}  // namespace lossgauge::detect
