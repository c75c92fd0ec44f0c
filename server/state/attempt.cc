#include "server/state/attempt.h"

#include <algorithm>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/rank_spread.h"
#include "server/state/tensor_group.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kMostMissing = 1024;  // named in a step; thousands of absent ranks are one finding
constexpr int kAdoptAfterAbsurd = 3;  // consecutive records that agree with one another: the job really went there

bool SameSizes(const lg_layout& a, const lg_layout& b) {
  return a.world_size == b.world_size && a.dp.size == b.dp.size && a.tp.size == b.tp.size && a.pp.size == b.pp.size &&
         a.cp.size == b.cp.size && a.ep.size == b.ep.size;
}

// By the boot clock; a GPU writer has none and gives its device's timer as wall clock. Absent if the difference is no duration.
std::optional<double> Elapsed(std::int64_t boot_before, std::int64_t boot, std::int64_t wall_before, std::int64_t wall) {
  const bool has_boot = boot_before > 0 && boot > 0;
  const bool has_wall = boot == 0 && boot_before == 0 && wall_before > 0 && wall > 0;
  std::int64_t elapsed = -1;
  if (has_boot && boot >= boot_before) elapsed = boot - boot_before;
  if (has_wall && wall >= wall_before) elapsed = wall - wall_before;
  if (elapsed < 0 || elapsed > std::int64_t{86'400} * 1'000'000'000) return std::nullopt;
  return static_cast<double>(elapsed) * 1e-9;
}

}  // namespace

Attempt::Attempt(std::string name, TimeNs start_ns, TimeNs first_seen_ns) : first_seen_ns_(first_seen_ns) {
  declared_ = name;
  view_.attempt = std::move(name);
  view_.start_time_ns = start_ns;
  view_.first_step = -1;
}

std::string Attempt::AddSlot(std::shared_ptr<ProducerSlot> slot, const JoinOptions& options, TimeNs now_ns, bool is_superseded) {
  const lg_layout& layout = slot->info->layout;
  const auto present = ranks_.find(layout.rank);
  if (is_superseded && present != ranks_.end()) {
    slots_.push_back(std::move(slot));
    return "";
  }
  if (present == ranks_.end() && ranks_.size() >= options.max_ranks) return "max_ranks";
  if (present != ranks_.end() && present->second.slot != nullptr && present->second.slot->IsAlive()) return "duplicate_rank";
  for (const auto& [rank, state] : ranks_) {  // those that are here agree with one another
    if (state.slot == nullptr || rank == layout.rank) continue;
    if (!SameSizes(state.slot->info->layout, layout)) return "layout_mismatch";
    break;
  }
  if (layout.rank == 0 && slot->info->attempt_start_ns > 0 && generation_ == 1) view_.start_time_ns = slot->info->attempt_start_ns;
  RankState& state = ranks_[layout.rank];
  state.rank = layout.rank;
  slot->predecessor = state.slot;
  if (slot->predecessor != nullptr) {
    slot->predecessor->predecessor.reset();
    slot->predecessor->dirty = true;  // from now on it needs a cursor row of its own
  }
  const bool has_replaced = slot->predecessor != nullptr;
  state.slot = slot;
  slots_.push_back(std::move(slot));
  newest_producer_ns_ = now_ns;
  Index(false);
  if (has_replaced) TrimSlots();
  return "";
}

void Attempt::Index(bool anew) {
  if (anew) lowest_.clear();
  const auto place = [this](RankState* state) {
    if (state->ordinal == RankState::kNoOrdinal) state->ordinal = next_ordinal_++;
    if (state->slot == nullptr || state->slot->info == nullptr) return;
    const lg_layout& layout = state->slot->info->layout;
    if (layout.tp.size <= 1 || layout.has_loss == 0) return;
    const auto [it, inserted] = lowest_.try_emplace(TensorGroupOf(layout), layout.tp.index);
    it->second = std::min(it->second, layout.tp.index);
  };
  if (anew) {
    for (auto& [rank, state] : ranks_) place(&state);
  } else {
    place(&ranks_[slots_.back()->info->layout.rank]);
  }
}

bool Attempt::GoesBack(const ProducerSlot& slot, std::int64_t step) const {
  if (slot.predecessor == nullptr) return false;
  if (step <= slot.predecessor->reached) return true;
  if (!last_joined_ || step > *last_joined_) return false;
  // This rank goes on, but behind the others: late if one of them goes on from before, else all of them were started again.
  return std::none_of(slots_.begin(), slots_.end(), [](const auto& other) { return other->IsAlive() && other->predecessor == nullptr; });
}

