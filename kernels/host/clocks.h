// The two clocks of a record. Both are read through the vDSO: no system call.
#ifndef LOSSGAUGE_KERNELS_HOST_CLOCKS_H_
#define LOSSGAUGE_KERNELS_HOST_CLOCKS_H_

#include <time.h>

#include <cstdint>

namespace lossgauge {

inline std::int64_t ClockNs(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// Goes on while the machine sleeps and never jumps: ages and liveness.
inline std::int64_t BootNs() noexcept { return ClockNs(CLOCK_BOOTTIME); }
// May jump: shown to people.
inline std::int64_t WallNs() noexcept { return ClockNs(CLOCK_REALTIME); }

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_CLOCKS_H_
