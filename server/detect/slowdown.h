// Steps that take much longer than they used to; and the rank that comes last. Owns the run's usual step time.
#ifndef LOSSGAUGE_SERVER_DETECT_SLOWDOWN_H_
#define LOSSGAUGE_SERVER_DETECT_SLOWDOWN_H_

#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/sorted_window.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class SlowdownDetector {
 public:
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = SlowdownDetector(); }
  // Seconds; 0 while unknown.
  double median_step_seconds() const { return seconds_.size() < 4 ? 0 : seconds_.Median(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  SortedWindow<64> seconds_;
  std::int32_t slow_ = 0;   // in a row
  std::int32_t quick_ = 0;  // in a row, while open
  std::int64_t onset_step_ = 0;
  bool open_ = false;
  // The rank that comes last, by a running vote over slow steps: where all are late, each of them is last in turn and none is named.
  std::uint32_t rank_ = 0;
  std::int32_t rank_votes_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_SLOWDOWN_H_
