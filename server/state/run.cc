#include "server/state/run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/rank_progress.h"
#include "server/state/rank_spread.h"
#include "server/state/ring_names.h"

namespace lossgauge::state {
namespace {

constexpr std::int64_t kPresenceEveryNs = 1'000'000'000;

// How many publications of [first, first + records) were not counted before; the mark moves past them.
std::uint64_t CountNew(std::uint64_t first, std::uint64_t records, std::uint64_t* counted) {
  const std::uint64_t end = first + records;
  if (first == 0) return records;
  if (end <= *counted) return 0;
  const std::uint64_t fresh = end - std::max(first, *counted);
  *counted = end;
  return fresh;
}

// Producers do not know the name that an attempt got here.
std::shared_ptr<const ProducerInfo> Renamed(const std::shared_ptr<const ProducerInfo>& info, const std::string& attempt) {
  if (info->attempt == attempt) return info;
  auto renamed = std::make_shared<ProducerInfo>(*info);
  renamed->attempt = attempt;
  return renamed;
}

WindowMaxima MaximaOf(const StepSummary& step) {
  return {step.loss_nats, step.max_abs_logit, step.grad_norm, step.log_z_max_nats, step.step_seconds};
}

}  // namespace

Run::Run(std::string name, std::unique_ptr<RunJudge> judge, const RunOptions& options, TimeNs now_ns)
    : name_(std::move(name)),
      judge_(std::make_unique<JournaledJudge>(std::move(judge), options.journal)),
      options_(options),
      first_seen_ns_(now_ns),
      last_activity_ns_(now_ns) {}

Attempt* Run::FindAttempt(const std::string& name) {
  for (const auto& attempt : attempts_) {
    if (attempt->name() == name) return attempt.get();
  }
  return nullptr;
}

// The newest generation of those whose producers say `declared`.
Attempt* Run::FindDeclared(const std::string& declared) {
  Attempt* newest = nullptr;
  for (const auto& attempt : attempts_) {
    if (attempt->declared() == declared && (newest == nullptr || attempt->generation() > newest->generation())) newest = attempt.get();
  }
  return newest;
}

std::unique_ptr<Attempt> Run::MakeAttempt(const ProducerInfo& info, TimeNs now_ns) {
  const Attempt* before = FindDeclared(info.attempt);
  std::uint64_t generation = before == nullptr ? 1 : before->generation() + 1;
  std::string name = info.attempt;
  if (generation > 1) name = absl::StrCat(info.attempt, "#", generation);
  while (FindAttempt(name) != nullptr) name = absl::StrCat(info.attempt, "#", ++generation);
  const TimeNs start_ns = before == nullptr ? info.attempt_start_ns : std::max(info.attempt_start_ns, before->start_ns() + 1);
  auto made = std::make_unique<Attempt>(std::move(name), start_ns, now_ns);
  made->Continue(info.attempt, generation);
  for (const auto& attempt : attempts_) made->set_known_step(attempt->last_joined_step().value_or(0));
  return made;
}

// The one with the latest start; a live one before a dead one, because a wall clock that was set back must not hide the job that runs.
Attempt* Run::Newest() {
  for (auto it = attempts_.rbegin(); it != attempts_.rend(); ++it) {
    if ((*it)->HasLiveProducer()) return it->get();
  }
  // Nobody lives: the one that lived last, though a later one may have begun and ended beside it. One that was over before anybody looked lived no earlier
  // than it was first seen.
  Attempt* last = nullptr;
  for (const auto& attempt : attempts_) {
    const TimeNs lived_ns = attempt->last_alive_ns() != 0 ? attempt->last_alive_ns() : attempt->first_seen_ns();
    if (last == nullptr || last->last_alive_ns() == 0 || lived_ns >= last->last_alive_ns()) last = attempt.get();
  }
  return last;
}

void Run::OrderAttempts() {
  std::stable_sort(attempts_.begin(), attempts_.end(),
                   [](const auto& a, const auto& b) { return a->start_ns() < b->start_ns(); });
}

void Run::BoundAttempts() {
  std::size_t slots = 0;
  for (const auto& attempt : attempts_) slots += attempt->slots().size();
  for (auto it = attempts_.begin(); (attempts_.size() > options_.max_attempts || slots > options_.max_slots) && it != attempts_.end();) {
    const bool can_go = !(*it)->HasLiveProducer() && !(*it)->HasPending() && it->get() != Newest() &&
                        std::all_of((*it)->slots().begin(), (*it)->slots().end(),
                                    [](const auto& slot) { return slot->IsDone() && !slot->dirty; });
    if (!can_go) {
      ++it;
      continue;
    }
    slots -= (*it)->slots().size();
    if (options_.is_forwarded) dropped_slots_.insert(dropped_slots_.end(), (*it)->slots().begin(), (*it)->slots().end());
    it = attempts_.erase(it);
  }
}

void Run::IndexSlots() {
  by_segment_.clear();
  for (const auto& attempt : attempts_) {
    for (const auto& slot : attempt->slots()) by_segment_[slot->info->segment] = slot;
  }
}

std::string Run::AddProducer(std::shared_ptr<ProducerSlot> slot, const std::string& known_attempt, TimeNs now_ns) {
  const ProducerInfo info = *slot->info;
  Attempt* attempt = known_attempt.empty() ? nullptr : FindAttempt(known_attempt);
  const bool is_superseded = attempt != nullptr;  // known, but not what the run remembers for its rank
  if (attempt == nullptr) attempt = FindDeclared(info.attempt);
  std::unique_ptr<Attempt> made;
  const auto make = [&] {
    made = MakeAttempt(info, now_ns);
    attempt = made.get();
  };
  if (attempt == nullptr) make();
  std::string cause = attempt->AddSlot(slot, options_.join, now_ns, is_superseded);
  if (cause == "layout_mismatch" && !made && !attempt->HasLiveProducer()) {  // started again, with another world
    make();
    cause = attempt->AddSlot(slot, options_.join, now_ns);
  }
  if (!cause.empty()) return cause;
  slot->info = Renamed(slot->info, attempt->name());
  by_segment_[slot->info->segment] = slot;
  if (made) {
    attempts_.push_back(std::move(made));
    std::erase_if(by_segment_, [](const auto& entry) { return entry.second.expired(); });
  }
  OrderAttempts();
  BoundAttempts();
  dirty_ = presence_dirty_ = true;
  last_activity_ns_ = now_ns;
  return "";
}

void Run::ReattachProducer(const std::shared_ptr<ProducerSlot>& slot) {
  for (const auto& attempt : attempts_) {
    if (std::find(attempt->slots().begin(), attempt->slots().end(), slot) == attempt->slots().end()) continue;
    slot->info = Renamed(slot->info, attempt->name());
    if (slot->counted_steps <= 1 && attempt->last_joined_step()) {
      // It may follow one that is not remembered: its first step shall say.
      slot->predecessor = std::make_shared<ProducerSlot>();
      slot->predecessor->gone = true;
    }
  }
}

void Run::SplitIfBack(const std::shared_ptr<ProducerSlot>& slot, std::int64_t step, TimeNs now_ns) {
  Attempt* from = FindAttempt(slot->info->attempt);
  if (from == nullptr || !from->GoesBack(*slot, step)) return;
  ProducerInfo declared = *slot->info;
  declared.attempt = from->declared();
  const auto successors = from->TakeSuccessors();
  auto made = MakeAttempt(declared, now_ns);
  for (const auto& successor : successors) {
    successor->info = Renamed(successor->info, made->name());
    successor->liveness.producer = successor->info;
    (void)made->AddSlot(successor, options_.join, now_ns);  // they stood together before
    successor->dirty = true;
  }
  attempts_.push_back(std::move(made));
  OrderAttempts();
  BoundAttempts();
  dirty_ = presence_dirty_ = true;
}

void Run::OnSample(const std::shared_ptr<ProducerSlot>& slot, RankSample&& sample, BookCounters* counters) {
  if (slot->predecessor != nullptr && sample.record.block == 0) SplitIfBack(slot, sample.record.step, sample.receive_time_ns);
  sample.producer = slot->info;
  Attempt* attempt = FindAttempt(slot->info->attempt);
  if (attempt == nullptr) return;
  const std::uint32_t rank = slot->info->layout.rank;
  const bool is_new = CountNew(sample.publication, 1, &slot->counted_steps) > 0;
  slot->next_steps = sample.publication + 1;
  slot->dirty = waiting_dirty_ = true;
  last_activity_ns_ = sample.receive_time_ns;
  RankTotals delta;
  if (sample.record.block == 0) delta = TakeProgress(sample.record, &slot->seen);
  delta.records_read = is_new ? 1 : 0;
  AddTotals(delta, TotalsOf(rank));
  if (attempt->Counts(*slot->info)) {
    AddTotals(delta, &totals_);
  } else {
    totals_.records_read += delta.records_read;
  }
  if (sample.record.block != 0) {  // evaluation and further heads: in the totals of their own blocks only
    dirty_ = true;
    return;
  }
  switch (attempt->AddSample(slot, std::move(sample), options_.join)) {
    case SampleFate::kPending: return;
    case SampleFate::kLate: counters->late_records += is_new; break;
    case SampleFate::kDuplicate: counters->duplicate_records += is_new; break;
    case SampleFate::kAbsurd: counters->absurd_steps += is_new; break;
  }
  dirty_ = true;
}

void Run::OnEvent(const std::shared_ptr<ProducerSlot>& slot, ProducerEvent event) {
  if (event.kind == LG_EVENT_RESUME && event.step >= 0 && slot->predecessor != nullptr) SplitIfBack(slot, event.step + 1, event.receive_time_ns);
  event.producer = slot->info;
  const bool is_new = CountNew(event.publication, 1, &slot->counted_events) > 0;
  slot->next_events = event.publication + 1;
  slot->dirty = dirty_ = true;
  last_activity_ns_ = event.receive_time_ns;
  TotalsOf(slot->info->layout.rank)->records_read += is_new;
  totals_.records_read += is_new;
  if (is_new) new_events_.push_back(event);
  switch (event.kind) {
    case LG_EVENT_CHECKPOINT:
      if (!last_checkpoint_ || event.step >= last_checkpoint_->step || slot->info->attempt == (Newest() ? Newest()->name() : "")) {
        last_checkpoint_ = ResumePoint{event.step, event.text};
      }
      break;
    case LG_EVENT_PHASE_BEGIN:
    case LG_EVENT_PHASE_END:
      // Until the next look at the status line: the age that stands there is the previous phase's.
      slot->liveness.phase = event.kind == LG_EVENT_PHASE_BEGIN ? event.phase : std::uint64_t{LG_PHASE_TRAIN};
      slot->liveness.phase_age_ns = 0;
      break;
    case LG_EVENT_EVALUATION:
      evaluation_loss_nats_ = event.value;
      evaluation_step_ = event.step;
      break;
    case LG_EVENT_RESUME:
      if (Attempt* attempt = FindAttempt(slot->info->attempt); attempt != nullptr && event.step >= 0) attempt->set_resumed_after(event.step);
      break;
    default: break;
  }
  presence_dirty_ = judge_dirty_ = true;
  if (event.kind == LG_EVENT_END) {
    ends_.push_back(event);  // the steps before it come first
  } else if (event.kind <= LG_EVENT_NOTE) {
    judge_->OnEvent(event);  // kinds of a later minor are skipped
  }
}

void Run::HandOverEnds() {
  std::erase_if(ends_, [this](const ProducerEvent& event) {
    const Attempt* attempt = FindAttempt(event.producer->attempt);
    if (attempt != nullptr && attempt->HasPending()) return false;
    judge_->OnEvent(event);
    dirty_ = judge_dirty_ = true;
    return true;
  });
}

void Run::OnLiveness(const std::shared_ptr<ProducerSlot>& slot, const LivenessReport& report) {
  const bool is_first = !slot->has_liveness;
  const bool changed = is_first || slot->liveness.producer_state != report.producer_state || slot->liveness.drained != report.drained ||
                       slot->liveness.phase != report.phase || slot->liveness.closed != report.closed;
  slot->liveness = report;
  slot->liveness.producer = slot->info;
  slot->has_liveness = true;
  if (changed) {
    dirty_ = presence_dirty_ = true;
    slot->dirty = true;
    last_activity_ns_ = report.time_ns;
  }
  if (report.producer_state == ProducerState::kLive || report.producer_state == ProducerState::kFrozen) {
    last_activity_ns_ = report.time_ns;
    if (Attempt* mine = FindAttempt(slot->info->attempt); mine != nullptr) mine->set_last_alive_ns(report.time_ns);
    if (!is_first) return;
    // A live attempt that appears after the newest one died is newer, whatever a wall clock that was set back says.
    Attempt* mine = FindAttempt(slot->info->attempt);
    Attempt* last = attempts_.empty() ? nullptr : attempts_.back().get();
    if (mine != nullptr && last != nullptr && mine != last && !last->HasLiveProducer() && mine->first_seen_ns() > last->first_seen_ns()) {
      mine->set_start_ns(last->start_ns() + 1);
      OrderAttempts();
    }
  }
}

void Run::OnLoss(const std::shared_ptr<ProducerSlot>& slot, const LossReport& report) {
  std::uint64_t* counted = report.event_ring ? &slot->counted_events : &slot->counted_steps;
  std::uint64_t* next = report.event_ring ? &slot->next_events : &slot->next_steps;
  const std::uint64_t fresh = CountNew(report.first_publication, report.records, counted);
  if (report.first_publication > 0) *next = report.first_publication + report.records;
  slot->dirty = dirty_ = true;
  if (fresh == 0) return;
  const auto reason = static_cast<std::size_t>(report.reason);
  TotalsOf(slot->info->layout.rank)->records_lost[reason] += fresh;
  totals_.records_lost[reason] += fresh;
  LossReport told = report;
  told.records = fresh;
  told.producer = slot->info;
  judge_->OnLoss(told);
  judge_dirty_ = presence_dirty_ = true;
}

void Run::OnGone(const std::shared_ptr<ProducerSlot>& slot) {
  slot->gone = true;
  if (Attempt* attempt = FindAttempt(slot->info->attempt)) attempt->TrimSlots();
  dirty_ = presence_dirty_ = true;
}

bool Run::Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement, Incident* out) {
  if (!judge_->Acknowledge(incident_id, acknowledgement)) return false;
  dirty_ = judge_dirty_ = true;
  for (const Incident& incident : judge_->Incidents()) {
    if (incident.id == incident_id) *out = incident;
  }
  return true;
}

