#include "server/state/run_book.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/run_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kMaxRefusedRemembered = 4096;
constexpr std::int64_t kCursorKeptNs = std::int64_t{7} * 86'400 * 1'000'000'000;

std::string RandomInstance() {
  std::random_device random;
  SegmentId id;
  for (auto& word : id.words) word = std::uint64_t{random()} << 32 | random();
  return id.Hex().substr(0, 16);
}

}  // namespace

RunBook::RunBook(const RunBookOptions& options, JudgeFactory* judges, Store* store, TimeNs now_ns)
    : options_(options), judges_(judges), store_(store), now_ns_(now_ns), history_(store->reader()), instance_(RandomInstance()), start_time_ns_(now_ns) {}

RunBook::~RunBook() = default;

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
    run->RestoreSteps(*std::move(steps), now_ns);
  }
  if (const auto entries = store_->CountLedger(row.run); entries.ok()) run->RestoreLedger(*entries);
  return true;
}

RunBook::Segment* RunBook::Find(const SegmentId& segment) {
  const auto it = segments_.find(segment);
  return it == segments_.end() ? nullptr : &it->second;
}

bool RunBook::Refuse(const ProducerInfo& producer, const std::string& cause) {
  if (refused_segments_.size() >= kMaxRefusedRemembered) refused_segments_.clear();
  // A source asks again and again for the same segment: it is one refusal.
  if (refused_segments_.insert(absl::StrCat(producer.segment.Hex(), cause)).second) ++refused_[cause];
  has_news_ = true;
  return false;
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

Run* RunBook::FindOrMakeRun(const std::string& name, TimeNs now_ns) {
  if (const auto it = runs_.find(name); it != runs_.end()) return it->second.run.get();
  if (runs_.size() >= options_.max_runs && !MakeRoom()) return nullptr;
  auto run = MakeRun(name, now_ns);
  if (stored_runs_.contains(name)) {
    // The run was let go and comes back: its counters go on.
    if (is_started_) {
      startup_rows_.clear();
      if (auto row = store_->LoadRun(name); row.ok() && *row) startup_rows_.push_back(**std::move(row));
    }
    for (const RunRow& row : startup_rows_) {
      if (row.run == name && !RestoreRun(run.get(), row, now_ns)) run = MakeRun(name, now_ns);
    }
    if (is_started_) startup_rows_ = {};
    for (const RunRow& row : queued_.runs) {  // let go since the last commit
      if (row.run == name) (void)RestoreRun(run.get(), RunRow(row), now_ns);
    }
  }
  Entry& entry = runs_[name];
  entry.run = std::move(run);
  return entry.run.get();
}

bool RunBook::OnProducer(std::shared_ptr<const ProducerInfo> producer) {
  const ProducerInfo& info = *producer;
  if (Find(info.segment) != nullptr) return true;
  Run* run = FindOrMakeRun(info.run, now_ns_);
  if (run == nullptr) return Refuse(info, "max_runs");

  std::shared_ptr<ProducerSlot> slot = run->FindSlot(info.segment);
  const bool is_restored = slot != nullptr;
  if (!is_restored) slot = std::make_shared<ProducerSlot>();
  slot->info = std::move(producer);
  const auto cursor = cursors_.find(slot->info->segment);
  if (cursor != cursors_.end()) {
    slot->next_steps = cursor->second.next_steps_publication;
    slot->next_events = cursor->second.next_events_publication;
    if (!RunCodec::DecodeSlotTotals(cursor->second.totals, slot.get())) {
      slot->counted_steps = slot->next_steps;
      slot->counted_events = slot->next_events;
    }
  }
  if (is_restored) {
    slot->gone = false;
    // The file is there and will be looked at; of a forwarded one the last word stands until there is another.
    if (!options_.run.is_forwarded) slot->has_liveness = false;
    slot->last_step = -1;
    run->ReattachProducer(slot);
  } else if (std::string cause = run->AddProducer(slot, cursor != cursors_.end() ? cursor->second.attempt : "", now_ns_); !cause.empty()) {
    if (run->Slots().empty()) DropRun(std::string(run->name()));
    return Refuse(*slot->info, cause);
  }
  if (cursor != cursors_.end()) cursors_.erase(cursor);
  segments_[slot->info->segment] = Segment{slot, run};
  has_news_ = true;
  return true;
}

void RunBook::OnSample(RankSample sample) {
  Segment* segment = Find(sample.producer->segment);
  if (segment != nullptr) segment->run->OnSample(segment->slot, std::move(sample), &counters_);
}

void RunBook::OnEvent(ProducerEvent event) {
  Segment* segment = Find(event.producer->segment);
  if (segment != nullptr) segment->run->OnEvent(segment->slot, std::move(event));
}

void RunBook::OnLiveness(const LivenessReport& report) {
  Segment* segment = Find(report.producer->segment);
  if (segment != nullptr) segment->run->OnLiveness(segment->slot, report);
}

void RunBook::OnLoss(const LossReport& report) {
  Segment* segment = Find(report.producer->segment);
  if (segment != nullptr) segment->run->OnLoss(segment->slot, report);
}

void RunBook::OnProducerGone(const SegmentId& id, TimeNs) {
  cursors_.erase(id);
  queued_.forget_cursors.push_back(id);
  Segment* segment = Find(id);
  if (segment == nullptr) return;
  segment->run->OnGone(segment->slot);
  segments_.erase(id);
}

ResumePosition RunBook::FindCursor(const SegmentId& segment) const {
  ResumePosition position;
  if (const auto it = segments_.find(segment); it != segments_.end()) {
    position.next_steps_publication = it->second.slot->next_steps;
    position.next_events_publication = it->second.slot->next_events;
  } else if (const auto cursor = cursors_.find(segment); cursor != cursors_.end()) {
    position.next_steps_publication = cursor->second.next_steps_publication;
    position.next_events_publication = cursor->second.next_events_publication;
    position.ended = cursor->second.ended;
  }
  return position;
}

ResumePosition RunBook::FindCommitted(const SegmentId& segment) const {
  const auto it = segments_.find(segment);
  if (it == segments_.end()) return FindCursor(segment);
  ResumePosition position;
  position.next_steps_publication = it->second.slot->committed_steps;
  position.next_events_publication = it->second.slot->committed_events;
  return position;
}

absl::Status RunBook::Acknowledge(const Mailbox::Acknowledge& request, Incident* out) {
  for (auto& [name, entry] : runs_) {
    if (entry.run->Acknowledge(request.incident_id, request.acknowledgement, out)) {
      has_news_ = entry.has_news = true;
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(absl::StrCat("no run has an incident \"", request.incident_id, "\""));
}

absl::StatusOr<std::string> RunBook::SetMode(const std::string& run, const std::string& mode) {
  const auto it = runs_.find(run);
  if (it == runs_.end()) return absl::NotFoundError(absl::StrCat("no run \"", run, "\""));
  has_news_ = it->second.has_news = true;
  return it->second.run->SetMode(mode, now_ns_);
}

absl::Status RunBook::Report(const Mailbox::Report& report, std::uint64_t* ledger_entries) {
  const auto it = runs_.find(report.run);
  if (it == runs_.end()) return absl::NotFoundError(absl::StrCat("no run \"", report.run, "\""));
  if (queued_.ledger.size() >= options_.max_queued_ledger) {
    return absl::ResourceExhaustedError(absl::StrCat(queued_.ledger.size(), " reports wait for a state store that cannot be written"));
  }
  *ledger_entries = it->second.run->OnAction(report.entry, &queued_);
  has_news_ = it->second.has_news = true;
  return absl::OkStatus();
}

void RunBook::Advance(TimeNs now_ns, const Reachability& reaches) {
  now_ns_ = now_ns;
  if (!is_started_) {
    is_started_ = true;
    startup_rows_ = {};
    for (auto& [name, entry] : runs_) entry.run->SettleRestored();
  }
  for (auto& [name, entry] : runs_) {
    if (entry.run->Advance(now_ns, reaches, &queued_, &counters_)) has_news_ = entry.has_news = true;
  }
  for (auto& [name, entry] : runs_) {
    for (const auto& slot : entry.run->TakeDroppedSlots()) KeepCursor(name, *slot);
  }
  NameSiblings(now_ns);
  DropOldRuns(now_ns);
}

void RunBook::NameSiblings(TimeNs now_ns) {
  for (auto& [name, entry] : runs_) {
    for (const Stumble& stumble : entry.run->TakeStumbles()) {
      for (auto& [other_name, other] : runs_) {
        if (other_name == name) continue;
        const Stumble* same = other.run->FindStumble(stumble);
        if (same == nullptr) continue;
        entry.run->NameSibling(stumble.incident_id, other_name, now_ns);
        other.run->NameSibling(same->incident_id, name, now_ns);
      }
    }
  }
}

void RunBook::ReplaceJudges(JudgeFactory* judges) {
  judges_ = judges;
  for (auto& [name, entry] : runs_) {
    if (!entry.run->ReplaceJudge(judges->MakeJudge(name))) ++counters_.baseline_resets;
    has_news_ = entry.has_news = true;
  }
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

std::size_t RunBook::SlotCount(const std::string& run) const {
  const auto it = runs_.find(run);
  return it == runs_.end() ? 0 : it->second.run->Slots().size();
}

void RunBook::BoundQueue() {
  if (queued_.steps.size() > options_.max_queued_steps) {
    const std::size_t excess = queued_.steps.size() - options_.max_queued_steps;
    queued_.steps.erase(queued_.steps.begin(), queued_.steps.begin() + static_cast<std::ptrdiff_t>(excess));
    history_steps_dropped_ += excess;
  }
  if (queued_.incidents.size() > 1024) {
    std::unordered_map<std::string, std::size_t> last;
    for (std::size_t i = 0; i < queued_.incidents.size(); ++i) last[queued_.incidents[i].id] = i;
    std::vector<Incident> kept;
    for (std::size_t i = 0; i < queued_.incidents.size(); ++i) {
      if (last[queued_.incidents[i].id] == i) kept.push_back(std::move(queued_.incidents[i]));
    }
    queued_.incidents = std::move(kept);
  }
  const auto keep_newest = [](auto* rows, std::size_t most) {
    if (rows->size() > most) rows->erase(rows->begin(), rows->end() - static_cast<std::ptrdiff_t>(most));
  };
  // What falls out here is read again from files that linger, or forgotten by its age.
  keep_newest(&queued_.cursors, options_.max_queued_cursors);
  keep_newest(&queued_.forget_cursors, options_.max_queued_cursors);
  keep_newest(&queued_.runs, options_.max_queued_runs);
  keep_newest(&queued_.events, options_.max_queued_events);
  keep_newest(&queued_.policies, options_.max_queued_runs);
  std::size_t journal_bytes = 0;
  for (const JournalRow& row : queued_.journal) journal_bytes += row.data.size();
  if (journal_bytes > options_.max_queued_journal_bytes) {
    queued_.journal = {};
    for (auto& [name, entry] : runs_) entry.run->RestartJournal();
  }
  if (queued_.verdicts.size() > 4096) queued_.verdicts.erase(queued_.verdicts.begin(), queued_.verdicts.end() - 4096);
}

const Transaction& RunBook::BuildTransaction(TimeNs now_ns) {
  BoundQueue();
  for (auto& [name, entry] : runs_) {
    entry.run->AppendJournal(now_ns, entry.run->dirty(), &queued_);
    if (!entry.run->dirty()) continue;
    // Rows of an attempt to commit that failed are replaced, not added to.
    std::erase_if(queued_.runs, [&name = name](const RunRow& row) { return row.run == name; });
    std::erase_if(queued_.cursors, [&name = name](const CursorRow& row) { return row.run == name && !row.ended; });
    entry.run->AppendRows(now_ns, &queued_);
    stored_runs_.insert(name);
  }
  return queued_;
}

void RunBook::OnCommitted() {
  queued_ = {};
  for (auto& [name, entry] : runs_) entry.run->MarkCommitted();
}

bool RunBook::HasUncommitted() const {
  return HasSettled() || std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) { return entry.second.run->dirty(); });
}

bool RunBook::HasSettled() const {
  const auto has_settled = [](const auto& entry) { return entry.second.run->HasSettled() || entry.second.run->HasJournal(); };
  return !queued_.empty() || std::any_of(runs_.begin(), runs_.end(), has_settled);
}

std::shared_ptr<const Snapshot> RunBook::BuildSnapshot(TimeNs now_ns, SelfView self) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->version = ++version_;
  snapshot->time_ns = now_ns;
  snapshot->instance = instance_;
  snapshot->start_time_ns = start_time_ns_;
  snapshot->runs.reserve(runs_.size());
  for (auto& [name, entry] : runs_) {
    if (entry.has_news || entry.snapshot == nullptr) {
      const std::size_t kept_ranks = entry.run->rank_count() > options_.run.max_rank_series ? 32 : entry.run->rank_count();
      const std::size_t step_bytes = sizeof(StepSummary) + 128 + kept_ranks * sizeof(RankSummary);
      const std::size_t affordable = options_.recent_steps_bytes / (runs_.size() * step_bytes);
      entry.snapshot = entry.run->Snapshot(now_ns, std::clamp<std::size_t>(affordable, 64, options_.max_recent_steps));
      entry.has_news = false;
    }
    snapshot->runs.push_back(entry.snapshot);
  }
  for (const auto& [cause, count] : refused_) self.runs_refused[cause] += count;
  self.late_records = counters_.late_records;
  self.duplicate_records = counters_.duplicate_records;
  self.absurd_steps = counters_.absurd_steps;
  self.steps_joined = counters_.steps_joined;
  self.steps_corrected = counters_.steps_corrected;
  self.baseline_resets = counters_.baseline_resets;
  self.history_steps_unwritten = history_steps_dropped_;
  snapshot->self = std::move(self);
  has_news_ = false;
  return snapshot;
}

}  // namespace lossgauge::state
