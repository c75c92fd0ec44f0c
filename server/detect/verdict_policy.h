// From what is known to what should be done: the table of verdicts as one pure function.
#ifndef LOSSGAUGE_SERVER_DETECT_VERDICT_POLICY_H_
#define LOSSGAUGE_SERVER_DETECT_VERDICT_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/detect/policy.h"
#include "server/detect/run_history.h"
#include "server/state/incident.h"
#include "server/state/verdict.h"

namespace lossgauge::detect {

// Everything that a verdict may depend on besides the policy and the time of evaluation.
struct RunFacts {
  std::string attempt;
  std::int64_t last_step = -1;  // of the attempt; -1 = none
  state::TimeNs last_step_time_ns = 0;  // receive time; 0 = none
  bool last_step_time_known = true;     // false: the clock was set back behind it, the step's age is at least what the time says
  state::TimeNs first_seen_ns = 0;      // 0 = never seen
  state::TimeNs presence_ns = 0;        // last look at the producers; 0 = none
  bool source_reachable = true;
  state::TimeNs unreachable_since_ns = 0;
  std::size_t unreachable_ranks = 0;  // of a job whose other ranks are heard
  std::uint32_t first_unreachable_rank = 0;
  bool ended = false;
  bool failed = false;
  state::TimeNs ended_ns = 0;
  std::uint64_t phase = 0;  // LG_PHASE_*
  state::TimeNs phase_since_ns = 0;
  state::TimeNs quiet_since_ns = 0;  // later of last step and end of last phase
  double median_step_seconds = 0;
  bool warm = false;
  int baseline_accepted = 0;
  bool baseline_lost = false;  // the saved state could not be read
  std::vector<const state::Incident*> open;  // by number, hidden ones included
  int integrity_broken_steps = 0;            // of the policy's window
  std::int64_t damaged_since = -1;           // what an earlier attempt left behind (damage.h); -1 = nothing
  const RunHistory* history = nullptr;       // never null
};

// The parameters themselves are suspect since the onset; for a lost or hanging job they are not.
bool DamagesModel(state::Condition condition);
// The incident is critical and of a kind that a restart can help.
bool AsksForRestart(const state::Incident& incident);

// The incident that damaged the model or ended the job, if one did: the first critical one that asks for a restart. A job that declared its
// failure without any such incident failed with kCount at its last step.
std::optional<Failure> FailureOf(const RunFacts& facts);
// The last step of which nothing bad is known.
std::int64_t LastGoodStep(const RunFacts& facts);

// Pure; replay gives the same bits.
state::Verdict DecideVerdict(const RunFacts& facts, const Policy& policy, state::TimeNs now_ns);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_VERDICT_POLICY_H_
