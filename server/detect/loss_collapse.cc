#include "server/detect/loss_collapse.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kLossCollapse};
constexpr int kLow = 5;
constexpr int kZeroLosses = 5;       // an odd batch may be masked whole; five are a broken loss
constexpr int kZeroLossesOfMany = 3; // where the loss was a nat or more just before

}  // namespace

bool LossCollapseDetector::FellOffACliff(const RecentValues& recent, const Policy& policy) {
  if (recent.size() < kLow + 3) return false;
  for (int i = 0; i < kLow; ++i) {
    if (recent.Get(i) > policy.loss_collapse_nats) return false;
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
  if (before < 3) return false;
  from_nats_ = level;
  return true;
}

LossCollapseDetector::Form LossCollapseDetector::Look(const StepSignals& signals, const RecentValues& recent, const Policy& policy) {
  const double loss = *signals.loss;
  const auto& grad = signals.joined->summary.grad_norm;
  const bool learns = grad && std::isfinite(*grad) && *grad > 0;
  negative_ = negative_ || loss < 0;
  if (loss == 0 && !learns) {
    if (zero_losses_++ == 0) zero_step_ = signals.moment.step;
  } else {
    zero_losses_ = 0;
    if (loss > 0) level_nats_ = level_nats_ < 0 ? loss : level_nats_ + 0.25 * (loss - level_nats_);
  }
  if (grad && *grad == 0) {
    if (zero_gradients_++ == 0) zero_gradient_step_ = signals.moment.step;
  } else if (grad) {
    zero_gradients_ = 0;
  }
  if (negative_) return Form::kNone;
  const bool high_before = level_nats_ < 0 || level_nats_ > policy.loss_collapse_nats;
  if (high_before && zero_losses_ >= (level_nats_ >= policy.loss_collapse_from_nats ? kZeroLossesOfMany : kZeroLosses)) return Form::kZeroLoss;
  if (high_before && zero_gradients_ >= policy.collapse_zero_grad_steps) return Form::kZeroGradient;
  return FellOffACliff(recent, policy) ? Form::kCliff : Form::kNone;
}

bool LossCollapseDetector::StillLost(const StepSignals& signals, const Policy& policy) const {
  return form_ == Form::kZeroGradient ? zero_gradients_ > 0 : *signals.loss <= policy.loss_collapse_nats;
}

void LossCollapseDetector::OnStep(const StepSignals& signals, const RecentValues& recent, const Policy& policy, IncidentBook& book) {
  const Form form = Look(signals, recent, policy);
  if (form_ != Form::kNone) {
    clean_ = StillLost(signals, policy) ? 0 : clean_ + 1;
    if (clean_ >= policy.loss_close_steps) {
      book.Resolve(kSlot, signals.moment, signals.moment.step - onset_step_ + 1);
      OnAttempt();
      return;
    }
  } else {
    if (form == Form::kNone) return;
    form_ = form;
    if (form == Form::kZeroLoss) {
      onset_step_ = zero_step_;
      from_nats_ = std::max(0.0, level_nats_);
    } else if (form == Form::kZeroGradient) {
      onset_step_ = zero_gradient_step_;
      from_nats_ = *signals.loss;
    } else {
      onset_step_ = std::max<std::int64_t>(0, signals.moment.step - (kLow - 1) * signals.interval_steps);
    }
    clean_ = 0;
  }
  ReportTo(book, signals);
}

void LossCollapseDetector::ReportTo(IncidentBook& book, const StepSignals& signals) const {
  const double loss = *signals.loss;
  Finding finding;
  finding.condition = state::Condition::kLossCollapse;
  finding.severity = state::Severity::kCritical;
  finding.onset_step = onset_step_;
  finding.peak_step = onset_step_;
  switch (form_) {
    case Form::kZeroLoss:
      finding.summary = absl::StrFormat("Loss stands at exactly 0 since step %d (before: %.3f nats): nothing is scored any more; suspect an "
                                        "overflow that was masked, or labels that are all ignored",
                                        onset_step_, from_nats_);
      break;
    case Form::kZeroGradient:
      finding.summary = absl::StrFormat("Gradient norm is exactly 0 since step %d: nothing is learned (loss %.3f nats); suspect a detached loss, "
                                        "a scale that underflowed, or parameters that are all frozen",
                                        onset_step_, loss);
      break;
    default:
      finding.summary = absl::StrFormat("Loss fell from %.3f to %.4f nats within 16 steps at step %d: nothing learns that fast; "
                                        "suspect targets leaking into the input, or a mask that leaves only trivial tokens",
                                        from_nats_, loss, onset_step_);
  }
  finding.evidence = {{"loss_before", from_nats_, "nats", ""}, {"loss_now", loss, "nats", ""},
                      {"unmasked_tokens", static_cast<double>(signals.joined->summary.unmasked_tokens), "tokens", ""}};
  if (signals.joined->summary.grad_norm) finding.evidence.push_back({"grad_norm", *signals.joined->summary.grad_norm, "", ""});
  book.Report(kSlot, std::move(finding), signals.moment);
}

void LossCollapseDetector::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint8_t>(form_));
  out.Put(from_nats_);
  out.Put(onset_step_);
  out.Put(clean_);
  out.Put(level_nats_);
  out.Put<std::uint8_t>(negative_);
  out.Put(zero_losses_);
  out.Put(zero_gradients_);
  out.Put(zero_step_);
  out.Put(zero_gradient_step_);
}

void LossCollapseDetector::Restore(StateReader& in) {
  constexpr std::int32_t kMax = 1 << 30;
  form_ = static_cast<Form>(in.GetIn<std::uint8_t>(0, static_cast<std::uint8_t>(Form::kZeroGradient)));
  from_nats_ = in.GetFinite();
  onset_step_ = in.GetStep();
  clean_ = in.GetIn<std::int32_t>(0, kMax);
  level_nats_ = in.GetFinite();
  negative_ = in.GetBool();
  zero_losses_ = in.GetIn<std::int32_t>(0, kMax);
  zero_gradients_ = in.GetIn<std::int32_t>(0, kMax);
  zero_step_ = in.GetStep();
  zero_gradient_step_ = in.GetStep();
}

}  // namespace lossgauge::detect
