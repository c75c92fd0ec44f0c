// Runs a function as N ranks in N processes, and ends the others when one fails.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_LAUNCHER_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_LAUNCHER_H_

#include <atomic>
#include <functional>

#include "client/cpp/examples/train_text/all_reduce.h"

namespace lossgauge::train_text {

// Set by SIGTERM and SIGINT in this process and, through the launcher, in its ranks.
const std::atomic<bool>& InstallStopSignal();

// One rank runs in this process. More are forked, before any of them has opened a gauge or started a thread; this process then only waits for
// them. A rank that fails or dies is marked gone in the group; the others have `grace_seconds` to end by themselves, then get SIGTERM, and SIGKILL
// 5 s later. Ranks die with the launcher. Returns the exit code: 0, that of the first rank that failed, or 128 + its signal.
int RunRanks(RankGroup* group, double grace_seconds, const std::function<int(int rank)>& run);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_LAUNCHER_H_
