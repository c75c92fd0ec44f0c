#include "server/state/run_book.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/run_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kMaxRefusedRemembered = 4096;

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

std::size_t RunBook::SlotCount(const std::string& run) const {
  const auto it = runs_.find(run);
  return it == runs_.end() ? 0 : it->second.run->Slots().size();
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
