// A run as one message.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_RUN_H_
#define LOSSGAUGE_SERVER_API_CONVERT_RUN_H_

#include <string>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/snapshot.h"

namespace lossgauge::api {

enum class RunDetail {
  kOverview,  // without producers: what a list of many runs can carry
  kFull,
};

// Fills an empty message. The verdict is the one that may be given at `now_ns`.
void ToMessage(const state::RunSnapshot& run, const std::string& instance, state::TimeNs now_ns, RunDetail detail, v1::Run* message);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_RUN_H_
