// A loss that falls off a cliff to almost nothing: the model sees its own targets, or everything is masked but the trivial.
#ifndef LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_
#define LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_

#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/recent_values.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

// An overfit run that ends near 0 takes hundreds of steps: it is no collapse. Five values below `collapse_nats` within sixteen steps of one
// above `collapse_from_nats` are.
class LossCollapseDetector {
 public:
  // `recent` includes the newest loss.
  void OnStep(const StepSignals& signals, const RecentValues& recent, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = LossCollapseDetector(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  bool open_ = false;
  double from_nats_ = 0;
  std::int64_t onset_step_ = 0;
  std::int32_t clean_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_LOSS_COLLAPSE_H_
