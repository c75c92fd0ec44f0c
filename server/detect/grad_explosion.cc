#include "server/detect/grad_explosion.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr FactorIncident::Names kNames{{state::Condition::kGradExplosion}, "grad_norm", "peak_grad_norm"};
constexpr int kMinimum = 16;  // values that make a median; early enough for an instability of the warm-up
constexpr std::int32_t kReseatAfter = 64;
constexpr std::int32_t kUnheededPoints = 1000;
constexpr double kUnheededMargin = 1.5;

}  // namespace

void GradExplosionDetector::Look(StepSignals& signals, const Policy& policy) {
  if (!signals.grad_norm) return;
  const double log_value = std::log(*signals.grad_norm);
  const double above = log_value - logs_.Median();
  const double deviation = std::max(logs_.RobustDeviation(), 1e-6);
  const bool large = logs_.size() >= kMinimum && above >= std::log(policy.grad_large_factor) && above >= policy.grad_large_deviations * deviation;
  const FactorWatch::Result result =
      watch_.OnValue(*signals.grad_norm, policy.grad_deviations, policy.grad_factor, static_cast<int>(policy.loss_baseline_steps));
  if (unheeded_points_ < kUnheededPoints) {
    ++unheeded_points_;
  } else {
    unheeded_factor_ = 0;
  }
  // Where one step of many is seen, a lead of a few steps cannot be: the early rule would only find the tail of the distribution.
  signals.grad_high = large || (result.high && signals.interval_steps == 1 && result.factor >= kUnheededMargin * unheeded_factor_);
  signals.grad_factor = large ? std::exp(std::min(above, 600.0)) : result.factor;
  signals.grad_large = large;
  if (!signals.grad_high || ++high_run_ >= kReseatAfter) {
    if (!signals.grad_high) high_run_ = 0;
    logs_.Add(log_value);
  }
}

void GradExplosionDetector::Report(const StepSignals& signals, bool loss_explains, IncidentBook& book) {
  const bool open = book.FindOpen(kNames.slot) != nullptr;
  followed_ = open && (followed_ || loss_explains);
  if (!signals.grad_high) {
    incident_.OnQuiet(kNames, signals.moment, signals.interval_steps, book);
    if (open && book.FindOpen(kNames.slot) == nullptr && !followed_) {
      unheeded_factor_ = peak_factor_;
      unheeded_points_ = 0;
    }
    return;
  }
  if (loss_explains && !open) return;
  peak_factor_ = open ? std::max(peak_factor_, signals.grad_factor) : signals.grad_factor;
  Finding finding = incident_.OnHigh(kNames, *signals.grad_norm, signals.grad_factor, signals.moment, book);
  finding.summary = absl::StrFormat("Gradient norm %.4g at step %d, %.1f times its usual value; the loss often follows within ten steps",
                                    *signals.grad_norm, signals.moment.step, signals.grad_factor);
  book.Report(kNames.slot, std::move(finding), signals.moment);
}

void GradExplosionDetector::Save(StateWriter& out) const {
  watch_.Save(out);
  logs_.Save(out);
  out.Put(high_run_);
  out.Put(unheeded_factor_);
  out.Put(unheeded_points_);
  out.Put(peak_factor_);
  out.Put<std::uint8_t>(followed_);
  incident_.Save(out);
}

void GradExplosionDetector::Restore(StateReader& in) {
  watch_.Restore(in);
  logs_.Restore(in);
  high_run_ = in.GetIn<std::int32_t>(0, 1 << 30);
  unheeded_factor_ = in.GetFinite();
  unheeded_points_ = in.GetIn<std::int32_t>(0, kUnheededPoints);
  peak_factor_ = in.GetFinite();
  followed_ = in.GetBool();
  incident_.Restore(in);
}

}  // namespace lossgauge::detect
