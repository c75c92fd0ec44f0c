// What the ranks of one step show beside each other: rank_missing, rank_outlier, repeated_batch.
#ifndef LOSSGAUGE_SERVER_DETECT_RANK_CHECKS_H_
#define LOSSGAUGE_SERVER_DETECT_RANK_CHECKS_H_

#include <cstdint>
#include <optional>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"
#include "server/detect/streak.h"

namespace lossgauge::detect {

// A rank with a loss gave no record for the step within the join timeout. Closed after three complete steps.
class RankMissingDetector {
 public:
  void OnStep(const StepSignals& signals, IncidentBook& book);
  void OnAttempt() { streak_ = Streak(); }
  void Save(StateWriter& out) const { streak_.Save(out); }
  void Restore(StateReader& in) { streak_.Restore(in); }

 private:
  Streak streak_;
};

// One data-parallel rank far from its peers, for several steps: a bad batch or a sick device. Needs four ranks to tell who is odd.
class RankOutlierDetector {
 public:
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = RankOutlierDetector(); }
  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  Streak streak_;
  std::uint32_t rank_ = 0;
};

// The same targets on consecutive steps: a data loader that stands still.
class RepeatedBatchDetector {
 public:
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = RepeatedBatchDetector(); }
  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::uint64_t target_fingerprint_ = 0;
  std::uint64_t mask_fingerprint_ = 0;
  std::int32_t repeats_ = 0;  // steps in a row with these
  std::int64_t first_step_ = 0;
  std::int64_t last_step_ = 0;
  bool open_ = false;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_RANK_CHECKS_H_
