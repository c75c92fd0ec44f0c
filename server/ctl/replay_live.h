// `lossgaugectl replay --live`: logs fed to a running lossgauged as jobs.
#ifndef LOSSGAUGE_SERVER_CTL_REPLAY_LIVE_H_
#define LOSSGAUGE_SERVER_CTL_REPLAY_LIVE_H_

#include <string>
#include <utility>
#include <vector>

#include "server/ctl/options.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {

// `runs`: name and paths of each, fed one after the other. The exit code.
int FeedLive(const std::vector<std::pair<std::string, std::vector<std::string>>>& runs, const Options& options, Io& io);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_REPLAY_LIVE_H_
