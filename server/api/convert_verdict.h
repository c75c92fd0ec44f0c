// Verdicts as messages, and the verdict that may be given at a certain moment.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_
#define LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_

#include <string>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/snapshot.h"

namespace lossgauge::api {

// The snapshot's verdict while its term runs. Afterwards, and where none was given yet, UNKNOWN with the reason: a verdict that nobody
// renewed is advice about a past that may be over, so neither an old CONTINUE nor an old RESTART is passed on. Pure.
state::Verdict CurrentVerdict(const state::RunSnapshot& run, state::TimeNs now_ns);

// Fills an empty message.
void ToMessage(const std::string& run, const state::Verdict& verdict, const std::string& instance, v1::Verdict* message);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_
