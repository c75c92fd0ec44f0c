#include "server/export/step_shipper.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "server/export/label_text.h"

namespace lossgauge::export_ {
namespace {

using state::ShipDrop;
using state::ShipResult;
using state::TimeNs;

std::function<TimeNs()> DefaultNow() {
  return [clock = std::make_shared<state::SystemClock>()] {
    timespec wall{};
    clock_gettime(CLOCK_REALTIME, &wall);
    return std::min(clock->NowNs(), TimeNs{wall.tv_sec} * 1'000'000'000 + wall.tv_nsec);
  };
}

}  // namespace

StepShipper::StepShipper(const ShipperOptions& options, const state::SnapshotBoard& board, std::shared_ptr<state::HistoryReader> history,
                         StepSink* sink, std::unique_ptr<ShipCursors> cursors, state::ShipCounters* counters, std::function<TimeNs()> now_ns)
    : options_(options),
      board_(board),
      history_(std::move(history)),
      sink_(sink),
      cursors_(std::move(cursors)),
      counters_(counters),
      now_ns_(now_ns ? std::move(now_ns) : DefaultNow()),
      receiver_(sink->name()) {
  counters_->in_use = true;
}

StepShipper::~StepShipper() { Stop(0); }

absl::Status StepShipper::Load() {
  absl::StatusOr<std::map<std::string, ShipCursor>> known = cursors_->Load(receiver_);
  if (!known.ok()) return known.status();
  for (auto& [run, cursor] : *known) {
    RunState& state = runs_[run];
    state.cursor = cursor;
    const absl::StatusOr<std::uint64_t> last = LastSequence(run, history_.get());
    if (last.ok()) state.last_sequence = *last;
  }
  return absl::OkStatus();
}

void StepShipper::LookAt(const state::Snapshot& snapshot, TimeNs now_ns) {
  for (auto& [name, state] : runs_) state.shown = false;
  std::uint64_t pending = 0;
  for (const auto& run : snapshot.runs) {
    const auto [entry, is_new] = runs_.try_emplace(run->run);
    RunState& state = entry->second;
    state.shown = true;
    state.last_sequence = run->next_sequence - 1;
    // A run that was never sent begins with what receivers still take. One that is behind its cursor was lost with its state and begins with
    // what came after the last step sent.
    const bool lost = state.cursor.sent > state.last_sequence;
    if (!is_new && !lost) continue;
    const TimeNs since = std::max(now_ns - options_.backlog.max_age_ns, lost ? (state.cursor.last_ms + 1) * 1'000'000 : TimeNs{0});
    const absl::StatusOr<std::uint64_t> begin = SequenceBefore(run->run, run.get(), history_.get(), state.last_sequence, since);
    if (!begin.ok()) {
      if (is_new) runs_.erase(entry);  // the next round tries again
      continue;
    }
    state.cursor.sent = *begin;
    state.cursor.in_flight = 0;
    state.dirty = true;
  }
  for (auto& [name, state] : runs_) {
    if (state.last_sequence > state.cursor.sent + options_.max_pending_steps) {
      const std::uint64_t begin = state.last_sequence - options_.max_pending_steps;
      counters_->Drop(ShipDrop::kQueueFull, begin - state.cursor.sent);
      state.cursor.sent = begin;
      state.cursor.in_flight = 0;
      state.dirty = true;
    }
    pending += state.last_sequence - std::min(state.cursor.sent, state.last_sequence);
  }
  counters_->pending_steps = pending;
}

// Everything of it was sent, and if it came back, its old steps would be too old: nothing would be sent twice.
void StepShipper::Forget(TimeNs now_ns) {
  for (auto entry = runs_.begin(); entry != runs_.end();) {
    const RunState& state = entry->second;
    const bool done = !state.shown && state.cursor.sent >= state.last_sequence && state.cursor.updated_ns < now_ns - 2 * options_.backlog.max_age_ns;
    if (done) forget_.push_back(entry->first);
    entry = done ? runs_.erase(entry) : std::next(entry);
  }
}

void StepShipper::Plan(const state::Snapshot& snapshot, TimeNs now_ns, std::map<std::string, StepBatch>* batches, bool* more) {
  for (auto& [name, state] : runs_) {
    if (state.cursor.sent >= state.last_sequence || now_ns < state.next_try_ns) continue;
    const auto run = state.shown ? state::FindRun(snapshot, name) : nullptr;
    absl::StatusOr<StepBatch> batch = NextBatch(name, run.get(), history_.get(), state.cursor, state.last_sequence, now_ns, options_.backlog);
    if (!batch.ok()) {
      state.next_try_ns = now_ns + options_.first_pause_ns;
      Tell({ShipResult::kFailed, ShipDrop::kRefused, 0, 0, "history cannot be read: " + std::string(batch.status().message())}, name);
      continue;
    }
    counters_->Drop(ShipDrop::kTooOld, batch->too_old);
    counters_->Drop(ShipDrop::kMissing, batch->missing);
    batch->too_old = batch->missing = 0;
    *more |= batch->more;
    if (batch->steps.empty()) {
      if (batch->end == state.cursor.sent) continue;
      Finish(&state, *batch, now_ns);
      continue;
    }
    // Steps before the first of the batch have been counted: they are not looked at again.
    state.cursor.sent = batch->steps.front().step->sequence - 1;
    state.cursor.in_flight = batch->end;
    state.dirty = true;
    batches->emplace(name, *std::move(batch));
  }
}

bool StepShipper::RunRound() {
  const std::shared_ptr<const state::Snapshot> snapshot = board_.Get();
  const TimeNs now_ns = now_ns_();
  LookAt(*snapshot, now_ns);
  Forget(now_ns);
  if (now_ns < next_try_ns_) return false;
  std::map<std::string, StepBatch> batches;
  bool more = false;
  Plan(*snapshot, now_ns, &batches, &more);
  // Not written down, not sent: after a restart it would be sent again together with what is new, and refused as a whole.
  if (!SaveCursors()) return false;
  for (const auto& [run, batch] : batches) {
    if (!SendBatch(run, batch, now_ns)) break;
  }
  SaveCursors();
  std::uint64_t pending = 0;
  for (const auto& [name, state] : runs_) pending += state.last_sequence - std::min(state.cursor.sent, state.last_sequence);
  counters_->pending_steps = pending;
  return more && next_try_ns_ <= now_ns;
}

bool StepShipper::SendBatch(const std::string& run, const StepBatch& batch, TimeNs now_ns) {
  RunState& state = runs_[run];
  const SinkAnswer answer = sink_->Send(LabelText(run), batch.steps);
  ++counters_->requests[static_cast<std::size_t>(answer.result)];
  Tell(answer, run);
  switch (answer.result) {
    case ShipResult::kTaken:
      counters_->sent_steps += batch.steps.size();
      counters_->sent_samples += answer.samples;
      counters_->moved_timestamps += batch.moved;
      counters_->last_sent_s = now_ns / 1'000'000'000;
      Finish(&state, batch, now_ns);
      failures_in_a_row_ = 0;
      return true;
    case ShipResult::kRefused:
      GiveUp(&state, batch, answer.reason, now_ns);
      failures_in_a_row_ = 0;
      return true;
    case ShipResult::kFailed:
      failures_in_a_row_ = 0;
      if (++state.tries >= options_.max_tries) {
        GiveUp(&state, batch, ShipDrop::kServerError, now_ns);
      } else {
        state.next_try_ns = now_ns_() + Pause(state.tries);
      }
      return true;
    default:
      break;
  }
  ++failures_in_a_row_;
  const std::int64_t asked = std::clamp<std::int64_t>(answer.retry_after_ns, 0, options_.max_retry_after_ns);
  next_try_ns_ = now_ns_() + std::max(asked, Pause(failures_in_a_row_));
  return false;
}

void StepShipper::Finish(RunState* state, const StepBatch& batch, TimeNs now_ns) {
  state->cursor.sent = batch.end;
  if (!batch.steps.empty()) state->cursor.last_ms = batch.steps.back().timestamp_ms;
  if (state->cursor.in_flight <= batch.end) state->cursor.in_flight = 0;
  state->cursor.updated_ns = now_ns;
  state->tries = 0;
  state->next_try_ns = 0;
  state->dirty = true;
}

void StepShipper::GiveUp(RunState* state, const StepBatch& batch, ShipDrop reason, TimeNs now_ns) {
  counters_->Drop(reason, batch.steps.size());
  Finish(state, batch, now_ns);
}

bool StepShipper::SaveCursors() {
  std::map<std::string, ShipCursor> changed;
  for (const auto& [run, state] : runs_) {
    if (state.dirty) changed.emplace(run, state.cursor);
  }
  if (changed.empty() && forget_.empty()) return true;
  const absl::Status status = cursors_->Save(receiver_, changed, forget_);
  if (!status.ok()) {
    const std::string error(status.ToString());
    if (error != last_save_error_) spdlog::error("{}: how far it was sent cannot be written down, so nothing is sent: {}", receiver_, error);
    last_save_error_ = error;
    return false;
  }
  if (!last_save_error_.empty()) spdlog::info("{}: how far it was sent can be written down again", receiver_);
  last_save_error_.clear();
  for (auto& [run, state] : runs_) state.dirty = false;
  forget_.clear();
  return true;
}

void StepShipper::Tell(const SinkAnswer& answer, const std::string& run) {
  if (answer.result == ShipResult::kTaken) {
    if (!last_error_.empty()) spdlog::info("{}: steps are taken again", receiver_);
    last_error_.clear();
    return;
  }
  const std::string error = answer.text;
  if (error == last_error_) return;
  last_error_ = error;
  const char* what = answer.result == ShipResult::kRefused ? "refused, and dropped" : "not taken now, and tried again";
  spdlog::warn("{}: steps of run {} were {}: {}", receiver_, run, what, error);
}

std::int64_t StepShipper::Pause(int failures) const {
  const int doublings = std::min(failures - 1, 20);
  return std::min(options_.first_pause_ns << doublings, options_.max_pause_ns);
}

void StepShipper::Loop() {
  while (true) {
    const bool more = RunRound();
    std::unique_lock lock(mutex_);
    if (stop_) break;
    if (!more && wake_.wait_for(lock, std::chrono::nanoseconds(options_.round_ns), [this] { return stop_; })) break;
  }
  next_try_ns_ = 0;
  while (RunRound()) {
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  wake_.notify_all();
}

void StepShipper::Start() { thread_ = std::thread([this] { Loop(); }); }

void StepShipper::Stop(std::int64_t limit_ns) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    wake_.notify_all();
    wake_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return ended_.load(); });
  }
  sink_->Cancel();
  thread_.join();
}

}  // namespace lossgauge::export_