std::vector<std::shared_ptr<ProducerSlot>> Attempt::TakeSuccessors() {
  std::vector<std::shared_ptr<ProducerSlot>> taken;
  for (auto it = ranks_.begin(); it != ranks_.end();) {
    RankState& state = it->second;
    if (state.slot == nullptr || state.slot->predecessor == nullptr) {
      ++it;
      continue;
    }
    taken.push_back(state.slot);
    std::erase(slots_, state.slot);
    state.slot = std::move(taken.back()->predecessor);
    taken.back()->predecessor.reset();
    const ProducerInfo* info = state.slot->info.get();
    if (it->first == 0 && info != nullptr && info->attempt_start_ns > 0 && generation_ == 1) view_.start_time_ns = info->attempt_start_ns;
    it = state.slot->info == nullptr ? ranks_.erase(it) : std::next(it);
  }
  Index(true);
  return taken;
}

SampleFate Attempt::AddSample(const std::shared_ptr<ProducerSlot>& slot, RankSample&& sample, const JoinOptions& options) {
  const lg_step_record& record = sample.record;
  RankState& state = ranks_[slot->info->layout.rank];
  state.last_record_time_ns = sample.receive_time_ns;

  // The first record of an attempt is no better than any other: a job that begins far from all that is known says so (resume), or repeats it.
  const std::int64_t known = highest_ ? *highest_ : std::max(known_step_, view_.resumed_after_step.value_or(0));
  if (record.step - known > options.max_step_jump) {
    const bool agrees = slot->absurd_in_a_row > 0 && record.step > slot->absurd_step &&
                        record.step - slot->absurd_step <= options.max_step_jump;
    slot->absurd_in_a_row = agrees ? slot->absurd_in_a_row + 1 : 1;
    slot->absurd_step = record.step;
    if (slot->absurd_in_a_row < kAdoptAfterAbsurd) return SampleFate::kAbsurd;
  }
  slot->absurd_in_a_row = 0;

  const bool has_joined = last_joined_ && record.step <= *last_joined_;
  if (has_joined) {
    const bool is_duplicate = record.step <= slot->last_step;
    slot->last_step = std::max(slot->last_step, record.step);
    if (!is_duplicate) (void)AddLate(state, sample);
    return is_duplicate ? SampleFate::kDuplicate : SampleFate::kLate;
  }
  // Not before: a successor that is late may turn out to have gone back once its peers' old segments are known to be dead.
  slot->predecessor.reset();
  slot->reached = std::max(slot->reached, record.step);
  Pending& pending = pending_[record.step];
  if (pending.samples.empty()) {
    pending.first_ns = sample.arrival_time_ns != 0 ? sample.arrival_time_ns : sample.receive_time_ns;
    pending.samples.reserve(ranks_.size());
    pending.slots.reserve(ranks_.size());
    pending.owing = slot->info->layout.rank;
  }
  if (Has(pending.has, state.ordinal)) return SampleFate::kDuplicate;

  const bool follows = slot->last_step >= 0 && record.step == slot->last_step + 1;
  const auto seconds = follows ? Elapsed(slot->last_boot_ns, record.boot_ns, slot->last_wall_ns, record.wall_ns) : std::nullopt;
  if (record.step > slot->last_step) {
    slot->last_step = record.step;
    slot->last_boot_ns = record.boot_ns;
    slot->last_wall_ns = record.wall_ns;
  }
  if (!highest_ || record.step > *highest_) highest_ = record.step;

  state.step_seconds = seconds;
  WindowMaxima values;
  if ((record.present & LG_HAS_LOSS) && record.finite_tokens > 0) {
    values.loss_nats = lg_fixed128_to_double(record.nll_sum) / static_cast<double>(record.finite_tokens);
  }
  if ((record.present & LG_HAS_LOGITS) && record.finite_tokens > 0) {
    values.max_abs_logit = record.max_abs_logit;
    values.log_z_max_nats = record.log_z_max;
  }
  if (record.present & LG_HAS_GRAD_NORM) values.grad_norm = record.grad_norm;
  values.step_seconds = seconds;
  state.windows.Add(sample.receive_time_ns, values);
  state.last_sample = sample;

  pending.samples.push_back(std::move(sample));
  pending.slots.push_back(slot);
  Set(&pending.has, state.ordinal);
  ++pending_samples_;
  return SampleFate::kPending;
}

bool Attempt::Owes(const RankState& state, std::int64_t step, const Pending& pending) {
  if (state.slot == nullptr || state.slot->info->layout.has_loss == 0 || state.slot->IsDone() || state.slot->last_step > step) return false;
  return !Has(pending.has, state.ordinal);
}

