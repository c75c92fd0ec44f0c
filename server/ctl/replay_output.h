// What `lossgaugectl replay` prints of a run: what was read, the verdict over the log, the incidents.
#ifndef LOSSGAUGE_SERVER_CTL_REPLAY_OUTPUT_H_
#define LOSSGAUGE_SERVER_CTL_REPLAY_OUTPUT_H_

#include <string>
#include <vector>

#include "server/ctl/json_writer.h"
#include "server/ctl/terminal.h"
#include "server/replay/log_point.h"
#include "server/replay/replay.h"

namespace lossgauge::ctl {

struct ReplayedFile {
  std::string path;
  std::string error;         // why it could not be read, or not to its end; then there may be no report
  std::uint64_t points = 0;  // that were judged, whatever came behind them
  replay::LogReport report;
};

struct ReplayedRun {
  std::string run;
  std::vector<ReplayedFile> files;
  std::uint64_t points = 0;
  replay::ReplayResult result;
};

void PrintReplay(const ReplayedRun& run, Io& io);
// One object. Incidents and verdicts are messages of lossgauge.v1 as JSON, as under /api/v1/.
void WriteReplay(const ReplayedRun& run, JsonWriter& json);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_REPLAY_OUTPUT_H_
