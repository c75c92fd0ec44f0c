// One run: its attempts, its judge, its totals, and what it shows. Drain thread only.
#ifndef LOSSGAUGE_SERVER_STATE_RUN_H_
#define LOSSGAUGE_SERVER_STATE_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/state/attempt.h"
#include "server/state/attempt_comparer.h"
#include "server/state/judge.h"
#include "server/state/judge_journal.h"
#include "server/state/recent_steps.h"
#include "server/state/siblings.h"
#include "server/state/snapshot.h"
#include "server/state/store.h"
#include "server/state/window_maxima.h"

namespace lossgauge::state {

struct RunOptions {
  JoinOptions join;
  std::size_t max_attempts = 64;        // kept in memory; the oldest dead ones go first
  std::size_t max_slots = SIZE_MAX;     // segments of all attempts; likewise
  std::size_t max_rank_series = SIZE_MAX;  // beyond it a run shows no ranks but those that stand apart, and its steps keep their spread over ranks
  // Records come from forwarders that have their own copies: cursors of live segments stand in the run's own row, not in one each.
  bool is_forwarded = false;
  JournalOptions journal;
};

// Whether a segment's records can be had.
using Reachability = std::function<bool(const ProducerInfo&)>;

// Counts over all runs, for SelfView.
struct BookCounters {
  std::uint64_t late_records = 0;
  std::uint64_t duplicate_records = 0;
  std::uint64_t absurd_steps = 0;
  std::uint64_t steps_joined = 0;
  std::uint64_t steps_corrected = 0;  // by ranks that came late
  std::uint64_t baseline_resets = 0;
  std::uint64_t runs_from_future = 0;  // restored with times beyond now
};

class Run {
 public:
  Run(std::string name, std::unique_ptr<RunJudge> judge, const RunOptions& options, TimeNs now_ns);

  // "" or the cause of the refusal.
  // `known_attempt`: where the store's cursor says that the segment belongs; "" if the segment is new.
  std::string AddProducer(std::shared_ptr<ProducerSlot> slot, const std::string& known_attempt, TimeNs now_ns);
  // A segment that the run remembers from before a restart is here again.
  void ReattachProducer(const std::shared_ptr<ProducerSlot>& slot);
  void OnSample(const std::shared_ptr<ProducerSlot>& slot, RankSample&& sample, BookCounters* counters);
  void OnEvent(const std::shared_ptr<ProducerSlot>& slot, ProducerEvent event);
  void OnLiveness(const std::shared_ptr<ProducerSlot>& slot, const LivenessReport& report);
  void OnLoss(const std::shared_ptr<ProducerSlot>& slot, const LossReport& report);
  void OnGone(const std::shared_ptr<ProducerSlot>& slot);
  bool Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement, Incident* out);
  // False if the new judge could not read what the old one knew: it then starts clean.
  bool ReplaceJudge(std::unique_ptr<RunJudge> judge);
  std::string SetMode(const std::string& mode, TimeNs now_ns);
  std::uint64_t OnAction(const LedgerEntry& entry, Transaction* out);

  // Joins what may be joined, shows it to the judge, evaluates; appends history to `out`. True if anything changed that a reader could see.
  bool Advance(TimeNs now_ns, const Reachability& reaches, Transaction* out, BookCounters* counters);

