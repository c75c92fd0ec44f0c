// Verdicts as messages.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_
#define LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_

#include <string>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/current_verdict.h"
#include "server/state/snapshot.h"

namespace lossgauge::api {

using state::CurrentVerdict;

// Fills an empty message.
void ToMessage(const std::string& run, const state::Verdict& verdict, const std::string& instance, v1::Verdict* message);

std::string ActionName(v1::Action action);  // "UNKNOWN" for what this version does not know
// Rises from the worst: HALT, RESTART, WATCH, UNKNOWN, CONTINUE.
int Urgency(v1::Action action);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_VERDICT_H_
