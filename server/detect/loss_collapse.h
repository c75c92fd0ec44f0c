// A model that stopped learning language: a loss that fell off a cliff to almost nothing, one that stands at exactly 0, or a gradient of exactly 0.
#ifndef LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_
#define LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_

#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/recent_values.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

// What it is not: an overfit run, which takes hundreds of steps to end near 0 and may print 0.0000 there; a loss that crosses zero, which is no
// cross-entropy (reinforcement learning); a reported loss of 0 whose gradient is alive. A gradient that is NaN is nonfinite's.
class LossCollapseDetector {
 public:
  // `recent` includes the newest loss.
  void OnStep(const StepSignals& signals, const RecentValues& recent, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = LossCollapseDetector(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  enum class Form : std::uint8_t { kNone, kCliff, kZeroLoss, kZeroGradient };
  Form Look(const StepSignals& signals, const RecentValues& recent, const Policy& policy);
  bool FellOffACliff(const RecentValues& recent, const Policy& policy);
  bool StillLost(const StepSignals& signals, const Policy& policy) const;
  void ReportTo(IncidentBook& book, const StepSignals& signals) const;

  Form form_ = Form::kNone;  // of the open incident
  double from_nats_ = 0;
  std::int64_t onset_step_ = 0;
  std::int32_t clean_ = 0;

  double level_nats_ = -1;         // of the last losses that were not 0, fading; negative: none yet
  bool negative_ = false;          // a loss below 0 was seen
  std::int32_t zero_losses_ = 0;   // in a row
  std::int32_t zero_gradients_ = 0;
  std::int64_t zero_step_ = 0;     // where each began
  std::int64_t zero_gradient_step_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_
