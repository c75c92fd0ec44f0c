// Between the threads that receive batches and the drain thread: bounded, and it never makes the drain thread wait.
#ifndef LOSSGAUGE_SERVER_INGEST_INBOX_H_
#define LOSSGAUGE_SERVER_INGEST_INBOX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "lossgauge/v1/ingest.pb.h"

namespace lossgauge::ingest {

// One sender's stream as the drain thread sees it. Thread-safe; calls after the stream's end do nothing.
class SenderLink {
 public:
  virtual ~SenderLink() = default;
  virtual void Acknowledge(std::uint64_t sequence) = 0;
  // One more batch was taken from the inbox: there is room to read another.
  virtual void Taken() = 0;
  virtual void End(const absl::Status& status) = 0;
};

// What streams are ended for before the drain thread hears of it.
enum class StreamRefusal { kBadHello, kMalformed, kOversize, kMaxStreams, kCount };
inline constexpr std::array<const char*, static_cast<std::size_t>(StreamRefusal::kCount)> kStreamRefusalNames = {"bad_hello", "malformed", "oversize",
                                                                                                                "max_streams"};

struct InboxEntry {
  enum class Kind { kOpened, kBatch, kClosed };
  Kind kind = Kind::kBatch;
  std::shared_ptr<SenderLink> link;
  v1::Hello hello;                   // kOpened
  std::string client;                // kOpened: who the stream is from by what a sender cannot choose
  std::unique_ptr<v1::Batch> batch;  // kBatch
  std::size_t bytes = 0;  // of memory
};

class Inbox {
 public:
  explicit Inbox(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // Never refuses: who reads from the network asks HasRoom before it reads on.
  void Push(InboxEntry entry) {
    const std::lock_guard lock(mutex_);
    bytes_ += entry.bytes;
    entries_.push_back(std::move(entry));
  }
  // False: too much waits here already. Then whoever wants to read gets Taken of his own link later.
  bool HasRoom() const {
    const std::lock_guard lock(mutex_);
    return bytes_ < max_bytes_;
  }
  // False if there is nothing.
  bool Take(InboxEntry* entry) {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return false;
    *entry = std::move(entries_.front());
    entries_.pop_front();
    bytes_ -= entry->bytes;
    return true;
  }
  // How often this happened, this time included.
  std::uint64_t Refuse(StreamRefusal cause) { return ++refused_[static_cast<std::size_t>(cause)]; }
  std::uint64_t refused(StreamRefusal cause) const { return refused_[static_cast<std::size_t>(cause)]; }
  std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<InboxEntry> entries_;
  std::size_t bytes_ = 0;
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(StreamRefusal::kCount)> refused_{};
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_INBOX_H_
