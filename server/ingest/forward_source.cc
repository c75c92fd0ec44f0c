#include "server/ingest/forward_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/ring_validate.h"
#include "server/ingest/text_repair.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

using state::LossReason;

constexpr std::int64_t kForgetEveryNs = 10'000'000'000;

std::string Described(const state::ProducerInfo& info) {
  return absl::StrCat("run \"", info.run, "\" attempt \"", info.attempt, "\" rank ", info.layout.rank);
}

}  // namespace

ForwardSource::ForwardSource(const ForwardSourceOptions& options, Inbox* inbox, state::Clock* clock) : options_(options), inbox_(inbox), clock_(clock) {}
ForwardSource::~ForwardSource() = default;

state::TimeNs ForwardSource::BatchTimes::Ours(std::uint64_t sender_ns) const {
  if (sender_ns == 0 || sender_ns >= sent_ns) return now_ns;
  return now_ns - static_cast<state::TimeNs>(std::min<std::uint64_t>(sent_ns - sender_ns, static_cast<std::uint64_t>(now_ns)));
}

void ForwardSource::Refuse(Sender* sender, const char* cause, const std::string& what) {
  ++stats_.ingest[absl::StrCat("refused/", cause)];
  const std::uint64_t count = ++sender->refused[cause];
  // The first of a kind, then ever more seldom.
  if ((count & (count - 1)) == 0) spdlog::warn("from node \"{}\": {} [{}, {} times]", sender->node, what, cause, count);
}

void ForwardSource::Open(InboxEntry* entry, state::TimeNs now_ns) {
  const v1::Hello& hello = entry->hello;
  auto& sender = senders_[hello.sender()];
  if (sender == nullptr) {
    if (senders_.size() > options_.max_senders) {
      senders_.erase(hello.sender());
      ++stats_.ingest["refused/max_senders"];
      entry->link->End(absl::ResourceExhaustedError(absl::StrCat("already ", options_.max_senders, " senders")));
      return;
    }
    sender = std::make_unique<Sender>();
    sender->id = hello.sender();
  }
  if (sender->link != nullptr) {
    by_link_.erase(sender->link.get());
    sender->link->End(absl::AbortedError("the same sender opened another stream"));
  }
  sender->node = RepairName(hello.node(), kMaxRunBytes).name;
  sender->step_words = hello.step_words();
  sender->link = entry->link;
  sender->last_heard_ns = now_ns;
  sender->newest_at_hello = hello.newest_sequence();
  sender->received = 0;
  sender->by_number.clear();
  sender->unacknowledged.clear();
  by_link_[entry->link.get()] = sender.get();
  if (hello.ring_abi_minor() > LG_RING_ABI_MINOR) {
    Refuse(sender.get(), "newer_minor", absl::StrCat("records of ring ABI ", hello.ring_abi_major(), ".", hello.ring_abi_minor(), ", of which ",
                                                     LG_RING_ABI_MAJOR, ".", LG_RING_ABI_MINOR, " is known here: words beyond it are not looked at"));
  }
  spdlog::info("node \"{}\" forwards; {} senders", sender->node, by_link_.size());
}

void ForwardSource::Close(const SenderLink* link) {
  const auto found = by_link_.find(link);
  if (found == by_link_.end()) return;
  Sender* sender = found->second;
  by_link_.erase(found);
  sender->link.reset();
  sender->by_number.clear();
  sender->unacknowledged.clear();
  spdlog::info("node \"{}\" is gone; {} senders", sender->node, by_link_.size());
}

bool ForwardSource::IsHeard(const Sender& sender, state::TimeNs now_ns) const {
  return sender.link != nullptr && now_ns - sender.last_heard_ns <= options_.unreachable_after_ns;
}

bool ForwardSource::Reaches(const state::ProducerInfo& info) const {
  const auto found = producers_.find(info.segment);
  if (found == producers_.end() || found->second->owner == nullptr) return false;
  const Sender& sender = *found->second->owner;
  return IsHeard(sender, clock_->NowNs()) && sender.received >= sender.newest_at_hello;
}

bool ForwardSource::Own(Sender* sender, Producer* producer) {
  if (producer->owner == sender) return true;
  if (producer->owner != nullptr) {
    if (producer->owner->link != nullptr) return false;
    Release(producer);
  }
  producer->owner = sender;
  producer->fate = Producer::Fate::kAsked;
  producer->next_ask_ns = 0;
  return true;
}

