// State and history in one SQLite file. The drain thread writes: everything of a drain cycle (cursors, totals, steps, incidents, verdict
// changes, judge states) in one transaction, so that a SIGKILL at any moment loses or doubles nothing that a ring still holds.
// RPC threads read history through one read-only connection of their own, one at a time; the writer never waits for it.
#ifndef LOSSGAUGE_SERVER_STATE_STORE_H_
#define LOSSGAUGE_SERVER_STATE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/policy_view.h"
#include "server/state/snapshot.h"

namespace lossgauge::state {

struct CursorRow {
  SegmentId segment;
  std::string run;
  std::string attempt;
  std::uint32_t rank = 0;
  std::uint64_t next_steps_publication = 1;
  std::uint64_t next_events_publication = 1;
  bool ended = false;  // everything of it was delivered; kept so that a lingering file is not read again
  std::string totals;  // serialised by the run book: last cumulative totals seen of each block of this segment
  TimeNs updated_ns = 0;
};

struct RunRow {
  std::string run;
  std::string state;  // serialised by the run book (totals per rank, attempts, next sequence, checkpoints, ...)
  std::string judge;  // RunJudge::Save
  TimeNs updated_ns = 0;
};

struct StepQuery {
  std::string run;
  std::string attempt;  // empty = all
  std::optional<std::int64_t> first_step;
  std::optional<std::int64_t> last_step;
  std::uint64_t after_sequence = 0;
  int limit = 1000;
  bool newest_first = false;
  bool without_ranks = false;  // leaves StepSummary::rank_steps empty: of a step of thousands of ranks nearly all the work and memory
  bool thinned = false;  // give rows of thinned steps too (StepSummary::thinned); those that overlap a range of steps count as in it
};

// A part of a run's journal (judge_journal.h).
struct JournalRow {
  std::string run;
  std::int64_t id = 0;  // rising; the store's
  bool begins = false;
  TimeNs time_ns = 0;
  std::string data;
};

// A policy that judged. Kept by its version and numbers: a version that somebody gave twice does not hide the first.
struct PolicyRow {
  std::shared_ptr<const PolicyView> policy;
  TimeNs time_ns = 0;  // when it was first used
};

// One drain cycle's writes.
struct Transaction {
  std::vector<CursorRow> cursors;
  std::vector<SegmentId> forget_cursors;
  std::vector<RunRow> runs;
  std::vector<std::pair<std::string, std::shared_ptr<const StepSummary>>> steps;  // run, summary
  std::vector<Incident> incidents;  // inserted or replaced by id
  std::vector<std::pair<std::string, Verdict>> verdicts;  // run, changed verdict
  std::vector<std::pair<std::string, LedgerEntry>> ledger;
  std::vector<std::pair<std::string, ProducerEvent>> events;
  std::vector<JournalRow> journal;
  std::vector<PolicyRow> policies;
  bool empty() const {
    return cursors.empty() && forget_cursors.empty() && runs.empty() && steps.empty() && incidents.empty() && verdicts.empty() && ledger.empty() &&
           events.empty() && journal.empty() && policies.empty();
  }
};

struct StoreOptions {
  std::string directory;  // created 0750 if absent; empty = a temporary directory, removed at the end (nothing survives)
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // beyond it the oldest steps are thinned, and once all are, dropped
  std::int64_t full_age_ns = std::int64_t{2} * 86400 * 1'000'000'000;  // older steps are thinned
  std::int64_t max_age_ns = std::int64_t{30} * 86400 * 1'000'000'000;  // older ones are dropped, whatever they are
  std::uint64_t journal_bytes = std::uint64_t{64} << 20;  // of all runs' journals, beside max_bytes; the oldest pieces go
};

// Steps that are no longer in the history as they were, since it was opened.
struct HistoryCounts {
  std::uint64_t thinned = 0;
  std::uint64_t dropped_by_age = 0;
  std::uint64_t dropped_by_size = 0;
  std::uint64_t dropped_damaged = 0;  // rows that could not be decoded
};

// A run that the history knows, whether it is on pages or not.
struct StoredRun {
  std::string run;
  TimeNs updated_ns = 0;
};

// A page of so many rows; a damaged one takes its place in it, though nothing of it can be shown.
struct EventPage {
  std::vector<std::pair<std::int64_t, ProducerEvent>> events;  // rising ids; of the producer, run, attempt and rank are known
  std::int64_t last_id = 0;                                    // of the last row, where the next page begins after
  std::uint64_t damaged = 0;
  bool more = false;  // rows follow
};

struct JournalPage {
  std::vector<JournalRow> rows;  // rising ids
  bool more = false;             // rows follow
};

class HistoryReader {
 public:
  virtual ~HistoryReader() = default;
  // Rising sequence, or falling if newest_first. Thread-safe. RESOURCE_EXHAUSTED: the attempt's steps were not found among the first
  // 200 000 rows looked at; steps or a sequence to begin after narrow it.
  virtual absl::StatusOr<std::vector<StepSummary>> ReadSteps(const StepQuery& query) = 0;
  // Of incidents and verdicts, damaged ones are passed over: fewer than `limit` were found only if there are no more.
  virtual absl::StatusOr<std::vector<Incident>> ReadIncidents(const std::string& run, bool open_only, int limit, int offset) = 0;
  virtual absl::StatusOr<std::optional<Incident>> FindIncident(const std::string& run, const std::string& id) = 0;
  virtual absl::StatusOr<std::vector<Verdict>> ReadVerdicts(const std::string& run, int limit, int offset) = 0;  // newest first
  virtual absl::StatusOr<EventPage> ReadEvents(const std::string& run, std::int64_t after_id, int limit) = 0;
  virtual absl::StatusOr<std::vector<LedgerEntry>> ReadLedger(const std::string& run) = 0;  // oldest first
  // Policies that had this version, newest first.
  virtual absl::StatusOr<std::vector<PolicyRow>> ReadPolicies(const std::string& version) {
    (void)version;
    return std::vector<PolicyRow>();
  }
  // Rows after `after_id`, from the newest piece that began at `from_ns` or before, else the oldest there is, to the first row that was written after
  // `to_ns`. As many as fit into `max_bytes`, one at least.
  virtual absl::StatusOr<JournalPage> ReadJournal(const std::string& run, std::int64_t after_id, TimeNs from_ns, TimeNs to_ns, std::size_t max_bytes) {
    (void)run, (void)after_id, (void)from_ns, (void)to_ns, (void)max_bytes;
    return JournalPage();
  }
  virtual absl::StatusOr<std::vector<StoredRun>> ReadRuns(int limit) = 0;                   // newest first
  virtual absl::StatusOr<std::optional<StoredRun>> FindRun(const std::string& run) = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  // A file that is not ours (damaged, also if it was found so while it was in use, another program's, newer schema) is moved aside, named in
  // `open_note()`, and a new one begun. Whatever may pass is an error, and nothing is moved. Whoever opens holds the directory's lock: another process's file must not be judged.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);

  virtual std::string open_note() const = 0;  // "" or what was found damaged
  virtual absl::Status Commit(const Transaction& transaction) = 0;
  virtual absl::StatusOr<std::vector<CursorRow>> LoadCursors() = 0;
  virtual absl::StatusOr<std::vector<RunRow>> LoadRuns() = 0;
  virtual absl::StatusOr<std::optional<RunRow>> LoadRun(const std::string& run) = 0;  // nothing if there is no such run
  virtual absl::StatusOr<std::uint64_t> CountLedger(const std::string& run) = 0;
  virtual absl::StatusOr<std::vector<LedgerEntry>> LoadLedger(const std::string& run) = 0;
  // Thins and drops steps beyond their ages and the size, and drops runs that are older than the age and have none left, with their ledger. A
  // bounded amount of work, about 5 ms; true: more is waiting.
  virtual absl::StatusOr<bool> Prune(TimeNs now_ns) = 0;
  virtual HistoryCounts history_counts() const = 0;
  virtual std::uint64_t bytes() const = 0;
  virtual std::shared_ptr<HistoryReader> reader() = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STORE_H_
