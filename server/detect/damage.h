// What an attempt that ended in trouble leaves behind: whatever was saved after the onset may hold the damage, also when the job goes on from there.
#ifndef LOSSGAUGE_SERVER_DETECT_DAMAGE_H_
#define LOSSGAUGE_SERVER_DETECT_DAMAGE_H_

#include <cstdint>

#include "server/detect/state_codec.h"
#include "server/detect/step_signals.h"
#include "server/detect/verdict_policy.h"

namespace lossgauge::detect {

class Damage {
 public:
  // An attempt ends, cleanly or not; before its incidents are resolved.
  void OnEnd(const RunFacts& facts);
  // The first step of the next one: at or before the onset, and the damage is left behind.
  void OnFirstStep(std::int64_t step);
  // Some thirty finite steps at the level that was expected before the onset, and it was none, or has healed.
  void OnStep(const StepSignals& signals);

  // First step whose result is suspect; -1 = none.
  std::int64_t since() const { return since_; }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::int64_t since_ = -1;
  double expected_nats_ = 0;  // 0 = not known
  std::int32_t clean_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_DAMAGE_H_
