// Wakes whoever waits for news: one thread waits for the board and tells every watcher, so that a step goes from publication to all its
// clients without polling. Also the clock tick of everything that has a deadline.
#ifndef LOSSGAUGE_SERVER_RPC_WATCH_HUB_H_
#define LOSSGAUGE_SERVER_RPC_WATCH_HUB_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "server/state/board.h"

namespace lossgauge::rpc {

class Watcher {
 public:
  virtual ~Watcher() = default;
  // There is a newer snapshot, or a tick has passed. Must not block. Called from the hub's thread.
  virtual void Wake(const std::shared_ptr<const state::Snapshot>& snapshot) = 0;
  // The server closes: end with this status as soon as may be. Must not block.
  virtual void End(const absl::Status& status) = 0;
};

// Thread-safe. Holds no lock while it calls a watcher.
class WatchHub {
 public:
  // Without news, watchers are woken every `tick_ns`.
  WatchHub(const state::SnapshotBoard& board, std::size_t max_watchers, std::int64_t tick_ns);
  ~WatchHub();

  // RESOURCE_EXHAUSTED beyond max_watchers, UNAVAILABLE after Close.
  absl::Status Add(std::shared_ptr<Watcher> watcher);
  void Remove(const Watcher* watcher);
  std::size_t size() const;

  // Wakes all watchers now: something other than a snapshot has changed what they say.
  void WakeAll();

  // Ends all watchers with UNAVAILABLE and takes no more. The thread goes on until destruction.
  void Close();

 private:
  void Run();
  std::vector<std::shared_ptr<Watcher>> Watchers() const;

  const state::SnapshotBoard& board_;
  const std::size_t max_watchers_;
  const std::int64_t tick_ns_;
  mutable std::mutex mutex_;
  std::condition_variable stop_changed_;
  std::unordered_map<const Watcher*, std::shared_ptr<Watcher>> watchers_;
  bool closed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_WATCH_HUB_H_
