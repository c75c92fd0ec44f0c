// The verdict that may be given at a certain moment.
#ifndef LOSSGAUGE_SERVER_STATE_CURRENT_VERDICT_H_
#define LOSSGAUGE_SERVER_STATE_CURRENT_VERDICT_H_

#include "server/state/snapshot.h"

namespace lossgauge::state {

// The snapshot's verdict while its term runs. Afterwards, and where none was given yet, UNKNOWN with the reason: a verdict that nobody
// renewed is advice about a past that may be over, so neither an old CONTINUE nor an old RESTART is passed on. Pure.
Verdict CurrentVerdict(const RunSnapshot& run, TimeNs now_ns);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_CURRENT_VERDICT_H_
