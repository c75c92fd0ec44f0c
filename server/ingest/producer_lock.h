// Whether a producer lives: does it hold its lock? A probe asks (F_GETLK) and never takes the lock. By pid nothing is decided: containers
// have pids of their own.
#ifndef LOSSGAUGE_SERVER_INGEST_PRODUCER_LOCK_H_
#define LOSSGAUGE_SERVER_INGEST_PRODUCER_LOCK_H_

#include <string>

namespace lossgauge::ingest {

enum class LockState {
  kHeld,
  kFree,
  kUnknown,  // no lock file, or it cannot be opened: the heartbeat alone must do
};

class ProducerLock {
 public:
  explicit ProducerLock(std::string path) : path_(std::move(path)) {}
  ~ProducerLock();
  ProducerLock(const ProducerLock&) = delete;
  ProducerLock& operator=(const ProducerLock&) = delete;
  // Opens the file when first needed and keeps it, so that a file unlinked under a living producer is still the one asked about.
  LockState Probe();

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_PRODUCER_LOCK_H_
