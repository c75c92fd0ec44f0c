// Sends every step of every run to a sink, on a thread of its own: the drain thread only publishes snapshots, as ever, and what waits, waits in the
// history.
//
// A step is sent once. How far a run got is written down after each round; what a round is about to send, before it. A process that dies in
// between sends exactly that again, with the same timestamps and values, and a receiver that knows it takes it for what it has.
// Refused is refused: never tried again. What concerns the receiver as a whole (not reachable, busy) is tried with growing pauses for as long as
// receivers take samples of that age; what it fails on (500) a bounded number of times.
#ifndef LOSSGAUGE_SERVER_EXPORT_STEP_SHIPPER_H_
#define LOSSGAUGE_SERVER_EXPORT_STEP_SHIPPER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "server/export/ship_cursors.h"
#include "server/export/step_backlog.h"
#include "server/export/step_sink.h"
#include "server/state/board.h"
#include "server/state/clock.h"
#include "server/state/service_counters.h"
#include "server/state/store.h"

namespace lossgauge::export_ {

struct ShipperOptions {
  BacklogLimits backlog;
  std::uint64_t max_pending_steps = 1'000'000;  // of a run; the oldest go
  int max_tries = 8;                            // of a batch that the receiver fails on
  std::int64_t round_ns = 1'000'000'000;        // pause between rounds while nothing is behind
  std::int64_t first_pause_ns = 500'000'000;    // after a failure; doubles up to max_pause_ns
  std::int64_t max_pause_ns = std::int64_t{30} * 1'000'000'000;
  std::int64_t max_retry_after_ns = std::int64_t{300} * 1'000'000'000;
};

class StepShipper {
 public:
  // Everything handed in outlives the shipper. `history` may be null. `now_ns`: the present by the wall clock; default: the lesser of lossgauged's
  // clock and the system's, so that no timestamp lies in the future even if the system's was set back.
  StepShipper(const ShipperOptions& options, const state::SnapshotBoard& board, std::shared_ptr<state::HistoryReader> history, StepSink* sink,
              std::unique_ptr<ShipCursors> cursors, state::ShipCounters* counters, std::function<state::TimeNs()> now_ns);
  ~StepShipper();  // stops

  // What was sent before, by the cursors. Call before Start or the first RunRound.
  absl::Status Load();
  void Start();
  // A last round for what has come since, cut off after `limit_ns`. What is not sent is for the next process.
  void Stop(std::int64_t limit_ns);

  // One pass over all runs, on the caller's thread. True: some run has more that could be sent now.
  bool RunRound();

 private:
  struct RunState {
    ShipCursor cursor;
    std::uint64_t last_sequence = 0;  // that may be sent
    int tries = 0;
    state::TimeNs next_try_ns = 0;
    bool shown = false;  // by the newest snapshot
    bool dirty = false;
  };
  void Loop();
  void LookAt(const state::Snapshot& snapshot, state::TimeNs now_ns);
  void Forget(state::TimeNs now_ns);
  void Plan(const state::Snapshot& snapshot, state::TimeNs now_ns, std::map<std::string, StepBatch>* batches, bool* more);
  // False: the receiver wants to be left alone for a while.
  bool SendBatch(const std::string& run, const StepBatch& batch, state::TimeNs now_ns);
  void Finish(RunState* state, const StepBatch& batch, state::TimeNs now_ns);
  void GiveUp(RunState* state, const StepBatch& batch, state::ShipDrop reason, state::TimeNs now_ns);
  bool SaveCursors();
  void Tell(const SinkAnswer& answer, const std::string& run);
  std::int64_t Pause(int failures) const;

  const ShipperOptions options_;
  const state::SnapshotBoard& board_;
  const std::shared_ptr<state::HistoryReader> history_;
  StepSink* const sink_;
  const std::unique_ptr<ShipCursors> cursors_;
  state::ShipCounters* const counters_;
  const std::function<state::TimeNs()> now_ns_;
  const std::string receiver_;

  std::map<std::string, RunState> runs_;
  std::vector<std::string> forget_;
  int failures_in_a_row_ = 0;
  state::TimeNs next_try_ns_ = 0;
  std::string last_error_;
  std::string last_save_error_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_STEP_SHIPPER_H_
