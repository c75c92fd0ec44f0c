// The senders of steps that the flags ask for.
#ifndef LOSSGAUGE_SERVER_MAIN_STEP_SINKS_H_
#define LOSSGAUGE_SERVER_MAIN_STEP_SINKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/export/step_shipper.h"
#include "server/main/sink_flags.h"

namespace lossgauge::main {

class StepSinks {
 public:
  // Everything handed in outlives it. `state_dir` "": what was sent is forgotten with the process.
  static absl::StatusOr<std::unique_ptr<StepSinks>> Make(const SinkFlags& flags, const std::string& state_dir, const state::SnapshotBoard& board,
                                                         std::shared_ptr<state::HistoryReader> history, state::ServiceCounters* counters);
  void Start();
  void Stop(std::int64_t limit_ns);

 private:
  struct Entry {
    std::unique_ptr<export_::StepSink> sink;
    std::unique_ptr<export_::StepShipper> shipper;  // goes first
  };
  std::vector<Entry> entries_;
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_STEP_SINKS_H_
