// The drain thread's loop: sources -> book -> judges -> one transaction -> snapshot.
//
// Publication comes after the commit, so that what a client has seen (a resume token above all) is never taken back by a restart. A store
// that cannot write does not stop the monitoring: the failure is counted, logged once, tried again every second, and snapshots go on
// without it; what is to be written waits in the book, bounded.
#ifndef LOSSGAUGE_SERVER_MAIN_PIPELINE_H_
#define LOSSGAUGE_SERVER_MAIN_PIPELINE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/main/drain_watch.h"
#include "server/state/board.h"
#include "server/state/clock.h"
#include "server/state/run_book.h"
#include "server/state/source.h"
#include "server/state/store.h"

namespace lossgauge::main {

struct PipelineOptions {
  // At most one transaction in so long: with 100 steps a second a commit of each step would be the greater part of what a sidecar costs.
  // Together with the sleeps below it bounds the delay from a publish to a watcher at 20 ms.
  std::int64_t commit_interval_ns = 15'000'000;
  std::int64_t retry_interval_ns = 1'000'000'000;  // after a failed one
  std::int64_t prune_interval_ns = std::int64_t{10} * 1'000'000'000;  // of looking whether history is too old or too large
  std::int64_t prune_more_ns = 50'000'000;  // while it is: each time costs about 5 ms, which steps then wait
  std::int64_t live_sleep_ns = 4'000'000;         // a producer lives
  std::int64_t idle_sleep_ns = 100'000'000;       // nobody lives
  // A transaction of a large job costs much: between the beginnings of two lies so many times what the last one cost in CPU time, and twice its duration.
  // Not so many times its duration: on a busy machine that is mostly waiting, and what waits in turn (acknowledgements, snapshots) would wait ten times that.
  std::int64_t commit_pause_factor = 0;
  // So long what there is to commit may be samples alone that wait for their step. A step of a large job takes a while to come in, and to write
  // the run's rows in the middle of it costs as much as at its end.
  std::int64_t settle_wait_ns = 0;
  // Added to the drain thread's nice value for good, once a cycle has computed for so long. A step of a large job keeps it busy for a good part of a second;
  // whoever answers clients goes first. A small job's drain thread, which hurts nobody, keeps its share of a busy machine.
  int nice = 0;
  std::int64_t busy_cycle_ns = 20'000'000;
  // Without a completed cycle for so long the thread is said to stand still.
  std::int64_t stuck_after_ns = std::int64_t{30} * 1'000'000'000;
};

// Everything handed in outlives the pipeline. `tap` sees what the book takes, and is told before each commit.
class Pipeline {
 public:
  Pipeline(const PipelineOptions& options, state::Clock* clock, state::RunBook* book, state::Store* store, state::SnapshotBoard* board,
           state::Mailbox* mailbox, std::vector<state::RecordSource*> sources, state::RecordTap* tap = nullptr);
  ~Pipeline();

  // One cycle, on the caller's thread. Returns how long may be slept before the next.
  std::int64_t RunCycle();

  void Start();  // the drain thread
  const DrainWatch& watch() const { return watch_; }  // thread-safe
  // What is shown of forwarding. Before Start.
  void set_forward_view(std::function<state::ForwardView()> view) { forward_view_ = std::move(view); }
  // Runs `task` on the drain thread at the beginning of its next cycle. Thread-safe. Only between Start and Stop.
  void Post(std::function<void()> task);
  // Ends the thread, then drains what is there and commits it, for at most `limit_ns`. May be called twice.
  void Stop(std::int64_t limit_ns);

 private:
  struct Answer;
  void Loop();
  bool Commit(state::TimeNs now_ns);
  // When what there is to commit is to be committed.
  state::TimeNs CommitTime(state::TimeNs now_ns);
  void HandleMailbox();
  void AnswerMailbox();
  void Publish(state::TimeNs now_ns);
  void Prune(state::TimeNs now_ns);

  const PipelineOptions options_;
  state::Clock* const clock_;
  state::RunBook* const book_;
  state::Store* const store_;
  state::SnapshotBoard* const board_;
  state::Mailbox* const mailbox_;
  const std::vector<state::RecordSource*> sources_;
  state::RecordTap* const tap_;
  std::function<state::ForwardView()> forward_view_;
  std::unique_ptr<state::RecordSink> tapped_;  // null: the book itself
  DrainWatch watch_;

  std::vector<Answer> answers_;  // of mailbox requests, to be given after the commit
  state::TimeNs next_commit_ns_ = 0;
  std::optional<state::TimeNs> uncommitted_since_ns_;
  state::TimeNs next_prune_ns_ = 0;
  state::TimeNs next_self_ns_ = 0;
  std::string commit_error_;
  std::uint64_t commit_failures_in_a_row_ = 0;
  std::string prune_error_;
  bool stopping_now_ = false;  // final drain: no waiting for the commit interval
  state::SelfView self_;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_PIPELINE_H_