bool Attempt::IsComplete(std::int64_t step, Pending* pending) const {
  if (pending->samples.size() == ranks_.size()) return true;
  // Looked at in every cycle: with thousands of ranks, all of them only when the last one that owed it has come.
  const auto last = ranks_.find(pending->owing);
  if (last != ranks_.end() && Owes(last->second, step, *pending)) return false;
  for (const auto& [rank, state] : ranks_) {
    if (!Owes(state, step, *pending)) continue;
    pending->owing = rank;
    return false;
  }
  return true;
}

std::optional<JoinedStep> Attempt::TakeStep(const JoinOptions& options, TimeNs now_ns) {
  if (pending_.empty()) return std::nullopt;
  auto it = pending_.begin();
  const bool has_timed_out = now_ns - it->second.first_ns >= options.join_timeout_ns && now_ns >= options.hold_until_ns;
  const bool is_full = pending_samples_ > options.max_pending;
  if (!has_timed_out && !is_full) {
    // Ranks of one job do not open their rings at the same moment: while some of the world may still appear, nobody is counted absent.
    const std::uint32_t world = it->second.samples.empty() ? 1 : it->second.samples.front().producer->layout.world_size;
    const bool is_settling = ranks_.size() < world && (now_ns - newest_producer_ns_ < options.join_timeout_ns || now_ns < options.hold_until_ns);
    if (is_settling || !IsComplete(it->first, &it->second)) return std::nullopt;
  }
  std::vector<RankSample> unsorted = std::move(it->second.samples);
  pending_samples_ -= unsorted.size();
  pending_.erase(it);
  // A record is moved once, not at each exchange of a sort.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
  order.reserve(unsorted.size());
  for (std::uint32_t i = 0; i < unsorted.size(); ++i) order.emplace_back(unsorted[i].producer->layout.rank, i);
  std::sort(order.begin(), order.end());
  std::vector<RankSample> samples;
  samples.reserve(unsorted.size());
  for (const auto& [rank, i] : order) samples.push_back(std::move(unsorted[i]));
  std::optional<JoinedStep> joined = JoinSamples(std::move(samples));
  FinishStep(&*joined, options, now_ns);
  return joined;
}

// Ranks of the world that nobody has told of. What they are is not known: with pipeline stages some of them may have no loss.
void Attempt::NameUnseen(JoinedStep* joined) {
  const lg_layout& layout = joined->layout;
  std::vector<std::uint32_t>* missing = &joined->summary.missing_ranks;
  std::uint32_t with_loss = 0;
  for (const auto& [rank, state] : ranks_) with_loss += state.slot != nullptr && state.slot->info->layout.has_loss != 0;
  if (ranks_.size() >= layout.world_size || with_loss >= LossRanks(layout)) return;
  missing_of_last_ += layout.world_size - ranks_.size();
  auto seen = ranks_.begin();
  for (std::uint32_t rank = 0; rank < layout.world_size && missing->size() < kMostMissing; ++rank) {
    while (seen != ranks_.end() && seen->first < rank) ++seen;
    if (seen == ranks_.end() || seen->first != rank) missing->push_back(rank);
  }
  std::sort(missing->begin(), missing->end());
}

void Attempt::FinishStep(JoinedStep* joined, const JoinOptions& options, TimeNs now_ns) {
  StepSummary& summary = joined->summary;
  missing_of_last_ = 0;
  std::size_t next = 0;
  for (const auto& [rank, state] : ranks_) {
    while (next < joined->samples.size() && joined->samples[next].producer->layout.rank < rank) ++next;
    const bool delivered = next < joined->samples.size() && joined->samples[next].producer->layout.rank == rank;
    if (delivered || state.slot == nullptr || state.slot->info->layout.has_loss == 0) continue;
    if (state.slot->HasEnded() && state.slot->last_step < summary.step) continue;  // left the job in order
    ++missing_of_last_;
    if (summary.missing_ranks.size() < kMostMissing) summary.missing_ranks.push_back(rank);
  }
  if (options.whole_job) NameUnseen(joined);
  summary.complete = missing_of_last_ == 0;

  std::int64_t boot = 0, wall = 0;
  for (const RankSample& sample : joined->samples) {
    boot = std::max(boot, sample.record.boot_ns);
    wall = std::max(wall, sample.record.wall_ns);
  }
  if (last_joined_ && summary.step == *last_joined_ + 1) summary.step_seconds = Elapsed(last_boot_ns_, boot, last_wall_ns_, wall);
  last_boot_ns_ = boot;
  last_wall_ns_ = wall;
  last_joined_ = summary.step;
  last_step_time_ns_ = summary.receive_time_ns > 0 ? summary.receive_time_ns : now_ns;
  if (view_.first_step < 0) view_.first_step = summary.step;
  view_.last_step = summary.step;
  ++view_.steps;
}

void Attempt::TrimSlots() {
  std::erase_if(slots_, [this](const auto& slot) {
    const auto rank = ranks_.find(slot->info->layout.rank);
    return slot->gone && (rank == ranks_.end() || rank->second.slot != slot);
  });
}