void Run::NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) {
  judge_->NameSibling(incident_id, sibling, now_ns);
  judge_dirty_ = true;
}

bool Run::ReplaceJudge(std::unique_ptr<RunJudge> judge) {
  const bool restored = judge_->Replace(std::move(judge));
  policy_dirty_ = dirty_ = judge_dirty_ = presence_dirty_ = true;
  return restored;
}

std::string Run::SetMode(const std::string& mode, TimeNs now_ns) {
  judge_->SetMode(mode == "policy" ? "" : mode);
  dirty_ = judge_dirty_ = true;
  return judge_->Evaluate(now_ns).mode;
}

std::uint64_t Run::OnAction(const LedgerEntry& entry, Transaction* out) {
  judge_->OnAction(entry);
  dirty_ = judge_dirty_ = true;
  out->ledger.emplace_back(name_, entry);
  return ++ledger_entries_;
}

// Lives in comparer_, and so no longer than its run.
class Run::Kept final : public KeptSteps {
 public:
  explicit Kept(const Run* run) : run_(*run) {}

  std::vector<std::shared_ptr<const StepSummary>> Read(std::int64_t first_step, std::int64_t last_step) override {
    std::vector<std::shared_ptr<const StepSummary>> steps;
    std::uint64_t oldest_in_memory = run_.next_sequence_;
    for (const auto& chunk : run_.recent_.Chunks()) {
      for (const auto& step : *chunk) {
        oldest_in_memory = std::min(oldest_in_memory, step->sequence);
        if (step->step >= first_step && step->step <= last_step) steps.push_back(step);
      }
    }
    if (run_.history_ == nullptr || oldest_in_memory <= 1) return steps;
    StepQuery query;
    query.run = run_.name_;
    query.first_step = first_step;
    query.last_step = last_step;
    query.without_ranks = true;
    query.newest_first = true;
    query.limit = kMostRead;
    const auto read = run_.history_->ReadSteps(query);
    if (!read.ok()) return steps;
    std::vector<std::shared_ptr<const StepSummary>> all;
    for (auto step = read->rbegin(); step != read->rend(); ++step) {
      if (step->sequence < oldest_in_memory) all.push_back(std::make_shared<const StepSummary>(*step));
    }
    all.insert(all.end(), steps.begin(), steps.end());
    return all;
  }