  // Blips and spikes that are over since the last call; Stumbled knows them from then on.
  std::vector<Stumble> TakeStumbles() { return std::exchange(new_stumbles_, {}); }
  const Stumble* FindStumble(const Stumble& other) const { return stumbles_.FindSame(other); }
  void NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns);

  // Rows for the store: the run's own, and a cursor for each of its segments that changed. Clears dirty marks only in MarkCommitted.
  void AppendRows(TimeNs now_ns, Transaction* out) const;
  void MarkSettled() const;
  void MarkCommitted();
  // What the judge was told since the last call, if there is enough of it or `all` is wanted.
  void AppendJournal(TimeNs now_ns, bool all, Transaction* out);
  bool HasJournal() const { return judge_->bytes() >= kJournalRowBytes; }
  // Rows that were appended did not get into the store.
  void RestartJournal() { judge_->Restart(); }
  bool dirty() const { return dirty_ || waiting_dirty_; }
  // Of what is dirty something outlives a restart: more than samples that wait for their step, which are then sent or read again.
  bool HasSettled() const { return dirty_; }
  bool Restore(const RunRow& row, BookCounters* counters, TimeNs now_ns);  // false: unreadable, the run starts clean
  void RestoreSteps(std::vector<StepSummary> oldest_first, TimeNs now_ns);
  // Where steps are read that are no longer in memory; null: nowhere. Of this thread alone.
  void set_history(std::shared_ptr<HistoryReader> history) { history_ = std::move(history); }
  void RestoreLedger(std::uint64_t entries) { ledger_entries_ = entries; }

  std::shared_ptr<const RunSnapshot> Snapshot(TimeNs now_ns, std::size_t max_recent_steps);

  const std::string& name() const { return name_; }
  bool ended() const { return ended_; }
  TimeNs ended_time_ns() const { return ended_time_ns_; }
  bool HasLiveProducer() const;
  TimeNs last_activity_ns() const { return last_activity_ns_; }
  std::vector<std::shared_ptr<ProducerSlot>> Slots() const;
  std::shared_ptr<ProducerSlot> FindSlot(const SegmentId& segment) const;
  // The first look at the sources after a restart is over: producers that it did not find again are lost.
  void SettleRestored();
  std::size_t rank_count() const;
  // Segments of attempts that were let go since the last call.
  std::vector<std::shared_ptr<ProducerSlot>> TakeDroppedSlots() { return std::exchange(dropped_slots_, {}); }

 private:
  friend class RunCodec;
  static constexpr std::size_t kJournalRowBytes = 16 * 1024;
  void IndexSlots();
  bool IsNotable(const RankState& state) const;
  Attempt* FindAttempt(const std::string& name);
  Attempt* FindDeclared(const std::string& declared);
  std::unique_ptr<Attempt> MakeAttempt(const ProducerInfo& info, TimeNs now_ns);
  // The job was started again under the same attempt name and goes back in its steps: that is a new attempt.
  void SplitIfBack(const std::shared_ptr<ProducerSlot>& slot, std::int64_t step, TimeNs now_ns);
  bool ClampTimes(TimeNs now_ns);  // true if one was beyond now
  Attempt* Newest();
  const Attempt* Newest() const { return const_cast<Run*>(this)->Newest(); }
  void OrderAttempts();
  void BoundAttempts();
  class Kept;
  // A step of the newest attempt that an earlier one has been through.
  void CompareWithEarlier(Attempt* attempt, const StepSummary& step);
  void JoinSteps(Attempt* attempt, TimeNs now_ns, Transaction* out, BookCounters* counters);
  Presence MakePresence(TimeNs now_ns, const Reachability& reaches) const;
  void UpdateEnd(TimeNs now_ns);
  void ShowPresence(TimeNs now_ns, const Reachability& reaches);
  void HandOverEnds();
  void TakeIncidents(Transaction* out);
  void TakeVerdict(TimeNs now_ns, Transaction* out);
  RankTotals* TotalsOf(std::uint32_t rank) { return &rank_totals_[rank]; }

  const std::string name_;
  std::unique_ptr<JournaledJudge> judge_;
  RunOptions options_;
  std::map<SegmentId, std::weak_ptr<ProducerSlot>> by_segment_;
  std::vector<std::shared_ptr<ProducerSlot>> dropped_slots_;
  std::shared_ptr<HistoryReader> history_;
  std::vector<std::unique_ptr<Attempt>> attempts_;  // by start
  std::map<std::uint32_t, RankTotals> rank_totals_;  // over attempts
  RankTotals totals_;                                // of ranks that count
  std::uint64_t next_sequence_ = 1;
  RecentSteps recent_;
  AttemptComparer comparer_;
  Stumbles stumbles_;
  std::vector<Stumble> new_stumbles_;
  std::shared_ptr<const StepSummary> last_step_;
  WindowTracker windows_;
  Verdict verdict_;
  bool has_verdict_ = false;
  std::uint64_t verdict_changes_ = 0;
  std::uint64_t ledger_entries_ = 0;
  std::optional<ResumePoint> last_checkpoint_;
  std::optional<double> evaluation_loss_nats_;
  std::optional<std::int64_t> evaluation_step_;
  std::string phase_ = "train";
  bool ended_ = false;
  bool failed_ = false;
  TimeNs first_seen_ns_ = 0;
  TimeNs ended_time_ns_ = 0;
  TimeNs last_activity_ns_ = 0;

  bool dirty_ = true;             // rows differ from the store's
  bool waiting_dirty_ = false;    // by samples that wait for their step
  bool policy_dirty_ = true;      // the judge's policy may not be in the store
  bool judge_dirty_ = true;       // the judge was told something since its verdict
  bool presence_dirty_ = true;
  TimeNs last_presence_ns_ = 0;
  std::size_t unreachable_ranks_ = 0;
  std::vector<ProducerEvent> ends_;  // END events that wait for the steps before them
  std::vector<ProducerEvent> new_events_;  // for the history
  std::vector<Incident> incidents_;  // the judge's, as of the last change
  RunJudge::Counters incident_counters_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RUN_H_
