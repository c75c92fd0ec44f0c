// Who of a run is there: what its judge hears of its producers, and whether the run is over.
#include <algorithm>

#include "server/state/ring_names.h"
#include "server/state/run.h"

namespace lossgauge::state {
namespace {

constexpr std::int64_t kPresenceEveryNs = 1'000'000'000;

// How many of the attempt's ranks somebody waits to hear; those of them that cannot be heard are counted.
std::size_t AddRanks(const Attempt& attempt, const Reachability& reaches, Presence* presence) {
  std::size_t looked_for = 0;
  presence->producers.reserve(attempt.ranks().size());
  for (const auto& [rank, state] : attempt.ranks()) {
    if (state.slot == nullptr) continue;
    // Of what has said its last word nobody waits to hear.
    if (!(state.slot->HasEnded() && state.slot->liveness.drained)) {
      ++looked_for;
      if (!reaches(*state.slot->info)) {
        if (presence->unreachable_ranks == 0) presence->first_unreachable_rank = rank;
        ++presence->unreachable_ranks;
      }
    }
    if (!state.slot->has_liveness) continue;
    presence->producers.push_back(state.slot->liveness);
    if (state.slot->info->layout.has_loss != 0 && !state.slot->HasEnded()) presence->expected_ranks.push_back(rank);
  }
  return looked_for;
}

// How many ranks of the attempt's world no node has told of yet: they cannot be heard, either.
std::size_t AddUnseenRanks(const Attempt& attempt, Presence* presence) {
  if (attempt.ranks().empty()) return 0;
  const auto& [first_rank, first] = *attempt.ranks().begin();
  const std::size_t world = first.slot == nullptr ? 0 : first.slot->info->layout.world_size;
  if (attempt.ranks().size() >= world) return 0;
  const std::size_t unseen = world - attempt.ranks().size();
  std::uint32_t first_unseen = 0;
  for (auto it = attempt.ranks().begin(); it != attempt.ranks().end() && it->first == first_unseen; ++it) ++first_unseen;
  presence->first_unreachable_rank = presence->unreachable_ranks == 0 ? first_unseen : std::min(presence->first_unreachable_rank, first_unseen);
  presence->unreachable_ranks += unseen;
  return unseen;
}

void AddLiveProducers(const Attempt& attempt, Presence* presence) {
  for (const auto& [rank, state] : attempt.ranks()) {
    if (state.slot != nullptr && state.slot->has_liveness && state.slot->IsAlive()) presence->producers.push_back(state.slot->liveness);
  }
}

}  // namespace

Presence Run::MakePresence(TimeNs now_ns, const Reachability& reaches) const {
  Presence presence;
  presence.now_ns = now_ns;
  const Attempt* newest = Newest();
  if (newest == nullptr) return presence;
  presence.newest_attempt = newest->name();
  presence.last_step = newest->last_joined_step();
  presence.last_step_time_ns = newest->last_step_time_ns();
  presence.first_seen_ns = newest->first_seen_ns();
  std::size_t looked_for = AddRanks(*newest, reaches, &presence);
  for (const auto& attempt : attempts_) {
    if (attempt.get() != newest) AddLiveProducers(*attempt, &presence);
  }
  if (options_.join.whole_job) looked_for += AddUnseenRanks(*newest, &presence);
  // Rings of one node are read or not; of a job some nodes may be heard while others are not.
  presence.source_reachable = presence.unreachable_ranks == 0 || (options_.is_forwarded && presence.unreachable_ranks < looked_for);
  for (const std::uint64_t lost : totals_.records_lost) presence.records_lost += lost;
  return presence;
}

void Run::UpdateEnd(TimeNs now_ns) {
  const Attempt* newest = Newest();
  const bool has_ended = newest != nullptr && newest->HasEnded() && unreachable_ranks_ == 0;
  if (has_ended && !ended_) ended_time_ns_ = now_ns;
  if (has_ended != ended_) dirty_ = true;
  ended_ = has_ended;
  failed_ = has_ended && newest->HasFailed();
  if (!ended_) ended_time_ns_ = 0;
  phase_ = "train";
  if (ended_) {
    phase_ = "ended";
  } else if (newest != nullptr) {
    for (const auto& [rank, state] : newest->ranks()) {
      if (state.slot == nullptr || !state.slot->IsAlive()) continue;
      phase_ = PhaseName(state.slot->liveness.phase);
      break;
    }
  }
}

void Run::ShowPresence(TimeNs now_ns, const Reachability& reaches) {
  if (!presence_dirty_ && now_ns - last_presence_ns_ < kPresenceEveryNs) return;
  const Presence presence = MakePresence(now_ns, reaches);
  unreachable_ranks_ = presence.unreachable_ranks;
  UpdateEnd(now_ns);
  judge_->OnPresence(presence);
  last_presence_ns_ = now_ns;
  presence_dirty_ = false;
  judge_dirty_ = true;
}

bool Run::IsNotable(const RankState& state) const {
  if (!state.slot->has_liveness || state.slot->liveness.producer_state != ProducerState::kLive) return true;
  return last_step_ != nullptr && std::binary_search(last_step_->missing_ranks.begin(), last_step_->missing_ranks.end(), state.rank);
}

bool Run::HasLiveProducer() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& attempt) { return attempt->HasLiveProducer(); });
}

}  // namespace lossgauge::state
