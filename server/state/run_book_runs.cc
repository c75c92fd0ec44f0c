// Which runs are in memory: those that the store knows at the start, that a producer names, and until when.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/state/run_book.h"
#include "server/state/run_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::int64_t kCursorKeptNs = std::int64_t{7} * 86'400 * 1'000'000'000;

}  // namespace

absl::Status RunBook::Load(TimeNs now_ns) {
  now_ns_ = now_ns;
  auto cursors = store_->LoadCursors();
  if (!cursors.ok()) return cursors.status();
  for (CursorRow& row : *cursors) {
    if (now_ns - row.updated_ns > kCursorKeptNs) {
      queued_.forget_cursors.push_back(row.segment);
      continue;
    }
    const SegmentId segment = row.segment;
    cursors_.emplace(segment, std::move(row));
  }
  auto rows = store_->LoadRuns();
  if (!rows.ok()) return rows.status();
  startup_rows_ = *std::move(rows);
  for (const RunRow& row : startup_rows_) {
    stored_runs_.insert(row.run);
    if (now_ns - row.updated_ns > std::max(options_.linger_ns, options_.lost_linger_ns) || runs_.size() >= options_.max_runs) continue;
    auto run = MakeRun(row.run, now_ns);
    if (!RestoreRun(run.get(), row, now_ns)) continue;
    if (run->ended() && now_ns - run->ended_time_ns() > options_.linger_ns) continue;
    runs_[row.run].run = std::move(run);
  }
  return absl::OkStatus();
}

std::unique_ptr<Run> RunBook::MakeRun(const std::string& name, TimeNs now_ns) {
  auto run = std::make_unique<Run>(name, judges_->MakeJudge(name), options_.run, now_ns);
  run->set_history(history_);
  return run;
}

bool RunBook::RestoreRun(Run* run, const RunRow& row, TimeNs now_ns) {
  if (!run->Restore(row, &counters_, now_ns)) {
    ++counters_.baseline_resets;
    return false;
  }
  StepQuery query;
  query.run = row.run;
  query.limit = static_cast<int>(options_.max_recent_steps);
  query.newest_first = true;
  if (history_ == nullptr) return true;
  if (auto steps = history_->ReadSteps(query); steps.ok()) {
    std::reverse(steps->begin(), steps->end());
    AddQueuedSteps(row.run, &*steps);
    run->RestoreSteps(*std::move(steps), now_ns);
  }
  if (const auto entries = store_->CountLedger(row.run); entries.ok()) {
    const auto waiting = std::count_if(queued_.ledger.begin(), queued_.ledger.end(), [&row](const auto& entry) { return entry.first == row.run; });
    run->RestoreLedger(*entries + static_cast<std::uint64_t>(waiting));
  }
  return true;
}

// An ended run goes first, then the one that has been dead longest; a run with a live producer never goes.
bool RunBook::MakeRoom() {
  const Entry* victim = nullptr;
  for (const auto& [name, entry] : runs_) {
    if (entry.run->HasLiveProducer()) continue;
    const auto slots = entry.run->Slots();
    if (!std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return slot->IsDone(); })) continue;
    const auto key = [](const Entry& e) { return std::make_pair(!e.run->ended(), e.run->last_activity_ns()); };
    if (victim == nullptr || key(entry) < key(*victim)) victim = &entry;
  }
  if (victim == nullptr) return false;
  DropRun(std::string(victim->run->name()));
  return true;
}

std::optional<RunRow> RunBook::LastRow(const std::string& run) const {
  if (!stored_runs_.contains(run)) return std::nullopt;
  const auto is_its = [&run](const RunRow& row) { return row.run == run; };
  // Let go since the last commit: what the store has is older.
  if (const auto row = std::find_if(queued_.runs.rbegin(), queued_.runs.rend(), is_its); row != queued_.runs.rend()) return *row;
  if (is_started_) {
    auto row = store_->LoadRun(run);
    return row.ok() ? *std::move(row) : std::nullopt;
  }
  const auto row = std::find_if(startup_rows_.begin(), startup_rows_.end(), is_its);
  return row == startup_rows_.end() ? std::nullopt : std::make_optional(*row);
}

void RunBook::AddQueuedSteps(const std::string& run, std::vector<StepSummary>* steps) const {
  for (const auto& [name, queued] : queued_.steps) {
    if (name != run) continue;
    const auto at = std::lower_bound(steps->begin(), steps->end(), queued->sequence,
                                     [](const StepSummary& step, std::uint64_t sequence) { return step.sequence < sequence; });
    if (at != steps->end() && at->sequence == queued->sequence) {
      *at = *queued;  // corrected
    } else {
      steps->insert(at, *queued);
    }
  }
}

Run* RunBook::FindOrMakeRun(const std::string& name, TimeNs now_ns) {
  if (const auto it = runs_.find(name); it != runs_.end()) return it->second.run.get();
  if (runs_.size() >= options_.max_runs && !MakeRoom()) return nullptr;
  auto run = MakeRun(name, now_ns);
  // The run was let go and comes back: its counters go on.
  if (const std::optional<RunRow> row = LastRow(name); row && !RestoreRun(run.get(), *row, now_ns)) run = MakeRun(name, now_ns);
  Entry& entry = runs_[name];
  entry.run = std::move(run);
  return entry.run.get();
}

void RunBook::DropOldRuns(TimeNs now_ns) {
  std::vector<std::string> old;
  for (const auto& [name, entry] : runs_) {
    const Run& run = *entry.run;
    // Of a forwarded one nobody may ever tell that it is gone: being silent counts.
    if (run.HasLiveProducer() && !options_.run.is_forwarded) continue;
    const bool has_lingered = run.ended() ? now_ns - run.ended_time_ns() > options_.linger_ns
                                          : now_ns - run.last_activity_ns() > options_.lost_linger_ns;
    if (has_lingered) old.push_back(name);
  }
  for (const std::string& name : old) DropRun(name);
}

void RunBook::DropRun(const std::string& name) {
  const auto it = runs_.find(name);
  if (it == runs_.end()) return;
  Run& run = *it->second.run;
  if (!run.Slots().empty()) {
    run.AppendRows(now_ns_, &queued_);
    run.AppendJournal(now_ns_, true, &queued_);
    stored_runs_.insert(name);
  }
  for (const auto& slot : run.Slots()) {
    if (segments_.contains(slot->info->segment) || options_.run.is_forwarded) KeepCursor(name, *slot);
  }
  for (const auto& slot : run.TakeDroppedSlots()) KeepCursor(name, *slot);
  runs_.erase(it);
  has_news_ = true;
}

// Its file lingers, or a forwarder may send it again: the row says that there is nothing left to read of it.
void RunBook::KeepCursor(const std::string& run, const ProducerSlot& slot) {
  const SegmentId id = slot.info->segment;
  CursorRow row;
  row.segment = id;
  row.run = run;
  row.attempt = slot.info->attempt;
  row.rank = slot.info->layout.rank;
  row.next_steps_publication = slot.next_steps;
  row.next_events_publication = slot.next_events;
  row.ended = !options_.run.is_forwarded || (slot.IsDone() && slot.liveness.drained);  // one that was only not heard of may come back
  row.totals = RunCodec::EncodeSlotTotals(slot);
  row.updated_ns = now_ns_;
  queued_.cursors.push_back(row);
  cursors_[id] = std::move(row);
  segments_.erase(id);
}

}  // namespace lossgauge::state
