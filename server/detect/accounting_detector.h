// The accounting checks over time: each kind an incident that closes after clean steps.
#ifndef LOSSGAUGE_SERVER_DETECT_ACCOUNTING_DETECTOR_H_
#define LOSSGAUGE_SERVER_DETECT_ACCOUNTING_DETECTOR_H_

#include <array>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/reported_loss.h"
#include "server/detect/step_signals.h"
#include "server/detect/streak.h"
#include "server/state/kinds.h"

namespace lossgauge::detect {

class AccountingDetector {
 public:
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt();
  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::array<Streak, state::kAccountingKinds.size()> streaks_;
  ReportedLossCheck reported_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_ACCOUNTING_DETECTOR_H_
