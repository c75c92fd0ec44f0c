// Time is handed in, so that tests and replays own it.
#ifndef LOSSGAUGE_SERVER_STATE_CLOCK_H_
#define LOSSGAUGE_SERVER_STATE_CLOCK_H_

#include <ctime>

#include "server/state/records.h"

namespace lossgauge::state {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since the epoch that never go back within a process: the wall clock at start plus CLOCK_BOOTTIME since then, so that a
  // step of the wall clock moves no deadline.
  virtual TimeNs NowNs() = 0;
  // CLOCK_BOOTTIME, to compare with what producers wrote.
  virtual std::int64_t BootNs() = 0;
  // What the calling thread has computed so far.
  virtual std::int64_t ThreadCpuNs() { return Read(CLOCK_THREAD_CPUTIME_ID); }

 protected:
  static std::int64_t Read(clockid_t id) {
    timespec t{};
    clock_gettime(id, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
};

class SystemClock final : public Clock {
 public:
  SystemClock() : offset_ns_(Read(CLOCK_REALTIME) - Read(CLOCK_BOOTTIME)) {}
  TimeNs NowNs() override { return Read(CLOCK_BOOTTIME) + offset_ns_; }
  std::int64_t BootNs() override { return Read(CLOCK_BOOTTIME); }

 private:
  std::int64_t offset_ns_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_CLOCK_H_
