// Attempts of a run: which one a segment belongs to, which is the newest, and when a job that was started again goes on in a new one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/run.h"

namespace lossgauge::state {
namespace {

// Producers do not know the name that an attempt got here.
std::shared_ptr<const ProducerInfo> Renamed(const std::shared_ptr<const ProducerInfo>& info, const std::string& attempt) {
  if (info->attempt == attempt) return info;
  auto renamed = std::make_shared<ProducerInfo>(*info);
  renamed->attempt = attempt;
  return renamed;
}

}  // namespace

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

}  // namespace lossgauge::state
