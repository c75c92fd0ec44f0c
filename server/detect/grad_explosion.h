// The gradient norm far above its usual value: watched early, because an instability shows in it before it shows in the loss.
//
// Two rules, because gradient norms have heavy upper tails: an early one for jobs of which every step is seen (a factor of 3.5 that is many
// deviations off), and a factor of ten over the median of the last 128 values, which needs no quiet series behind it.
#ifndef LOSSGAUGE_SERVER_DETECT_GRAD_EXPLOSION_H_
#define LOSSGAUGE_SERVER_DETECT_GRAD_EXPLOSION_H_

#include "server/detect/factor_incident.h"
#include "server/detect/factor_watch.h"
#include "server/detect/policy.h"
#include "server/detect/sorted_window.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class GradExplosionDetector {
 public:
  // Fills grad_factor and grad_high of the signals, for the loss that is looked at next.
  void Look(StepSignals& signals, const Policy& policy);
  // After the loss: `loss_explains` if the same step is a high one of the loss, or of its echo. An open incident goes on regardless.
  void Report(const StepSignals& signals, bool loss_explains, IncidentBook& book);
  // The next attempt trains at another stage: its gradients are no measure.
  void Clear() { *this = GradExplosionDetector(); }
  void OnAttempt() { incident_.OnAttempt(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  FactorWatch watch_;
  SortedWindow<128> logs_;
  std::int32_t high_run_ = 0;
  // A norm that was high and nothing came of it: for a thousand points only more than that is early warning.
  double unheeded_factor_ = 0;
  std::int32_t unheeded_points_ = 0;  // since then
  double peak_factor_ = 0;            // of the open incident
  bool followed_ = false;             // by the loss
  FactorIncident incident_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_GRAD_EXPLOSION_H_
