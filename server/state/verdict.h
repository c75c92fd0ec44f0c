// The verdict of a run: advice with its reason, evidence and term.
#ifndef LOSSGAUGE_SERVER_STATE_VERDICT_H_
#define LOSSGAUGE_SERVER_STATE_VERDICT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/state/incident.h"

namespace lossgauge::state {

enum class Action { kContinue = 1, kWatch = 2, kRestart = 3, kHalt = 4, kUnknown = 5 };
std::string_view ActionName(Action action);  // "CONTINUE", ...

struct ResumePoint {
  std::int64_t step = 0;
  std::string path;
};

struct StepSpan {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

struct Verdict {
  Action action = Action::kUnknown;
  std::string reason;
  std::vector<std::string> reason_codes;
  std::vector<Evidence> evidence;
  std::string policy_version;
  TimeNs evaluated_at_ns = 0;
  TimeNs valid_until_ns = 0;
  std::string attempt;
  std::optional<std::int64_t> last_step;
  std::optional<std::int64_t> last_step_age_ns;
  std::optional<std::int64_t> last_good_step;
  std::optional<ResumePoint> resume_point;
  std::optional<StepSpan> skip;
  std::optional<std::uint32_t> rank_at_fault;
  std::string escalates;
  std::optional<TimeNs> since_ns;
  std::string scope = "local";
  std::string mode = "advise";
};

// True if a person or a program would act on the difference: action, reason codes, resume point, rank at fault.
bool DiffersInSubstance(const Verdict& a, const Verdict& b);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_VERDICT_H_
