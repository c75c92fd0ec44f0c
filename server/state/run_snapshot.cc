// What a run shows.
#include <memory>

#include "server/state/run.h"

namespace lossgauge::state {

std::shared_ptr<const RunSnapshot> Run::Snapshot(TimeNs now_ns, std::size_t max_recent_steps) {
  recent_.Trim(max_recent_steps);
  auto snapshot = std::make_shared<RunSnapshot>();
  snapshot->run = name_;
  for (const auto& attempt : attempts_) snapshot->attempts.push_back(attempt->View());
  if (Attempt* newest = Newest(); newest != nullptr) {
    bool has_layout = false;
    const bool has_too_many = newest->ranks().size() > options_.max_rank_series;
    snapshot->ranks.reserve(has_too_many ? 0 : newest->ranks().size());
    for (const auto& [rank, state] : newest->ranks()) {
      if (state.slot == nullptr) continue;
      if (!has_layout) snapshot->layout = state.slot->info->layout;
      has_layout = true;
      if (has_too_many && (snapshot->ranks.size() >= options_.max_rank_series || !IsNotable(state))) {
        ++snapshot->ranks_left_out;
        snapshot->any_left_out_up = snapshot->any_left_out_up || state.slot->IsAlive();
        continue;
      }
      RankView& view = snapshot->ranks.emplace_back();
      view.rank = rank;
      view.producer = state.slot->info;
      view.liveness = state.slot->liveness;
      if (view.liveness.producer == nullptr) view.liveness.producer = state.slot->info;
      view.last_sample = state.last_sample;
      view.step_seconds = state.step_seconds;
      view.max_60s = state.windows.Maxima(now_ns);
      view.totals = rank_totals_[rank];
      view.last_record_time_ns = state.last_record_time_ns;
    }
  }
  snapshot->unreachable_ranks = unreachable_ranks_;
  snapshot->recent_steps = recent_.Chunks();
  snapshot->last_step = last_step_;
  snapshot->next_sequence = next_sequence_;
  snapshot->incidents = incidents_;
  snapshot->incident_counters = incident_counters_;
  snapshot->verdict = verdict_;
  snapshot->verdict_changes = verdict_changes_;
  snapshot->phase = phase_;
  snapshot->ended = ended_;
  snapshot->failed = failed_;
  snapshot->first_seen_ns = first_seen_ns_;
  snapshot->ended_time_ns = ended_time_ns_;
  snapshot->last_checkpoint = last_checkpoint_;
  snapshot->evaluation_loss_nats = evaluation_loss_nats_;
  snapshot->evaluation_step = evaluation_step_;
  snapshot->mode = verdict_.mode;
  snapshot->policy = judge_->policy();
  snapshot->totals = totals_;
  snapshot->max_60s = windows_.Maxima(now_ns);
  return snapshot;
}

}  // namespace lossgauge::state
