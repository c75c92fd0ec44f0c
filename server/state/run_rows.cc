// What a run leaves in the store, and how it comes back from there.
#include <algorithm>
#include <memory>
#include <utility>

#include "server/state/run.h"
#include "server/state/run_codec.h"

namespace lossgauge::state {

void Run::MarkSettled() const {
  for (const auto& attempt : attempts_) {
    attempt->MarkSettled();
    for (const auto& slot : attempt->slots()) slot->settled_events = slot->next_events;
  }
  for (const ProducerEvent& end : ends_) {
    if (const auto slot = FindSlot(end.producer->segment)) slot->settled_events = std::min(slot->settled_events, end.publication);
  }
}

void Run::AppendRows(TimeNs now_ns, Transaction* out) const {
  MarkSettled();
  RunRow& row = out->runs.emplace_back();
  row.run = name_;
  row.state = RunCodec::Encode(*this);
  row.judge = judge_->Save();
  row.updated_ns = now_ns;
  if (auto policy = judge_->policy(); policy_dirty_ && policy != nullptr) out->policies.push_back({std::move(policy), now_ns});
  for (const auto& attempt : attempts_) {
    for (const auto& slot : attempt->slots()) {
      if (!slot->dirty || (slot->gone && !options_.is_forwarded)) continue;
      if (options_.is_forwarded && attempt->StandsForRank(*slot)) continue;  // in the run's own row
      CursorRow& cursor = out->cursors.emplace_back();
      cursor.segment = slot->info->segment;
      cursor.run = name_;
      cursor.attempt = attempt->name();
      cursor.rank = slot->info->layout.rank;
      // Samples that wait for their step are not in the store: after a restart they are read again.
      cursor.next_steps_publication = slot->settled_steps;
      cursor.next_events_publication = slot->settled_events;
      cursor.totals = RunCodec::EncodeSlotTotals(*slot);
      cursor.updated_ns = now_ns;
    }
  }
}

void Run::AppendJournal(TimeNs now_ns, bool all, Transaction* out) {
  if (judge_->bytes() == 0 || (!all && !HasJournal())) return;
  JournalPart part = judge_->Take(now_ns);
  out->journal.push_back({name_, 0, part.begins, part.time_ns, std::move(part.bytes)});
}

// The clock may have been set back since they were written: what seems to come from the future would be fresh for ever.
bool Run::ClampTimes(TimeNs now_ns) {
  bool clamped = false;
  const auto clamp = [&](TimeNs* time) {
    clamped |= *time > now_ns;
    *time = std::min(*time, now_ns);
  };
  clamp(&first_seen_ns_);
  clamp(&ended_time_ns_);
  for (const auto& attempt : attempts_) {
    attempt->ClampTimes(clamp);
  }
  return clamped;
}

bool Run::Restore(const RunRow& row, BookCounters* counters, TimeNs now_ns) {
  if (!row.state.empty() && !RunCodec::Decode(row.state, this, now_ns)) return false;
  if (ClampTimes(now_ns)) ++counters->runs_from_future;
  if (!row.judge.empty() && !judge_->Restore(row.judge).ok()) ++counters->baseline_resets;
  dirty_ = judge_dirty_ = presence_dirty_ = true;
  return true;
}

void Run::RestoreSteps(std::vector<StepSummary> oldest_first, TimeNs now_ns) {
  const Attempt* newest = Newest();
  for (StepSummary& step : oldest_first) {
    if (step.sequence >= next_sequence_) continue;
    step.receive_time_ns = std::min(step.receive_time_ns, now_ns);
    auto shared = std::make_shared<const StepSummary>(std::move(step));
    if (newest != nullptr && shared->attempt == newest->name()) last_step_ = shared;
    recent_.Push(std::move(shared));
  }
}

void Run::MarkCommitted() {
  dirty_ = waiting_dirty_ = policy_dirty_ = false;
  for (const auto& attempt : attempts_) {
    for (const auto& slot : attempt->slots()) {
      slot->dirty = false;
      slot->committed_steps = slot->settled_steps;
      slot->committed_events = slot->settled_events;
    }
  }
}

void Run::SettleRestored() {
  for (const auto& attempt : attempts_) {
    for (const auto& slot : attempt->slots()) {
      if (!slot->gone || !slot->has_liveness || slot->HasEnded()) continue;
      slot->liveness.producer_state = ProducerState::kLost;
    }
  }
  presence_dirty_ = true;
}

}  // namespace lossgauge::state
