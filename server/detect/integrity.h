// Do the ranks of a tensor-parallel group agree, and is the probability all there? Exact conditions over one step's records.
#ifndef LOSSGAUGE_SERVER_DETECT_INTEGRITY_H_
#define LOSSGAUGE_SERVER_DETECT_INTEGRITY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"
#include "server/detect/streak.h"
#include "server/state/kinds.h"

namespace lossgauge::detect {

// Of state::kIntegrityKinds those that a step alone shows; the last is ShardWatch's.
inline constexpr std::size_t kExactKinds = state::kIntegrityKinds.size() - 1;

// One broken invariant of one group.
struct IntegrityBreak {
  int kind = 0;  // index into state::kIntegrityKinds
  std::optional<std::uint32_t> rank;  // at fault, if one can be named
  std::string summary;
  std::vector<state::Evidence> evidence;
};

// Pure. At most one break per kind: the first group's. Groups of which a rank is absent are not judged (rank_missing speaks of those).
// `judged`, if given: by kind, true if the check could be made in every group of the step.
using KindsJudged = std::array<bool, kExactKinds>;
std::vector<IntegrityBreak> CheckIntegrity(const state::JoinedStep& joined, KindsJudged* judged = nullptr);

class IntegrityDetector {
 public:
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = IntegrityDetector(); }
  // The most broken steps of one kind among the policy's window.
  int BrokenSteps(const Policy& policy) const;

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::array<Streak, kExactKinds> streaks_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_INTEGRITY_H_
