// What the outside may see: immutable once published, shared by every reader, no lock held while it is read.
#ifndef LOSSGAUGE_SERVER_STATE_SNAPSHOT_H_
#define LOSSGAUGE_SERVER_STATE_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/attempt_comparison.h"
#include "server/state/incident.h"
#include "server/state/joined_step.h"
#include "server/state/judge.h"
#include "server/state/records.h"
#include "server/state/verdict.h"

namespace lossgauge::state {

// Counters of one rank of a run, over attempts and restarts of lossgauged. Exact sums from the producers' cumulative totals.
struct RankTotals {
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;
  std::uint64_t unmasked_tokens = 0;
  std::uint64_t finite_tokens = 0;
  std::uint64_t nonfinite_rows = 0;
  std::uint64_t nonfinite_grad_rows = 0;
  std::uint64_t nonfinite_steps = 0;
  std::uint64_t bad_targets = 0;
  std::uint64_t target_bytes = 0;
  std::uint64_t correct_tokens = 0;
  std::uint64_t clamped_rows = 0;
  std::uint64_t mass_error_rows = 0;
  lg_fixed128 nll_sum{};
  lg_fixed128 scored_nll_sum{};
  lg_fixed128 z_loss_sum{};
  std::array<std::uint64_t, static_cast<std::size_t>(LossReason::kCount)> records_lost{};
  std::uint64_t records_read = 0;
};

// Maxima over fixed windows of 10 s of lossgauged's clock, the last six and the running one: whatever scrapes, and however often, sees the same.
struct WindowMaxima {
  std::optional<double> loss_nats;
  std::optional<double> max_abs_logit;
  std::optional<double> grad_norm;
  std::optional<double> log_z_max_nats;
  std::optional<double> step_seconds;
};

// One rank of the newest attempt.
struct RankView {
  std::uint32_t rank = 0;
  std::shared_ptr<const ProducerInfo> producer;
  LivenessReport liveness;
  std::optional<RankSample> last_sample;  // block 0
  std::optional<double> step_seconds;
  WindowMaxima max_60s;
  RankTotals totals;
  TimeNs last_record_time_ns = 0;
};

struct AttemptView {
  std::string attempt;
  TimeNs start_time_ns = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = -1;
  std::uint64_t steps = 0;
  std::string state;  // "running", "ended", "failed", "lost"
  std::optional<std::int64_t> resumed_after_step;
  std::optional<AttemptComparison> comparison;  // of the steps that an earlier attempt has been through
};

using StepChunk = std::vector<std::shared_ptr<const StepSummary>>;

struct RunSnapshot {
  std::string run;
  std::vector<AttemptView> attempts;  // by start
  lg_layout layout{};
  std::vector<RankView> ranks;  // by rank
  std::size_t unreachable_ranks = 0;  // nothing is heard of their nodes, or not yet all that they have
  std::size_t ranks_left_out = 0;  // of the newest attempt: with too many ranks only those that are not live or are missing stand in `ranks`
  bool any_left_out_up = false;
  std::vector<std::shared_ptr<const StepChunk>> recent_steps;  // rising sequence; oldest first; bounded
  std::shared_ptr<const StepSummary> last_step;
  std::uint64_t next_sequence = 1;
  std::vector<Incident> incidents;  // open, and resolved of late
  RunJudge::Counters incident_counters;
  Verdict verdict;
  std::uint64_t verdict_changes = 0;
  std::string phase = "train";
  bool ended = false;
  bool failed = false;  // declared so by the job
  TimeNs first_seen_ns = 0;
  TimeNs ended_time_ns = 0;
  std::optional<ResumePoint> last_checkpoint;
  std::optional<double> evaluation_loss_nats;
  std::optional<std::int64_t> evaluation_step;
  std::string mode = "advise";
  std::shared_ptr<const PolicyView> policy;  // null: not told
  RankTotals totals;  // over ranks that count (one per tensor-parallel group)
  WindowMaxima max_60s;  // of the joined steps
};

// What a sidecar sends on to daemons.
struct ForwardView {
  struct Target {
    std::string address;
    bool connected = false;
    std::uint64_t records_sent = 0;     // repeated ones included
    std::uint64_t records_acknowledged = 0;  // of those
    std::uint64_t records_dropped = 0;  // out of the spool before this daemon had them
    std::uint64_t failures = 0;         // streams that ended or never began
  };
  std::vector<Target> targets;
  std::uint64_t spool_bytes = 0;
  std::uint64_t spool_write_errors = 0;
};

// lossgauged about itself.
struct SelfView {
  std::uint64_t rings_attached = 0;
  std::map<std::string, std::uint64_t> ring_errors;  // by cause: not_ready, bad_magic, other_major, truncated, ...
  std::map<std::string, std::uint64_t> runs_refused;  // by cause
  std::uint64_t names_repaired = 0;  // run names cut or with invalid UTF-8 replaced
  std::uint64_t drain_cycles = 0;
  double drain_lag_seconds = 0;  // age of the oldest record delivered in the last cycle
  double drain_busy_seconds = 0;  // total
  std::uint64_t state_write_errors = 0;
  std::uint64_t state_bytes = 0;
  std::uint64_t history_steps_thinned = 0;  // since this process began, as the four below
  std::uint64_t history_steps_dropped_by_age = 0;
  std::uint64_t history_steps_dropped_by_size = 0;
  std::uint64_t history_steps_damaged = 0;
  std::uint64_t history_steps_unwritten = 0;  // fell out of the queue while the store could not write
  std::uint64_t late_records = 0;  // of steps already joined
  std::uint64_t duplicate_records = 0;  // second record of a rank for the same step of an attempt
  std::uint64_t steps_joined = 0;
  std::uint64_t steps_corrected = 0;  // that ranks were added to which came late
  std::map<std::string, std::uint64_t> ingest;  // of what came from other nodes, by name (SourceStats::ingest); empty without
  std::optional<ForwardView> forward;           // of a sidecar that forwards
  std::uint64_t absurd_steps = 0;
  std::uint64_t baseline_resets = 0;  // judge states that could not be restored
};

struct Snapshot {
  std::uint64_t version = 0;  // rises with each publication
  TimeNs time_ns = 0;
  std::string instance;  // random, per process
  TimeNs start_time_ns = 0;
  std::vector<std::shared_ptr<const RunSnapshot>> runs;  // by name
  SelfView self;
};

// nullptr if there is no such run.
std::shared_ptr<const RunSnapshot> FindRun(const Snapshot& snapshot, const std::string& run);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_SNAPSHOT_H_
