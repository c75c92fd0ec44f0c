#include "server/state/history_keeper.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/state/history_codec.h"
#include "server/state/thin_steps.h"

namespace lossgauge::state {
namespace {

constexpr int kStepsPerRow = 64;
constexpr std::int64_t kRowsPerCall = 1024;        // about 5 ms
constexpr std::int64_t kBytesPerCall = 1 << 20;    // steps of a thousand ranks take 30 kB each
constexpr std::int64_t kRowsPerLook = 8;           // what looking at a run costs, in rows
constexpr std::int64_t kSweepEveryNs = std::int64_t{60} * 1'000'000'000;

}  // namespace

absl::Status HistoryKeeper::Prepare() {
  const std::pair<Statement*, const char*> wanted[] = {
      {&statements_.runs_after, "SELECT id FROM runs WHERE id>?1 ORDER BY id LIMIT 1"},
      // A run's sequences rise with receive time, so its oldest rows are its first.
      {&statements_.oldest_step, "SELECT receive_ns FROM steps WHERE run_id=?1 ORDER BY sequence LIMIT 1"},
      {&statements_.oldest_thinned, "SELECT receive_ns FROM thinned WHERE run_id=?1 ORDER BY sequence LIMIT 1"},
      {&statements_.read_steps, "SELECT sequence,receive_ns,data FROM steps WHERE run_id=?1 ORDER BY sequence LIMIT ?2"},
      // Their size without reading them.
      {&statements_.size_steps, "SELECT sequence,receive_ns,length(data) FROM steps WHERE run_id=?1 ORDER BY sequence LIMIT ?2"},
      {&statements_.drop_steps, "DELETE FROM steps WHERE run_id=?1 AND sequence<=?2"},
      {&statements_.put_thinned, "INSERT OR REPLACE INTO thinned VALUES(?1,?2,?3,?4,?5,?6)"},
      {&statements_.drop_thinned_to, "SELECT sequence,receive_ns,data FROM thinned WHERE run_id=?1 ORDER BY sequence LIMIT ?2"},
      {&statements_.drop_one_thinned, "DELETE FROM thinned WHERE run_id=?1 AND sequence<=?2"},
  };
  for (const auto& [statement, sql] : wanted) {
    auto prepared = Statement::Prepare(database_, sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  return extras_.Prepare();
}

absl::StatusOr<bool> HistoryKeeper::Work(TimeNs now_ns) {
  rows_left_ = kRowsPerCall;
  bytes_left_ = kBytesPerCall;
  const HistoryCounts before = counts_;
  bool more = false;
  if (auto status = Execute(database_, "BEGIN IMMEDIATE"); !status.ok()) return status;
  absl::Status status = WorkWithin(now_ns, &more);
  if (status.ok()) status = Execute(database_, "COMMIT");
  if (status.ok()) return more;
  counts_ = before;
  runs_.clear();
  is_sweeping_ = false;
  next_sweep_ns_ = 0;
  if (sqlite3_get_autocommit(database_) == 0) (void)Execute(database_, "ROLLBACK");
  return status;
}

absl::Status HistoryKeeper::WorkWithin(TimeNs now_ns, bool* more) {
  if (!is_sweeping_ && now_ns >= next_sweep_ns_) {
    is_sweeping_ = true;
    swept_to_ = 0;
    swept_part_ = 0;
    next_sweep_ns_ = now_ns + kSweepEveryNs;
  }
  if (now_ns + kSweepEveryNs < next_sweep_ns_) next_sweep_ns_ = now_ns;  // the clock was set back
  if (is_sweeping_) {
    if (auto status = Sweep(now_ns, more); !status.ok()) return status;
  }
  if (HasBudget() && !runs_.empty() && bytes_() > options_.max_bytes) {
    if (auto status = KeepSize(more); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status HistoryKeeper::Sweep(TimeNs now_ns, bool* more) {
  while (HasBudget()) {
    const auto row = statements_.runs_after.Int(1, swept_to_).Next();
    if (!row.ok()) return row.status();
    if (!*row) {
      statements_.runs_after.Reset();
      is_sweeping_ = false;
      return absl::OkStatus();
    }
    const std::int64_t run_id = statements_.runs_after.ColumnInt(0);
    statements_.runs_after.Reset();
    bool again = false;
    if (auto status = KeepAge(run_id, now_ns, &again); !status.ok()) return status;
    if (again) continue;
    swept_to_ = run_id;
    swept_part_ = 0;
  }
  *more = true;
  return absl::OkStatus();
}

// Part by part, so that a run larger than a call's work gets on.
absl::Status HistoryKeeper::KeepAge(std::int64_t run_id, TimeNs now_ns, bool* more) {
  rows_left_ -= kRowsPerLook;
  if (swept_part_ == 0) {
    if (auto status = KeepSteps(run_id, now_ns); !status.ok()) return status;
    if (HasBudget()) swept_part_ = 1;
  }
  for (; swept_part_ <= RunExtras::kKinds; ++swept_part_) {
    *more = !HasBudget();
    if (*more) return absl::OkStatus();
    const auto again = extras_.Trim(run_id, swept_part_ - 1, &rows_left_);
    *more = again.ok() && *again;
    if (!again.ok() || *more) return again.status();
  }
  *more = !HasBudget();
  if (*more) return absl::OkStatus();
  const auto fate = extras_.DropRunIfOld(run_id, now_ns - options_.max_age_ns, &rows_left_);
  *more = fate.ok() && *fate == RunExtras::Fate::kIsGoing;
  if (!fate.ok()) return fate.status();
  if (*fate == RunExtras::Fate::kIsGone) on_runs_dropped_();  // a run that comes back gets a new row
  return absl::OkStatus();
}

absl::Status HistoryKeeper::KeepSteps(std::int64_t run_id, TimeNs now_ns) {
  const TimeNs too_old = now_ns - options_.max_age_ns;
  const TimeNs old = now_ns - std::min(options_.full_age_ns, options_.max_age_ns);
  const auto dropped = DropThinned(run_id, too_old);
  if (!dropped.ok()) return dropped.status();
  counts_.dropped_by_age += *dropped;
  const auto dropped_whole = DropSteps(run_id, too_old);
  if (!dropped_whole.ok()) return dropped_whole.status();
  counts_.dropped_by_age += *dropped_whole;
  for (bool has_thinned = true; has_thinned && HasBudget();) {
    const auto thinned = ThinOne(run_id, old);
    if (!thinned.ok()) return thinned.status();
    has_thinned = *thinned;
  }
  runs_.erase(run_id);  // looked at afresh: steps may have come that make a bucket whole
  return Look(run_id);
}

absl::Status HistoryKeeper::KeepSize(bool* more) {
  while (HasBudget()) {
    if (bytes_() <= options_.max_bytes) return absl::OkStatus();
    rows_left_ -= kRowsPerLook;
    // The oldest of all runs: to thin, then to drop.
    std::int64_t victim = 0;
    std::optional<TimeNs> oldest;
    enum { kNothing, kThin, kDropThinned, kDropWhole } what = kNothing;
    const auto offer = [&](std::int64_t id, const std::optional<TimeNs>& time, auto action) {
      if (!time || (what != kNothing && what != action) || (oldest && *oldest <= *time)) return;
      victim = id;
      oldest = time;
      what = action;
    };
    for (const auto& [id, run] : runs_) {
      if (run.can_thin) offer(id, run.whole, kThin);
    }
    if (what == kNothing) {
      for (const auto& [id, run] : runs_) offer(id, run.thinned, kDropThinned);
    }
    if (what == kNothing) {
      for (const auto& [id, run] : runs_) offer(id, run.whole, kDropWhole);
    }
    if (what == kNothing) return absl::OkStatus();  // what is left is no history of steps
    if (what == kThin) {
      const auto thinned = ThinOne(victim, std::nullopt);
      if (!thinned.ok()) return thinned.status();
      if (!*thinned) runs_[victim].can_thin = false;
    } else {
      const auto dropped = what == kDropThinned ? DropThinned(victim, std::nullopt) : DropSteps(victim, std::nullopt);
      if (!dropped.ok()) return dropped.status();
      counts_.dropped_by_size += *dropped;
    }
    if (auto status = Look(victim); !status.ok()) return status;
  }
  *more = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> HistoryKeeper::ThinOne(std::int64_t run_id, std::optional<TimeNs> before_ns) {
  auto& read = statements_.read_steps;
  std::vector<StepSummary> steps;
  std::int64_t last_damaged = -1;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  bool is_young = false;
  bool is_broken = false;
  read.Int(1, run_id).Int(2, kStepsPerRow);
  absl::Status status;
  for (;;) {
    const auto row = read.Next();
    if (!row.ok()) status = row.status();
    if (!row.ok() || !*row) break;
    is_young = before_ns && read.ColumnInt(1) >= *before_ns;
    if (is_young) break;
    ++rows;
    const std::string_view data = read.ColumnBytes(2);
    bytes += static_cast<std::int64_t>(data.size());
    auto step = DecodeStep(data);
    if (!step) {
      if (steps.empty()) last_damaged = read.ColumnInt(0);
      is_broken = true;
      break;
    }
    is_broken = !steps.empty() && (step->attempt != steps.back().attempt || step->step <= steps.back().step);
    if (is_broken) break;
    steps.push_back(*std::move(step));
    if (bytes >= kBytesPerCall) break;
  }
  read.Reset();
  if (!status.ok()) return status;
  rows_left_ -= rows;
  bytes_left_ -= bytes;
  if (last_damaged >= 0) {
    ++counts_.dropped_damaged;
    if (auto s = statements_.drop_steps.Int(1, run_id).Int(2, last_damaged).Run(); !s.ok()) return s;
    return true;
  }
  // Fewer than a row's worth: their successors are to come, unless all there is of the run is old.
  const bool is_whole = rows == kStepsPerRow || is_broken || bytes >= kBytesPerCall || (before_ns && !is_young);
  if (steps.empty() || !is_whole) return false;
  const StepSummary row = ThinSteps(steps);
  const std::string data = EncodeStep(row);
  if (auto s = statements_.put_thinned.Int(1, run_id).Int(2, static_cast<std::int64_t>(row.sequence)).Int(3, row.thinned->first_step)
                   .Int(4, row.step).Int(5, row.receive_time_ns).Blob(6, data).Run();
      !s.ok()) {
    return s;
  }
  if (auto s = statements_.drop_steps.Int(1, run_id).Int(2, static_cast<std::int64_t>(row.sequence)).Run(); !s.ok()) return s;
  counts_.thinned += row.thinned->steps;
  return true;
}

absl::StatusOr<std::uint64_t> HistoryKeeper::DropSteps(std::int64_t run_id, std::optional<TimeNs> before_ns) {
  auto& read = statements_.size_steps;
  // Without an age: as little as helps, and looked at again.
  read.Int(1, run_id).Int(2, before_ns ? std::max<std::int64_t>(rows_left_, 1) : kStepsPerRow);
  std::int64_t last = -1;
  std::uint64_t rows = 0;
  absl::Status status;
  for (;;) {
    const auto row = read.Next();
    if (!row.ok()) status = row.status();
    if (!row.ok() || !*row || (before_ns && read.ColumnInt(1) >= *before_ns)) break;
    last = read.ColumnInt(0);
    ++rows;
    bytes_left_ -= read.ColumnInt(2);
    if (bytes_left_ <= 0) break;
  }
  read.Reset();
  rows_left_ -= static_cast<std::int64_t>(rows);
  if (status.ok() && last >= 0) status = statements_.drop_steps.Int(1, run_id).Int(2, last).Run();
  if (!status.ok()) return status;
  return rows;
}

absl::StatusOr<std::uint64_t> HistoryKeeper::DropThinned(std::int64_t run_id, std::optional<TimeNs> before_ns) {
  auto& read = statements_.drop_thinned_to;
  read.Int(1, run_id).Int(2, before_ns ? std::max<std::int64_t>(rows_left_, 1) : kStepsPerRow);
  std::int64_t last = -1;
  std::uint64_t steps = 0;
  absl::Status status;
  for (;;) {
    const auto row = read.Next();
    if (!row.ok()) status = row.status();
    if (!row.ok() || !*row || (before_ns && read.ColumnInt(1) >= *before_ns)) break;
    last = read.ColumnInt(0);
    --rows_left_;
    const std::string_view data = read.ColumnBytes(2);
    const auto step = DecodeStep(data);
    steps += step && step->thinned ? step->thinned->steps : 1;
    bytes_left_ -= static_cast<std::int64_t>(data.size());
    if (bytes_left_ <= 0) break;
  }
  read.Reset();
  if (status.ok() && last >= 0) status = statements_.drop_one_thinned.Int(1, run_id).Int(2, last).Run();
  if (!status.ok()) return status;
  return steps;
}

absl::Status HistoryKeeper::Look(std::int64_t run_id) {
  const auto read = [run_id](Statement& statement) -> absl::StatusOr<std::optional<TimeNs>> {
    const auto row = statement.Int(1, run_id).Next();
    std::optional<TimeNs> time;
    if (row.ok() && *row) time = statement.ColumnInt(0);
    statement.Reset();
    if (!row.ok()) return row.status();
    return time;
  };
  const auto whole = read(statements_.oldest_step);
  if (!whole.ok()) return whole.status();
  const auto thinned = read(statements_.oldest_thinned);
  if (!thinned.ok()) return thinned.status();
  Oldest& oldest = runs_[run_id];
  if (oldest.whole != *whole) oldest.can_thin = true;
  oldest.whole = *whole;
  oldest.thinned = *thinned;
  if (!*whole && !*thinned) runs_.erase(run_id);
  return absl::OkStatus();
}

}  // namespace lossgauge::state