bool ForwardSource::Claim(Producer* producer) {
  if (producer->is_claimed) return true;
  auto& runs = producer->owner->runs;
  const auto found = runs.find(producer->info->run);
  if (found == runs.end() && options_.max_runs_per_sender > 0 && runs.size() >= options_.max_runs_per_sender) return false;
  ++runs[producer->info->run];
  producer->is_claimed = true;
  return true;
}

void ForwardSource::Release(Producer* producer) {
  if (!producer->is_claimed) return;
  producer->is_claimed = false;
  const auto found = producer->owner->runs.find(producer->info->run);
  if (--found->second == 0) producer->owner->runs.erase(found);
}

void ForwardSource::RefuseForRuns(Producer* producer, state::TimeNs now_ns) {
  producer->fate = Producer::Fate::kRefused;
  producer->next_ask_ns = now_ns + options_.retry_refused_ns;
  Refuse(producer->owner, "max_runs_per_sender",
         absl::StrCat(Described(*producer->info), " is refused: ", options_.max_runs_per_sender,
                      " runs of this node are not over, and that is as many as one may have (--max_runs_per_sender)"));
}

void ForwardSource::Ask(Sender* sender, Producer* producer, state::TimeNs now_ns) {
  if (now_ns < producer->next_ask_ns) return;
  const state::ResumePosition before = cursors_->FindCursor(producer->info->segment);
  if (before.ended) {
    producer->fate = Producer::Fate::kOver;
    Release(producer);
    return;
  }
  if (!Claim(producer)) return RefuseForRuns(producer, now_ns);
  if (!sink_->OnProducer(producer->info)) {
    Release(producer);
    producer->fate = Producer::Fate::kRefused;
    producer->next_ask_ns = now_ns + options_.retry_refused_ns;
    Refuse(sender, "producer", absl::StrCat(Described(*producer->info), " is refused: run or rank limit, another layout than its run has, or a second "
                                                                        "live process for this rank"));
    return;
  }
  producer->fate = Producer::Fate::kAdmitted;
  const state::ResumePosition position = cursors_->FindCursor(producer->info->segment);
  producer->next_steps = position.next_steps_publication;
  producer->next_events = position.next_events_publication;
  producer->is_new = producer->next_steps == 1 && producer->next_events == 1;
}

absl::Status ForwardSource::TellProducer(Sender* sender, const v1::Item::Producer& item, state::TimeNs now_ns) {
  if (item.number() == 0 || item.number() > kMaxProducerNumber) {
    return absl::InvalidArgumentError(absl::StrCat("producer.number: expected 1 to ", kMaxProducerNumber, ", got ", item.number()));
  }
  auto info = ReadProducer(item, &stats_.names_repaired);
  if (!info.ok()) {
    // Its sender may have others that make sense.
    sender->by_number[item.number()] = nullptr;
    Refuse(sender, "bad_producer", absl::StrCat("a producer is refused: ", std::string(info.status().message())));
    return absl::OkStatus();
  }
  auto& producer = producers_[(*info)->segment];
  if (producer == nullptr) {
    if (producers_.size() > options_.max_producers) {
      producers_.erase((*info)->segment);
      sender->by_number[item.number()] = nullptr;
      Refuse(sender, "max_producers", absl::StrCat("already ", options_.max_producers, " producers"));
      return absl::OkStatus();
    }
    producer = std::make_unique<Producer>();
    producer->info = *info;
  }
  sender->by_number[item.number()] = producer.get();
  if (!Own(sender, producer.get())) {
    Refuse(sender, "second_sender", absl::StrCat(Described(*producer->info), " is already forwarded by node \"", producer->owner->node, "\""));
    return absl::OkStatus();
  }
  producer->last_item_ns = now_ns;
  Ask(sender, producer.get(), now_ns);
  return absl::OkStatus();
}