void Attempt::MarkSettled() const {
  for (const auto& slot : slots_) slot->settled_steps = slot->next_steps;
  for (const auto& [step, pending] : pending_) {
    for (std::size_t i = 0; i < pending.samples.size(); ++i) {
      std::uint64_t& settled = pending.slots[i]->settled_steps;
      settled = std::min(settled, pending.samples[i].publication);
    }
  }
}

void Attempt::KeepOpen(const JoinedStep& joined, const JoinOptions& options) {
  if (const auto before = open_steps_.find(joined.summary.step); before != open_steps_.end()) DropOpen(before);
  OpenStep& open = open_steps_[joined.summary.step];
  open.summary = joined.summary;
  open.missing = missing_of_last_;
  for (const RankSample& sample : joined.samples) {
    open.sums.Add(sample);
    const auto rank = ranks_.find(sample.producer->layout.rank);
    if (rank != ranks_.end()) Set(&open.has, rank->second.ordinal);
  }
  constexpr std::size_t kGroupBytes = 64;  // a node of a set
  const std::size_t groups = joined.layout.tp.size > 1 ? joined.samples.size() / joined.layout.tp.size + 1 : 0;
  open.bytes = sizeof(OpenStep) + open.summary.rank_steps.size() * sizeof(RankSummary) + open.summary.missing_ranks.size() * 4 + open.has.size() / 8 +
               groups * kGroupBytes + kGroupBytes;
  open_bytes_ += open.bytes;
  while (open_bytes_ > options.max_open_bytes) DropOpen(open_steps_.begin());
}

std::map<std::int64_t, Attempt::OpenStep>::iterator Attempt::DropOpen(std::map<std::int64_t, OpenStep>::iterator step) {
  open_bytes_ -= step->second.bytes;
  return open_steps_.erase(step);
}

bool Attempt::AddLate(const RankState& state, const RankSample& sample) {
  const auto found = open_steps_.find(sample.record.step);
  if (found == open_steps_.end() || Has(found->second.has, state.ordinal)) return false;
  OpenStep& open = found->second;
  Set(&open.has, state.ordinal);
  open.sums.Add(sample);
  open.sums.Summarize(&open.summary);
  AddRankStep(sample, &open.summary);
  ++open.summary.ranks;
  // One that was not named may have been one of the many behind those that are, unless it is of a stage that nobody waits for.
  const bool was_missing = std::erase(open.summary.missing_ranks, state.rank) > 0 || sample.producer->layout.has_loss != 0;
  if (was_missing && open.missing > 0) --open.missing;
  open.summary.complete = open.missing == 0;
  open.corrected = true;
  return true;
}

std::vector<std::shared_ptr<const StepSummary>> Attempt::TakeCorrected(std::size_t max_rank_steps) {
  std::vector<std::shared_ptr<const StepSummary>> corrected;
  for (auto it = open_steps_.begin(); it != open_steps_.end();) {
    OpenStep& open = it->second;
    if (open.corrected) {
      open.corrected = false;
      BoundRankSteps(max_rank_steps, &open.summary);
      corrected.push_back(std::make_shared<const StepSummary>(open.summary));
    }
    it = open.summary.complete ? DropOpen(it) : std::next(it);
  }
  return corrected;
}

bool Attempt::Counts(const ProducerInfo& info) const {
  if (info.layout.has_loss == 0) return false;
  if (info.layout.tp.size <= 1) return true;
  const auto lowest = lowest_.find(TensorGroupOf(info.layout));
  return lowest == lowest_.end() || lowest->second >= info.layout.tp.index;
}

bool Attempt::HasLiveProducer() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->IsAlive(); });
}

bool Attempt::HasLostProducer() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const auto& slot = entry.second.slot;
    return slot != nullptr && slot->has_liveness && slot->liveness.producer_state == ProducerState::kLost;
  });
}

bool Attempt::HasEnded() const {
  if (ranks_.empty() || !pending_.empty()) return false;
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.slot != nullptr && entry.second.slot->HasEnded() && entry.second.slot->IsDone();
  });
}

bool Attempt::HasFailed() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.slot != nullptr && entry.second.slot->HasEnded() && entry.second.slot->liveness.closed == LG_CLOSE_FAILED;
  });
}

AttemptView Attempt::View() const {
  AttemptView view = view_;
  if (view.first_step < 0) view.first_step = 0;
  if (HasLiveProducer()) {
    view.state = "running";
  } else if (HasLostProducer()) {
    view.state = "lost";
  } else {
    view.state = HasFailed() ? "failed" : "ended";
  }
  return view;
}

}  // namespace lossgauge::state
