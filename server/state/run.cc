#include "server/state/run.h"

#include <algorithm>
#include <utility>

#include "server/state/rank_progress.h"

namespace lossgauge::state {
namespace {

// How many publications of [first, first + records) were not counted before; the mark moves past them.
std::uint64_t CountNew(std::uint64_t first, std::uint64_t records, std::uint64_t* counted) {
  const std::uint64_t end = first + records;
  if (first == 0) return records;
  if (end <= *counted) return 0;
  const std::uint64_t fresh = end - std::max(first, *counted);
  *counted = end;
  return fresh;
}

}  // namespace

Run::Run(std::string name, std::unique_ptr<RunJudge> judge, const RunOptions& options, TimeNs now_ns)
    : name_(std::move(name)),
      judge_(std::make_unique<JournaledJudge>(std::move(judge), options.journal)),
      options_(options),
      first_seen_ns_(now_ns),
      last_activity_ns_(now_ns) {}

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

void Run::TakeIncidents(Transaction* out) {
  for (Incident& incident : judge_->TakeChangedIncidents()) {
    dirty_ = true;
    if (std::optional<Stumble> stumble = StumbleOf(incident, recent_)) {
      stumbles_.Add(*stumble);
      new_stumbles_.push_back(*std::move(stumble));
    }
    out->incidents.push_back(std::move(incident));
  }
}

void Run::TakeVerdict(TimeNs now_ns, Transaction* out) {
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
}

bool Run::Advance(TimeNs now_ns, const Reachability& reaches, Transaction* out, BookCounters* counters) {
  for (const auto& attempt : attempts_) JoinSteps(attempt.get(), now_ns, out, counters);
  for (ProducerEvent& event : std::exchange(new_events_, {})) out->events.emplace_back(name_, std::move(event));
  HandOverEnds();
  ShowPresence(now_ns, reaches);
  if (!judge_dirty_) return dirty();
  judge_dirty_ = false;
  TakeIncidents(out);
  TakeVerdict(now_ns, out);
  incidents_ = judge_->Incidents();
  incident_counters_ = judge_->counters();
  return true;
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