absl::StatusOr<ForwardSource::Producer*> ForwardSource::Find(Sender* sender, std::uint32_t number, const char* what, state::TimeNs now_ns) {
  const auto found = sender->by_number.find(number);
  if (found == sender->by_number.end()) return absl::InvalidArgumentError(absl::StrCat(what, ".producer: ", number, " was never told"));
  Producer* producer = found->second;
  if (producer == nullptr || !Own(sender, producer)) return nullptr;  // counted when it was told
  producer->last_item_ns = now_ns;
  if (producer->fate == Producer::Fate::kRefused || producer->fate == Producer::Fate::kAsked) Ask(sender, producer, now_ns);
  return producer->fate == Producer::Fate::kAdmitted ? producer : nullptr;
}

void ForwardSource::ReportLoss(Producer* producer, bool events, LossReason reason, std::uint64_t first, std::uint64_t records, state::TimeNs time_ns) {
  state::LossReport report;
  report.producer = producer->info;
  report.reason = reason;
  report.records = records;
  report.first_publication = first;
  report.event_ring = events;
  report.time_ns = time_ns;
  sink_->OnLoss(report);
  if (!events) producer->lost_before += records;
}

void ForwardSource::CountGap(Producer* producer, bool events, std::uint64_t first, state::TimeNs now_ns) {
  std::uint64_t* next = events ? &producer->next_events : &producer->next_steps;
  if (first > *next && !producer->is_new) ReportLoss(producer, events, LossReason::kSpool, *next, first - *next, now_ns);
  *next = std::max(*next, first);
}

void ForwardSource::Hold(Unacknowledged* held, Producer* producer) {
  const Held now = {producer->info->segment, producer->next_steps, producer->next_events};
  if (producer->held_by == held->number) {
    held->held[producer->held_at] = now;
    return;
  }
  producer->held_by = held->number;
  producer->held_at = held->held.size();
  held->held.push_back(now);
}