 private:
  // The window, over a few attempts that went through it: about 10 us each on the drain thread, once in kStepsAhead steps.
  static constexpr int kMostRead = 8192;
  const Run& run_;
};

void Run::CompareWithEarlier(Attempt* attempt, const StepSummary& step) {
  if (attempts_.size() < 2 || attempt != Newest()) return;
  if (comparer_.attempt() != attempt->name()) {
    std::vector<AttemptSpan> passes;
    for (const auto& other : attempts_) {
      const AttemptView view = other->View();
      if (other.get() != attempt && view.steps > 0) passes.push_back({view.attempt, view.first_step, view.last_step});
    }
    comparer_.Begin(attempt->name(), std::make_shared<Kept>(this), attempt->comparison(), std::move(passes));
  }
  if (comparer_.OnStep(step)) attempt->set_comparison(*comparer_.result());
}

void Run::JoinSteps(Attempt* attempt, TimeNs now_ns, Transaction* out, BookCounters* counters) {
  while (std::optional<JoinedStep> joined = attempt->TakeStep(options_.join, now_ns)) {
    joined->summary.sequence = next_sequence_++;
    ++counters->steps_joined;
    windows_.Add(joined->summary.receive_time_ns, MaximaOf(joined->summary));
    judge_->OnStep(*joined);
    CompareWithEarlier(attempt, joined->summary);
    BoundRankSteps(options_.max_rank_series, &joined->summary);
    if (!joined->summary.complete) attempt->KeepOpen(*joined, options_.join);
    auto summary = std::make_shared<const StepSummary>(std::move(joined->summary));
    recent_.Push(summary);
    if (attempt == Newest()) last_step_ = summary;
    out->steps.emplace_back(name_, std::move(summary));
    dirty_ = judge_dirty_ = presence_dirty_ = true;
  }
  for (std::shared_ptr<const StepSummary>& corrected : attempt->TakeCorrected(options_.max_rank_series)) {
    ++counters->steps_corrected;
    recent_.Replace(corrected);
    if (last_step_ != nullptr && last_step_->sequence == corrected->sequence) last_step_ = corrected;
    out->steps.emplace_back(name_, std::move(corrected));
    dirty_ = true;
  }
}

