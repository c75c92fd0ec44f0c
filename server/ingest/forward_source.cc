#include "server/ingest/forward_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ingest/text_repair.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {

ForwardSource::ForwardSource(const ForwardSourceOptions& options, Inbox* inbox, state::Clock* clock) : options_(options), inbox_(inbox), clock_(clock) {}
ForwardSource::~ForwardSource() = default;

std::string ForwardSource::Described(const state::ProducerInfo& info) {
  return absl::StrCat("run \"", info.run, "\" attempt \"", info.attempt, "\" rank ", info.layout.rank);
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
  MoveTo(entry->client, sender.get());
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
