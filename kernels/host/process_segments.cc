#include "kernels/host/process_segments.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace lossgauge {
namespace {

// Process id of the holder, 0 = free. An id that is not ours was inherited by fork from a holder that does not exist here.
std::atomic<pid_t> holder{0};
// Guarded by `holder`. On the heap and never freed: threads may outlive the destructors of statics. `owner` tells a list of our
// own from one that was copied by fork, whose locks are the parent's.
std::vector<std::string>* keys = nullptr;
pid_t owner = 0;

}  // namespace

ProcessSegments::ProcessSegments(int limit_ms) noexcept {
  const pid_t self = ::getpid();
  for (int waited_ms = 0;; ++waited_ms) {
    pid_t seen = 0;
    if (holder.compare_exchange_strong(seen, self, std::memory_order_acquire, std::memory_order_relaxed)) break;
    if (seen != self && holder.compare_exchange_strong(seen, self, std::memory_order_acquire, std::memory_order_relaxed)) {
      keys = nullptr;  // its holder may have been in the middle of a change: leave that list alone for good
      break;
    }
    if (waited_ms >= limit_ms) return;
    const timespec millisecond{0, 1000000};
    ::nanosleep(&millisecond, nullptr);
  }
  locked_ = true;
  if (owner != self) keys = nullptr;
  owner = self;
}

ProcessSegments::~ProcessSegments() {
  if (locked_) holder.store(0, std::memory_order_release);
}

bool ProcessSegments::Holds(std::string_view key) const noexcept {
  return keys != nullptr && std::find(keys->begin(), keys->end(), key) != keys->end();
}

void ProcessSegments::Insert(const std::string& key) {
  if (keys == nullptr) keys = new std::vector<std::string>;
  keys->push_back(key);
}

void ProcessSegments::Erase(std::string_view key) noexcept {
  if (keys != nullptr) keys->erase(std::remove(keys->begin(), keys->end(), key), keys->end());
}

}  // namespace lossgauge
