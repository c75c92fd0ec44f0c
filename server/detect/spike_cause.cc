#include "server/detect/spike_cause.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/verdict_words.h"
#include "server/state/kinds.h"

namespace lossgauge::detect {

namespace {

constexpr std::int64_t kLeadSteps = 16;
constexpr int kLogitLead = 2;  // newest steps among which max|z| explains the loss

// Factors can be beyond a float's range, and a saved state holds finite numbers only.
float ToFloat(double value) { return static_cast<float>(std::clamp(value, 0.0, 1e30)); }

}  // namespace

void SignalTrail::Push(const StepSignals& signals) {
  for (int i = kLength - 1; i > 0; --i) {
    flags_[i] = flags_[i - 1];
    steps_[i] = steps_[i - 1];
    logits_[i] = logits_[i - 1];
    learning_rate_factors_[i] = learning_rate_factors_[i - 1];
  }
  logits_[0] = {ToFloat(signals.max_abs_logit.value_or(0)), ToFloat(signals.logit_factor)};
  steps_[0] = signals.moment.step;
  learning_rate_factors_[0] = ToFloat(signals.learning_rate_factor);
  flags_[0] = static_cast<std::uint8_t>((signals.grad_high ? kGrad : 0) | (signals.logit_high ? kLogit : 0) |
                                        (signals.learning_rate_factor >= 2 ? kLearningRate : 0));
  if (size_ < kLength) ++size_;
}

bool SignalTrail::GradLed() const {
  int high = 0;
  for (int i = 1; i < size_; ++i) {
    if (!(flags_[i] & kGrad) || steps_[0] - steps_[i] > kLeadSteps) continue;
    if (i == 1) return true;
    ++high;
  }
  return high >= 2;
}

bool SignalTrail::LearningRateJumped() const {
  for (int i = 0; i < size_; ++i) {
    if (flags_[i] & kLearningRate) return true;
  }
  return false;
}

bool SignalTrail::LogitHigh(int steps) const {
  for (int i = 0; i < size_ && i < steps; ++i) {
    if (flags_[i] & kLogit) return true;
  }
  return false;
}

SignalTrail::Logit SignalTrail::LargestLogit(int steps) const {
  Logit largest;
  for (int i = 0; i < size_ && i < steps; ++i) {
    if (logits_[i].factor > largest.factor) largest = logits_[i];
  }
  return largest;
}

double SignalTrail::LargestLearningRateFactor() const {
  return size_ == 0 ? 0 : *std::max_element(learning_rate_factors_.begin(), learning_rate_factors_.begin() + size_);
}

void SignalTrail::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint8_t>(size_));
  for (int i = 0; i < size_; ++i) {
    out.Put(flags_[i]);
    out.Put(steps_[i]);
    out.Put(logits_[i].max_abs);
    out.Put(logits_[i].factor);
    out.Put(learning_rate_factors_[i]);
  }
}

void SignalTrail::Restore(StateReader& in) {
  size_ = in.GetIn<std::uint8_t>(0, kLength);
  for (int i = 0; i < size_; ++i) {
    flags_[i] = in.GetIn<std::uint8_t>(0, 7);
    steps_[i] = in.GetStep();
    logits_[i].max_abs = in.GetIn<float>(0, 1.1e30f);
    logits_[i].factor = in.GetIn<float>(0, 1.1e30f);
    learning_rate_factors_[i] = in.GetIn<float>(0, 1.1e30f);
  }
}

SpikeCause FindSpikeCause(const StepSignals& signals, const SignalTrail& trail, double center, double threshold) {
  // A learning rate that doubled explains high logits as well.
  if (trail.LearningRateJumped()) return {state::kCauseOptimizer, std::nullopt};
  if (trail.LogitHigh(kLogitLead)) return {state::kCauseLogitBlowup, std::nullopt};
  if (signals.tokens_odd) return {state::kCauseData, std::nullopt};
  const auto& ranks = signals.joined->summary.rank_steps;
  std::optional<std::uint32_t> alone;
  int beyond = 0;
  int with_loss = 0;
  for (const state::RankSummary& rank : ranks) {
    if (!rank.loss_nats) continue;
    ++with_loss;
    if (*rank.loss_nats - center > threshold) {
      ++beyond;
      alone = rank.rank;
    }
  }
  if (with_loss >= 2 && beyond == 1) return {state::kCauseRank, alone};
  if (trail.GradLed()) return {state::kCauseOptimizer, std::nullopt};
  return {state::kCauseUnexplained, std::nullopt};
}

std::string DescribeCause(const SpikeCause& cause, const StepSignals& signals, const SignalTrail& trail) {
  if (cause.cause == state::kCauseLogitBlowup) {
    const SignalTrail::Logit logit = trail.LargestLogit(kLogitLead);
    return absl::StrFormat("max|z| jumped with it (%.3g, %.1f times its usual value)", logit.max_abs, logit.factor);
  }
  if (cause.cause == state::kCauseData) {
    return absl::StrFormat("the step had %.2g times the usual number of unmasked tokens: look at the data or the masking",
                           signals.tokens_factor);
  }
  if (cause.cause == state::kCauseRank) {
    return absl::StrFormat("rank %d alone is high: look at its batch, then at its device", cause.rank.value_or(0));
  }
  if (cause.cause == state::kCauseOptimizer) {
    if (trail.LearningRateJumped()) {
      return absl::StrFormat("the learning rate had just risen %.1f times", trail.LargestLearningRateFactor());
    }
    return "the gradient norm rose first: an optimisation instability";
  }
  return "nothing else in the signals moved before it";
}

void AddPlaces(const StepSignals& signals, std::vector<state::Evidence>& evidence) {
  const state::StepSummary& summary = signals.joined->summary;
  if (signals.grad_norm) evidence.push_back({"grad_norm", *signals.grad_norm, "", TimesUsual(signals.grad_factor)});
  if (signals.max_abs_logit) {
    evidence.push_back({"max_abs_logit", *signals.max_abs_logit, "", TimesUsual(signals.logit_factor)});
  }
  if (summary.worst_row) {
    evidence.push_back({"worst_row", summary.worst_row->value, "nats",
                        absl::StrFormat("rank %d, position %d, target %d", summary.worst_row->rank, summary.worst_row->position,
                                        summary.worst_row->token)});
  }
  if (summary.worst_logit) {
    evidence.push_back({"worst_logit", summary.worst_logit->value, "",
                        absl::StrFormat("rank %d, position %d, column %d", summary.worst_logit->rank, summary.worst_logit->position,
                                        summary.worst_logit->token)});
  }
}

}  // namespace lossgauge::detect
