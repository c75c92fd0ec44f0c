// Whether the drain thread comes round, for those who ask from other threads: one that stands still cannot say so itself, and
// what it published last stays on every page.
#ifndef LOSSGAUGE_SERVER_MAIN_DRAIN_WATCH_H_
#define LOSSGAUGE_SERVER_MAIN_DRAIN_WATCH_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "server/state/clock.h"

namespace lossgauge::main {

// Where the thread is in its cycle.
enum class DrainStage { kAsleep, kPolicy, kPoll, kAnswer, kJudge, kSpool, kCommit, kThin, kPublish };

class DrainWatch {
 public:
  // A thread that has stood still for so many times `stuck_after_ns` counts as hung.
  static constexpr std::int64_t kHungFactor = 4;

  // `clock` outlives the watch.
  DrainWatch(state::Clock* clock, std::int64_t stuck_after_ns)
      : clock_(clock), stuck_after_ns_(stuck_after_ns), round_ns_(clock->NowNs()) {}

  // Of the drain thread.
  void Enter(DrainStage stage) { stage_.store(stage, std::memory_order_relaxed); }
  void ComeRound() {
    round_ns_.store(clock_->NowNs(), std::memory_order_relaxed);
    Enter(DrainStage::kAsleep);
  }

  // Of any thread. UNAVAILABLE once no cycle has been completed for `stuck_after_ns`; the message says where the thread stands,
  // and for how long.
  absl::Status CheckGoing() const;
  // The same for what a new process would heal: hung, and not in a write. Whom a disk holds it holds again, and a process that
  // cannot open its state answers nobody.
  absl::Status CheckNotHung() const;

 private:
  absl::Status Check(std::int64_t limit_ns, DrainStage stage) const;

  state::Clock* const clock_;
  const std::int64_t stuck_after_ns_;
  // Each is a fact of its own: who reads them is told nothing else by them.
  std::atomic<state::TimeNs> round_ns_;
  std::atomic<DrainStage> stage_{DrainStage::kAsleep};
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_DRAIN_WATCH_H_