absl::Status ForwardSource::ReadSteps(Sender* sender, const v1::Item::StepRecords& item, const BatchTimes& times, Unacknowledged* held) {
  const std::size_t bytes = std::size_t{sender->step_words} * 8;
  if (item.words().empty() || item.words().size() % bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("steps.words: expected a multiple of ", bytes, " bytes, got ", item.words().size()));
  }
  const std::size_t count = item.words().size() / bytes;
  if (item.first_publication() == 0 || item.first_publication() > kMaxPublication) {
    return absl::InvalidArgumentError(absl::StrCat("steps.first_publication: expected 1 to 2^44, got ", item.first_publication()));
  }
  const auto found = Find(sender, item.producer(), "steps", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) {
    stats_.ingest["records_refused"] += count;
    return absl::OkStatus();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t publication = item.first_publication() + i;
    if (publication < producer->next_steps) {
      ++stats_.ingest["records_repeated"];
      continue;
    }
    CountGap(producer, false, publication, times.now_ns);
    producer->next_steps = publication + 1;
    producer->is_new = false;
    ReadStep(item.words().data() + i * bytes, sender->step_words, &sample_.record);
    if (const auto judged = ring::ValidateRecord(sample_.record); judged != ring::RecordState::kValid) {
      Refuse(sender, "bad_record", absl::StrCat("a record of ", Described(*producer->info), " is ", ring::RecordStateName(judged)));
      ReportLoss(producer, false, LossReason::kInvalid, publication, 1, times.now_ns);
      continue;
    }
    sample_.producer = producer->info;
    sample_.publication = publication;
    sample_.lost_before = std::exchange(producer->lost_before, 0);
    sample_.receive_time_ns = times.Ours(item.received_ns());
    sample_.arrival_time_ns = times.now_ns;
    sink_->OnSample(std::move(sample_));
    result_.oldest_age_ns = std::max(result_.oldest_age_ns, times.now_ns - times.Ours(item.received_ns()));
    ++result_.records;
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadEvent(Sender* sender, const v1::Item::EventRecord& item, const BatchTimes& times, Unacknowledged* held) {
  if (item.publication() == 0 || item.publication() > kMaxPublication) {
    return absl::InvalidArgumentError(absl::StrCat("event.publication: expected 1 to 2^44, got ", item.publication()));
  }
  const auto found = Find(sender, item.producer(), "event", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) {
    ++stats_.ingest["records_refused"];
    return absl::OkStatus();
  }
  if (item.publication() < producer->next_events) {
    ++stats_.ingest["records_repeated"];
    Hold(held, producer);
    return absl::OkStatus();
  }
  CountGap(producer, true, item.publication(), times.now_ns);
  producer->next_events = item.publication() + 1;
  state::ProducerEvent event = ingest::ReadEvent(item);
  if (event.kind == 0 || event.step < -1 || event.step > ring::kMaxStep) {
    Refuse(sender, "bad_record", absl::StrCat("an event of ", Described(*producer->info), " has kind ", event.kind, " and step ", event.step));
    ReportLoss(producer, true, LossReason::kInvalid, item.publication(), 1, times.now_ns);
  } else {
    event.producer = producer->info;
    event.receive_time_ns = times.Ours(item.received_ns());
    sink_->OnEvent(std::move(event));
    ++result_.records;
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadLost(Sender* sender, const v1::Item::LostRange& item, const BatchTimes& times, Unacknowledged* held) {
  if (item.first_publication() == 0 || item.first_publication() > kMaxPublication || item.records() == 0 || item.records() > kMaxLostRecords) {
    return absl::InvalidArgumentError(absl::StrCat("lost: ", item.records(), " records from publication ", item.first_publication(), " make no sense"));
  }
  const auto found = Find(sender, item.producer(), "lost", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) return absl::OkStatus();
  std::uint64_t* next = item.events() ? &producer->next_events : &producer->next_steps;
  const std::uint64_t end = item.first_publication() + item.records();
  if (end > *next) {
    CountGap(producer, item.events(), item.first_publication(), times.now_ns);
    const std::uint64_t first = std::max(item.first_publication(), *next);
    ReportLoss(producer, item.events(), ReadLossReason(item.reason()), first, end - first, times.Ours(item.noticed_ns()));
    *next = end;
    if (!item.events()) producer->is_new = false;
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadLiveness(Sender* sender, const v1::Item::Liveness& item, const BatchTimes& times) {
  const auto found = Find(sender, item.producer(), "liveness", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) return absl::OkStatus();
  state::LivenessReport report = ingest::ReadLiveness(item);
  report.producer = producer->info;
  report.time_ns = times.Ours(item.seen_ns());
  producer->alive = report.producer_state == state::ProducerState::kLive || report.producer_state == state::ProducerState::kFrozen;
  // What is over makes room, here as in the book; what comes back needs it again.
  if (!producer->alive && report.drained) {
    Release(producer);
  } else if (!Claim(producer)) {
    RefuseForRuns(producer, times.now_ns);
    return absl::OkStatus();
  }
  sink_->OnLiveness(report);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadItem(Sender* sender, const v1::Item& item, const BatchTimes& times, Unacknowledged* held) {
  switch (item.kind_case()) {
    case v1::Item::kProducer: return TellProducer(sender, item.producer(), times.now_ns);
    case v1::Item::kSteps: return ReadSteps(sender, item.steps(), times, held);
    case v1::Item::kEvent: return ReadEvent(sender, item.event(), times, held);
    case v1::Item::kLost: return ReadLost(sender, item.lost(), times, held);
    case v1::Item::kLiveness: return ReadLiveness(sender, item.liveness(), times);
    case v1::Item::kGone: {
      // Its cursor stays for as long as somebody might send it again.
      if (Producer* producer = sender->by_number.contains(item.gone()) ? sender->by_number[item.gone()] : nullptr; producer != nullptr && producer->owner == sender) producer->alive = false;
      sender->by_number.erase(item.gone());
      return absl::OkStatus();
    }
    case v1::Item::KIND_NOT_SET: break;
  }
  ++stats_.ingest["items_unknown"];  // of a later version
  return absl::OkStatus();
}

void ForwardSource::ReadBatch(Sender* sender, const v1::Batch& batch, state::TimeNs now_ns) {
  sender->last_heard_ns = now_ns;
  ++stats_.ingest["batches"];
  BatchTimes times{now_ns, batch.sent_ns()};
  Unacknowledged held;
  held.number = ++batches_read_;
  held.sequence = batch.sequence();
  for (const v1::Item& item : batch.items()) {
    const absl::Status status = ReadItem(sender, item, times, &held);
    if (status.ok()) continue;
    Refuse(sender, "bad_batch", absl::StrCat("batch ", batch.sequence(), ": ", std::string(status.message())));
    // What came before the nonsense is taken, and stays unacknowledged; the sender may come again without it.
    const std::shared_ptr<SenderLink> link = sender->link;
    Close(link.get());
    link->End(absl::InvalidArgumentError(absl::StrCat("batch ", batch.sequence(), ": ", std::string(status.message()))));
    return;
  }
  if (batch.sequence() == 0) return;
  sender->received = std::max(sender->received, batch.sequence());
  sender->unacknowledged.push_back(std::move(held));
}

state::PollResult ForwardSource::Poll(state::RecordSink& sink, const state::CursorLookup& cursors, state::TimeNs now_ns) {
  sink_ = &sink;
  cursors_ = &cursors;
  result_ = {};
  InboxEntry entry;
  std::size_t taken = 0;
  while (taken < options_.poll_batches && inbox_->Take(&entry)) {
    ++taken;
    if (entry.kind == InboxEntry::Kind::kOpened) {
      Open(&entry, now_ns);
      continue;
    }
    const auto found = by_link_.find(entry.link.get());
    if (entry.kind == InboxEntry::Kind::kClosed) {
      Close(entry.link.get());
    } else if (found != by_link_.end()) {
      Sender* sender = found->second;
      ReadBatch(sender, *entry.batch, now_ns);
      AcknowledgeKept(sender);  // a batch that brought nothing new waits for no commit
      entry.link->Taken();
    }
    entry = {};
  }
  result_.more = taken == options_.poll_batches;
  if (now_ns >= next_forget_ns_) Forget(now_ns);
  result_.live_producers = by_link_.size();  // of senders: with one connected there is something to look at soon
  stats_.ingest["senders"] = by_link_.size();
  for (std::size_t i = 0; i < kStreamRefusalNames.size(); ++i) {
    if (const std::uint64_t count = inbox_->refused(static_cast<StreamRefusal>(i)); count > 0) stats_.ingest[absl::StrCat("refused/", kStreamRefusalNames[i])] = count;
  }
  sink_ = nullptr;
  return result_;
}

void ForwardSource::Forget(state::TimeNs now_ns) {
  next_forget_ns_ = now_ns + kForgetEveryNs;
  std::set<const Producer*> forgotten;
  for (auto it = producers_.begin(); it != producers_.end();) {
    const Producer& producer = *it->second;
    const bool is_old = now_ns - producer.last_item_ns > options_.forget_after_ns;
    if (!is_old || (producer.alive && producer.owner != nullptr && IsHeard(*producer.owner, now_ns))) {
      ++it;
      continue;
    }
    if (it->second->owner != nullptr) Release(it->second.get());
    forgotten.insert(it->second.get());
    it = producers_.erase(it);
  }
  if (!forgotten.empty()) {
    for (auto& [id, sender] : senders_) std::erase_if(sender->by_number, [&](const auto& entry) { return forgotten.contains(entry.second); });
  }
  std::set<const Sender*> owners;
  for (const auto& [segment, producer] : producers_) owners.insert(producer->owner);
  std::erase_if(senders_, [&](const auto& entry) {
    return entry.second->link == nullptr && !owners.contains(entry.second.get()) && now_ns - entry.second->last_heard_ns > options_.forget_after_ns;
  });
}

void ForwardSource::OnCommitted(state::TimeNs) { AcknowledgeKept(); }

void ForwardSource::AcknowledgeKept() {
  if (cursors_ == nullptr) return;
  for (auto& [id, sender] : senders_) AcknowledgeKept(sender.get());
}

void ForwardSource::AcknowledgeKept(Sender* sender) {
  const auto is_kept = [this](const Unacknowledged& batch) {
    return std::all_of(batch.held.begin(), batch.held.end(), [this](const Held& held) {
      const state::ResumePosition kept = cursors_->FindCommitted(held.segment);
      return kept.ended || (kept.next_steps_publication >= held.steps_end && kept.next_events_publication >= held.events_end);
    });
  };
  std::uint64_t acknowledged = 0;
  while (!sender->unacknowledged.empty() && is_kept(sender->unacknowledged.front())) {
    acknowledged = sender->unacknowledged.front().sequence;
    sender->unacknowledged.pop_front();
  }
  if (acknowledged > 0 && sender->link != nullptr) sender->link->Acknowledge(acknowledged);
}

}  // namespace lossgauge::ingest
