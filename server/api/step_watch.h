// One watcher of a run's steps: a cursor and nothing else. What it missed it reads from history; what history dropped it is told of.
#ifndef LOSSGAUGE_SERVER_API_STEP_WATCH_H_
#define LOSSGAUGE_SERVER_API_STEP_WATCH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/snapshot.h"
#include "server/state/store.h"

namespace lossgauge::api {

// Not thread-safe: one thread at a time.
class StepWatch {
 public:
  using Message = v1::WatchStepsResponse;

  // NOT_FOUND for an unknown run; OUT_OF_RANGE for a sequence that this state has not reached (it was given by another, or by one since lost).
  static absl::StatusOr<StepWatch> Create(const state::Snapshot& snapshot, const v1::WatchStepsRequest& request,
                                          std::shared_ptr<state::HistoryReader> history);

  // True if Next would read a file.
  bool NeedsHistory(const state::Snapshot& snapshot) const;

  // Fills an empty message with what came after the cursor (a bounded batch; call again for more) and moves the cursor. False: nothing yet.
  // NOT_FOUND once the run is no longer kept. `now_ns` is not used.
  absl::StatusOr<bool> Next(const state::Snapshot& snapshot, state::TimeNs now_ns, Message* message);

  std::uint64_t cursor() const { return cursor_; }

 private:
  StepWatch() = default;

  std::string run_;
  bool include_ranks_ = false;
  std::uint64_t cursor_ = 0;
  bool from_oldest_ = false;  // asked for whatever is kept: what is gone by then was not skipped
  std::shared_ptr<state::HistoryReader> history_;
};

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_STEP_WATCH_H_
