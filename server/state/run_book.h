// All runs: where sources put what they find, and where transactions and snapshots come from.
//
// The order of a cycle, which the pipeline keeps: sources fill the book; Advance joins, judges and evaluates; BuildTransaction is committed;
// then BuildSnapshot is published, so that nothing is seen that a restart could take back. Drain thread only.
#ifndef LOSSGAUGE_SERVER_STATE_RUN_BOOK_H_
#define LOSSGAUGE_SERVER_STATE_RUN_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/board.h"
#include "server/state/run.h"
#include "server/state/source.h"
#include "server/state/store.h"

namespace lossgauge::state {

struct RunBookOptions {
  RunOptions run;
  std::size_t max_runs = 64;                                            // in memory and on pages
  std::int64_t linger_ns = std::int64_t{300} * 1'000'000'000;           // an ended run stays visible so long
  std::int64_t lost_linger_ns = std::int64_t{3600} * 1'000'000'000;     // a run that died without an end
  std::size_t max_recent_steps = 4096;                                  // per run
  std::size_t recent_steps_bytes = std::size_t{32} << 20;               // over all runs
  std::size_t max_queued_steps = 65'536;                                // waiting for a store that cannot write
  std::size_t max_queued_events = 65'536;                               // likewise; the oldest go
  std::size_t max_queued_incidents = 16'384;                            // likewise; the oldest go
  std::size_t max_queued_ledger = 1024;                                 // likewise; then a report is refused
  std::size_t max_queued_cursors = 65'536;                              // of dropped runs; the oldest go
  std::size_t max_queued_runs = 256;                                    // rows of dropped runs; the oldest go
  std::size_t max_queued_journal_bytes = std::size_t{8} << 20;          // then all of it goes
};

class RunBook final : public RecordSink, public CursorLookup {
 public:
  // `judges` and `store` outlive the book.
  RunBook(const RunBookOptions& options, JudgeFactory* judges, Store* store, TimeNs now_ns);
  ~RunBook() override;

  // Cursors and the runs that are still of interest. Call once, before the first source is polled.
  absl::Status Load(TimeNs now_ns);

  bool OnProducer(std::shared_ptr<const ProducerInfo> producer) override;
  void OnSample(RankSample sample) override;
  void OnEvent(ProducerEvent event) override;
  void OnLiveness(const LivenessReport& report) override;
  void OnLoss(const LossReport& report) override;
  void OnProducerGone(const SegmentId& segment, TimeNs time_ns) override;
  ResumePosition FindCursor(const SegmentId& segment) const override;
  ResumePosition FindCommitted(const SegmentId& segment) const override;

  // NOT_FOUND if no run knows the incident.
  absl::Status Acknowledge(const Mailbox::Acknowledge& request, Incident* out);
  // NOT_FOUND if there is no such run. RESOURCE_EXHAUSTED: the store cannot write, and too much waits for it already.
  absl::Status Report(const Mailbox::Report& report, std::uint64_t* ledger_entries);

  // As Report. `mode`: "advise", "shadow", or "policy". Returns what is in force now.
  absl::StatusOr<std::string> SetMode(const std::string& run, const std::string& mode);

  void Advance(TimeNs now_ns, const Reachability& reaches);
  void Advance(TimeNs now_ns, bool source_reachable) {
    Advance(now_ns, [source_reachable](const ProducerInfo&) { return source_reachable; });
  }
  // Another policy: each run's judge hands what it knows to one made by `judges`, which outlives the book or the next call.
  void ReplaceJudges(JudgeFactory* judges);
  // Everything since the last committed one. Stays queued until OnCommitted.
  const Transaction& BuildTransaction(TimeNs now_ns);
  void OnCommitted();
  bool HasUncommitted() const;
  // Of that, more than samples that wait for their step: to commit those alone would write rows without making a record safe.
  bool HasSettled() const;

  // `self`: what the pipeline and its sources know of themselves; the book adds its own counters.
  std::shared_ptr<const Snapshot> BuildSnapshot(TimeNs now_ns, SelfView self);
  // Something changed that a new snapshot would show.
  bool HasNews() const { return has_news_; }
  // Segments that a run holds in memory.
  std::size_t SlotCount(const std::string& run) const;
  std::uint64_t runs_from_future() const { return counters_.runs_from_future; }
  std::uint64_t history_steps_dropped() const { return history_steps_dropped_; }

 private:
  struct Segment {
    std::shared_ptr<ProducerSlot> slot;
    Run* run = nullptr;
  };
  struct Entry {
    std::unique_ptr<Run> run;
    std::shared_ptr<const RunSnapshot> snapshot;
    bool has_news = true;
  };

  Segment* Find(const SegmentId& segment);
  Run* FindOrMakeRun(const std::string& name, TimeNs now_ns);
  std::unique_ptr<Run> MakeRun(const std::string& name, TimeNs now_ns);
  bool RestoreRun(Run* run, const RunRow& row, TimeNs now_ns);
  // What is known of a run that is not in memory.
  std::optional<RunRow> LastRow(const std::string& run) const;
  // Steps of the run that wait for the store. `steps` by sequence.
  void AddQueuedSteps(const std::string& run, std::vector<StepSummary>* steps) const;
  bool MakeRoom();
  void DropRun(const std::string& name);
  void KeepCursor(const std::string& run, const ProducerSlot& slot);
  void DropOldRuns(TimeNs now_ns);
  void NameSiblings(TimeNs now_ns);
  bool Refuse(const ProducerInfo& producer, const std::string& cause);
  void BoundQueue();

  const RunBookOptions options_;
  JudgeFactory* judges_;
  Store* const store_;
  TimeNs now_ns_;
  const std::shared_ptr<HistoryReader> history_;  // of the drain thread alone: nobody waits for its connection
  std::string instance_;
  const TimeNs start_time_ns_;
  std::uint64_t version_ = 0;
  std::map<std::string, Entry> runs_;
  std::map<SegmentId, Segment> segments_;        // attached
  std::map<SegmentId, CursorRow> cursors_;       // of segments that are not attached
  std::unordered_set<std::string> stored_runs_;  // have a row in the store
  std::vector<RunRow> startup_rows_;             // until the first look at the sources is over
  bool is_started_ = false;
  std::map<std::string, std::uint64_t> refused_;
  std::unordered_set<std::string> refused_segments_;
  BookCounters counters_;
  Transaction queued_;
  std::uint64_t history_steps_dropped_ = 0;
  bool has_news_ = true;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RUN_BOOK_H_
