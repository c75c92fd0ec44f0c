// A clock that stands still until a test moves it.
#ifndef LOSSGAUGE_TESTS_SERVER_MANUAL_CLOCK_H_
#define LOSSGAUGE_TESTS_SERVER_MANUAL_CLOCK_H_

#include <ctime>

#include "server/state/clock.h"

namespace lossgauge::testing {

class ManualClock final : public state::Clock {
 public:
  static constexpr std::int64_t kSecond = 1'000'000'000;
  // Begins now by the boot clock, because fake producers write heartbeats by it.
  ManualClock() {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    boot_ns_ = std::int64_t{t.tv_sec} * kSecond + t.tv_nsec;
  }
  state::TimeNs NowNs() override { return now_ns_; }
  std::int64_t BootNs() override { return boot_ns_; }
  std::int64_t ThreadCpuNs() override { return cpu_ns_; }
  void Compute(std::int64_t ns) { cpu_ns_ += ns; }
  void Advance(std::int64_t ns) {
    now_ns_ += ns;
    boot_ns_ += ns;
  }

 private:
  state::TimeNs now_ns_ = 1'800'000'000 * kSecond;
  std::int64_t boot_ns_;
  std::int64_t cpu_ns_ = 0;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MANUAL_CLOCK_H_
