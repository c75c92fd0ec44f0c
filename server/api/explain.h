// The story of a verdict or an incident in plain words. Pure; the only place where it is told: gRPC, the status page and lossgaugectl show this.
#ifndef LOSSGAUGE_SERVER_API_EXPLAIN_H_
#define LOSSGAUGE_SERVER_API_EXPLAIN_H_

#include <optional>
#include <string>
#include <vector>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/incident.h"
#include "server/state/policy_view.h"
#include "server/state/verdict.h"

namespace lossgauge::api {

struct ExplainedRun {
  std::string run;
  // As it stands now, or the last one of a run that is only in the history; absent if none was kept.
  std::optional<state::Verdict> verdict;
  bool is_past = false;
  std::optional<state::TimeNs> verdict_since_ns;  // of the last change of its substance
  std::vector<state::Incident> open;              // newest onset last
  const state::PolicyView* policy = nullptr;      // null: not known any more
  // Of an incident: versions of the policies that the verdicts of its time were given by. Empty: no such verdict is known.
  std::vector<std::string> judged_by;
  state::TimeNs now_ns = 0;
};

v1::Explanation ExplainRun(const ExplainedRun& run);
// Whether a verdict was in force at some time of the incident. `until_ns`: when the next one followed it.
bool IsOfItsTime(const state::Verdict& verdict, state::TimeNs until_ns, const state::Incident& incident);
v1::Explanation ExplainIncident(const ExplainedRun& run, const state::Incident& incident);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_EXPLAIN_H_