Presence Run::MakePresence(TimeNs now_ns, const Reachability& reaches) const {
  Presence presence;
  presence.now_ns = now_ns;
  const Attempt* newest = Newest();
  if (newest == nullptr) return presence;
  presence.newest_attempt = newest->name();
  presence.last_step = newest->last_joined_step();
  presence.last_step_time_ns = newest->last_step_time_ns();
  presence.first_seen_ns = newest->first_seen_ns();
  std::size_t looked_for = 0;
  presence.producers.reserve(newest->ranks().size());
  for (const auto& [rank, state] : newest->ranks()) {
    if (state.slot == nullptr) continue;
    // Of what has said its last word nobody waits to hear.
    if (!(state.slot->HasEnded() && state.slot->liveness.drained)) {
      ++looked_for;
      if (!reaches(*state.slot->info)) {
        if (presence.unreachable_ranks == 0) presence.first_unreachable_rank = rank;
        ++presence.unreachable_ranks;
      }
    }
    if (!state.slot->has_liveness) continue;
    presence.producers.push_back(state.slot->liveness);
    if (state.slot->info->layout.has_loss != 0 && !state.slot->HasEnded()) presence.expected_ranks.push_back(rank);
  }
  for (const auto& attempt : attempts_) {
    if (attempt.get() == newest) continue;
    for (const auto& [rank, state] : attempt->ranks()) {
      if (state.slot != nullptr && state.slot->has_liveness && state.slot->IsAlive()) presence.producers.push_back(state.slot->liveness);
    }
  }
  if (options_.join.whole_job && !newest->ranks().empty()) {
    // Ranks of the world that no node has told of yet.
    const auto& [first_rank, first] = *newest->ranks().begin();
    const std::size_t world = first.slot == nullptr ? 0 : first.slot->info->layout.world_size;
    if (newest->ranks().size() < world) {
      std::uint32_t unseen = 0;
      for (auto it = newest->ranks().begin(); it != newest->ranks().end() && it->first == unseen; ++it) ++unseen;
      presence.first_unreachable_rank = presence.unreachable_ranks == 0 ? unseen : std::min(presence.first_unreachable_rank, unseen);
      presence.unreachable_ranks += world - newest->ranks().size();
      looked_for += world - newest->ranks().size();
    }
  }
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

bool Run::Advance(TimeNs now_ns, const Reachability& reaches, Transaction* out, BookCounters* counters) {
  for (const auto& attempt : attempts_) JoinSteps(attempt.get(), now_ns, out, counters);
  for (ProducerEvent& event : std::exchange(new_events_, {})) out->events.emplace_back(name_, std::move(event));
  HandOverEnds();
  if (presence_dirty_ || now_ns - last_presence_ns_ >= kPresenceEveryNs) {
    const Presence presence = MakePresence(now_ns, reaches);
    unreachable_ranks_ = presence.unreachable_ranks;
    UpdateEnd(now_ns);
    judge_->OnPresence(presence);
    last_presence_ns_ = now_ns;
    presence_dirty_ = false;
    judge_dirty_ = true;
  }
  if (!judge_dirty_) return dirty();
  judge_dirty_ = false;
  std::vector<Incident> changed = judge_->TakeChangedIncidents();
  if (!changed.empty()) {
    dirty_ = true;
    for (Incident& incident : changed) {
      if (std::optional<Stumble> stumble = StumbleOf(incident, recent_)) {
        stumbles_.Add(*stumble);
        new_stumbles_.push_back(*std::move(stumble));
      }
      out->incidents.push_back(std::move(incident));
    }
  }
  Verdict verdict = judge_->Evaluate(now_ns);
  judge_->NoteVerdict(verdict);  // as the judge gave it
  if (options_.join.whole_job) verdict.scope = "job";
  // Of another policy: so that the history says by which one an incident was judged.
  if (!has_verdict_ || DiffersInSubstance(verdict_, verdict) || verdict_.policy_version != verdict.policy_version) {
    ++verdict_changes_;
    dirty_ = true;
    out->verdicts.emplace_back(name_, verdict);
  }
  has_verdict_ = true;
  verdict_ = std::move(verdict);
  incidents_ = judge_->Incidents();
  incident_counters_ = judge_->counters();
  return true;
}

bool Run::IsNotable(const RankState& state) const {
  if (!state.slot->has_liveness || state.slot->liveness.producer_state != ProducerState::kLive) return true;
  return last_step_ != nullptr && std::binary_search(last_step_->missing_ranks.begin(), last_step_->missing_ranks.end(), state.rank);
}

bool Run::HasLiveProducer() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& attempt) { return attempt->HasLiveProducer(); });
}

std::vector<std::shared_ptr<ProducerSlot>> Run::Slots() const {
  std::vector<std::shared_ptr<ProducerSlot>> slots;
  for (const auto& attempt : attempts_) slots.insert(slots.end(), attempt->slots().begin(), attempt->slots().end());
  return slots;
}

std::shared_ptr<ProducerSlot> Run::FindSlot(const SegmentId& segment) const {
  const auto found = by_segment_.find(segment);
  return found == by_segment_.end() ? nullptr : found->second.lock();
}

std::size_t Run::rank_count() const {
  const Attempt* newest = Newest();
  return newest == nullptr ? 0 : newest->ranks().size();
}

}  // namespace lossgauge::state
