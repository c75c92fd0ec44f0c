// max|z| far above its usual value: the normaliser may follow, and 16-bit logits lose their resolution.
#ifndef LOSSGAUGE_SERVER_DETECT_LOGIT_BLOWUP_H_
#define LOSSGAUGE_SERVER_DETECT_LOGIT_BLOWUP_H_

#include "server/detect/factor_incident.h"
#include "server/detect/factor_watch.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class LogitBlowupDetector {
 public:
  // Fills logit_factor and logit_high of the signals, for the loss that is looked at next.
  void Look(StepSignals& signals, const Policy& policy);
  // As for the gradient norm: within a loss episode it is part of it, and its cause.
  void Report(const StepSignals& signals, bool loss_explains, IncidentBook& book);
  void Clear() { *this = LogitBlowupDetector(); }
  void OnAttempt() { incident_.OnAttempt(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  FactorWatch watch_;
  FactorIncident incident_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_LOGIT_BLOWUP_H_
