#include "server/rpc/watch_hub.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossgauge::rpc {

WatchHub::WatchHub(const state::SnapshotBoard& board, std::size_t max_watchers, std::int64_t tick_ns)
    : board_(board), max_watchers_(max_watchers), tick_ns_(tick_ns), thread_([this] { Run(); }) {}

WatchHub::~WatchHub() {
  Close();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

absl::Status WatchHub::Add(std::shared_ptr<Watcher> watcher) {
  std::lock_guard lock(mutex_);
  if (closed_) return absl::UnavailableError("lossgauged is shutting down; connect again later");
  if (watchers_.size() >= max_watchers_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", max_watchers_, " streams and pending calls are taken; close some, or ask for lists instead of watching"));
  }
  const Watcher* key = watcher.get();
  watchers_.emplace(key, std::move(watcher));
  return absl::OkStatus();
}

void WatchHub::Remove(const Watcher* watcher) {
  std::shared_ptr<Watcher> removed;  // dies outside the lock
  std::lock_guard lock(mutex_);
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end()) return;
  removed = std::move(found->second);
  watchers_.erase(found);
}

std::size_t WatchHub::size() const {
  std::lock_guard lock(mutex_);
  return watchers_.size();
}

void WatchHub::WakeAll() {
  const std::shared_ptr<const state::Snapshot> snapshot = board_.Get();
  for (const auto& watcher : Watchers()) watcher->Wake(snapshot);
}

void WatchHub::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const auto& watcher : Watchers()) watcher->End(absl::UnavailableError("lossgauged is shutting down; connect again later"));
}

void WatchHub::Run() {
  std::uint64_t seen = 0;
  while (true) {
    if (board_.closed()) {  // no more news, but deadlines go on
      std::unique_lock lock(mutex_);
      if (stop_changed_.wait_for(lock, std::chrono::nanoseconds(tick_ns_), [&] { return stopping_; })) return;
    }
    const std::shared_ptr<const state::Snapshot> snapshot = board_.WaitNewer(seen, tick_ns_);
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    seen = snapshot->version;
    for (const auto& watcher : Watchers()) watcher->Wake(snapshot);
  }
}

std::vector<std::shared_ptr<Watcher>> WatchHub::Watchers() const {
  std::vector<std::shared_ptr<Watcher>> watchers;
  std::lock_guard lock(mutex_);
  watchers.reserve(watchers_.size());
  for (const auto& [key, watcher] : watchers_) watchers.push_back(watcher);
  return watchers;
}

}  // namespace lossgauge::rpc
