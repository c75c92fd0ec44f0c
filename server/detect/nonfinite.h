// NaN and infinity: counted exactly from the records' own counts and has-bits, never compared with a threshold.
#ifndef LOSSGAUGE_SERVER_DETECT_NONFINITE_H_
#define LOSSGAUGE_SERVER_DETECT_NONFINITE_H_

#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

// Needs no baseline. Critical once `nonfinite_persist_steps` steps in a row were not finite.
class NonfiniteDetector {
 public:
  // Returns true if the step had anything non-finite.
  bool OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = NonfiniteDetector(); }
  bool open() const { return open_; }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  bool open_ = false;
  std::int32_t run_ = 0;    // non-finite steps in a row
  std::int32_t longest_ = 0;
  std::int32_t clean_ = 0;
  std::int64_t onset_step_ = 0;
  std::int64_t last_bad_step_ = 0;
  std::int64_t bad_steps_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_NONFINITE_H_
