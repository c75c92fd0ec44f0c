#include "server/ingest/producer_lock.h"

#include <fcntl.h>
#include <unistd.h>

namespace lossgauge::ingest {

ProducerLock::~ProducerLock() {
  if (fd_ >= 0) close(fd_);
}

LockState ProducerLock::Probe() {
  // O_NONBLOCK: a FIFO by that name must not stop the drain.
  if (fd_ < 0) fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0) return LockState::kUnknown;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd_, F_GETLK, &lock) != 0) return LockState::kUnknown;
  return lock.l_type == F_UNLCK ? LockState::kFree : LockState::kHeld;
}

}  // namespace lossgauge::ingest
