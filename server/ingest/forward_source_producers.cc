// Whose a segment is, whether the book takes it, and when it is forgotten.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ingest/forward_source.h"

namespace lossgauge::ingest {
namespace {

constexpr std::int64_t kForgetEveryNs = 10'000'000'000;

void Subtract(const std::string& run, std::size_t producers, std::map<std::string, std::size_t>* runs) {
  const auto found = runs->find(run);
  found->second -= producers;
  if (found->second == 0) runs->erase(found);
}

}  // namespace

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

bool ForwardSource::Claim(Producer* producer, state::TimeNs now_ns) {
  if (producer->is_claimed) return true;
  Sender* owner = producer->owner;
  const std::string& run = producer->info->run;
  const auto is_full = [&run](const std::map<std::string, std::size_t>& runs, std::size_t limit) {
    return limit > 0 && runs.size() >= limit && !runs.contains(run);
  };
  if (is_full(owner->runs, options_.max_runs_per_sender)) {
    RefuseForRuns(producer, "max_runs_per_sender", "this node", options_.max_runs_per_sender, now_ns);
    return false;
  }
  auto& of_client = runs_of_clients_[owner->client];
  if (is_full(of_client, options_.max_runs_per_client)) {
    RefuseForRuns(producer, "max_runs_per_client", absl::StrCat("senders at ", owner->client), options_.max_runs_per_client, now_ns);
    return false;
  }
  ++owner->runs[run];
  ++of_client[run];
  producer->is_claimed = true;
  return true;
}

void ForwardSource::Release(Producer* producer) {
  if (!producer->is_claimed) return;
  producer->is_claimed = false;
  Sender* owner = producer->owner;
  Subtract(producer->info->run, 1, &owner->runs);
  const auto of_client = runs_of_clients_.find(owner->client);
  Subtract(producer->info->run, 1, &of_client->second);
  if (of_client->second.empty()) runs_of_clients_.erase(of_client);
}

void ForwardSource::MoveTo(const std::string& client, Sender* sender) {
  if (sender->client == client) return;
  const std::string before = std::exchange(sender->client, client);
  if (sender->runs.empty()) return;
  const auto left = runs_of_clients_.find(before);
  for (const auto& [run, producers] : sender->runs) {
    runs_of_clients_[client][run] += producers;
    Subtract(run, producers, &left->second);
  }
  if (left->second.empty()) runs_of_clients_.erase(left);
}

void ForwardSource::RefuseForRuns(Producer* producer, const char* limit, const std::string& whose, std::size_t runs, state::TimeNs now_ns) {
  producer->fate = Producer::Fate::kRefused;
  producer->next_ask_ns = now_ns + options_.retry_refused_ns;
  Refuse(producer->owner, limit,
         absl::StrCat(Described(*producer->info), " is refused: ", runs, " runs of ", whose, " are not over, and that is as many as one may have (--", limit, ")"));
}

void ForwardSource::Ask(Sender* sender, Producer* producer, state::TimeNs now_ns) {
  if (now_ns < producer->next_ask_ns) return;
  const state::ResumePosition before = cursors_->FindCursor(producer->info->segment);
  if (before.ended) {
    producer->fate = Producer::Fate::kOver;
    Release(producer);
    return;
  }
  if (!Claim(producer, now_ns)) return;
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
  producer->are_steps_new = producer->are_events_new = producer->next_steps == 1 && producer->next_events == 1;
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

}  // namespace lossgauge::ingest
