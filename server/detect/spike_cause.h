// Why the loss spiked, from the signals of the same steps; and where: the worst row and the largest logit.
#ifndef LOSSGAUGE_SERVER_DETECT_SPIKE_CAUSE_H_
#define LOSSGAUGE_SERVER_DETECT_SPIKE_CAUSE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/detect/step_signals.h"

namespace lossgauge::detect {

struct SpikeCause {
  std::string_view cause;  // of state::kSpikeCauses
  std::optional<std::uint32_t> rank;
};

// The last steps' factors: what led the loss.
class SignalTrail {
 public:
  static constexpr int kLength = 8;
  void Push(const StepSignals& signals);
  // A gradient norm that was high on the step before the newest, or on two of the sixteen steps before it: one high value that passed leads to
  // nothing, and in a log of every hundredth step there is no lead.
  bool GradLed() const;
  bool LearningRateJumped() const;
  // Of the newest `steps` steps.
  bool LogitHigh(int steps) const;
  struct Logit {
    float max_abs = 0;
    float factor = 0;
  };
  // The largest jump of the newest `steps` steps.
  Logit LargestLogit(int steps) const;
  double LargestLearningRateFactor() const;
  void Clear() { size_ = 0; }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  enum : std::uint8_t { kGrad = 1, kLogit = 2, kLearningRate = 4 };
  std::array<std::uint8_t, kLength> flags_{};  // newest first
  std::array<std::int64_t, kLength> steps_{};
  std::array<Logit, kLength> logits_{};
  std::array<float, kLength> learning_rate_factors_{};
  int size_ = 0;
};

// `center` and `threshold` are the loss baseline's: a rank is alone to blame if only its own loss lies beyond.
SpikeCause FindSpikeCause(const StepSignals& signals, const SignalTrail& trail, double center, double threshold);

// Words for a person, from the step at which the cause was found and those before it: "max|z| jumped with it (41, 2.1 times its usual value)".
std::string DescribeCause(const SpikeCause& cause, const StepSignals& signals, const SignalTrail& trail);

// worst_row and worst_logit of the step, and the factors.
void AddPlaces(const StepSignals& signals, std::vector<state::Evidence>& evidence);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_SPIKE_CAUSE_H_
