// Hysteresis of an exact condition: open at the first bad step, closed after N clean ones, with the bad ones among the last 32 steps.
#ifndef LOSSGAUGE_SERVER_DETECT_STREAK_H_
#define LOSSGAUGE_SERVER_DETECT_STREAK_H_

#include <bit>
#include <cstdint>

#include "server/detect/state_codec.h"

namespace lossgauge::detect {

struct Streak {
  std::uint32_t history = 0;  // newest in bit 0; 1 = bad
  std::int32_t clean = 0;
  std::int64_t onset_step = 0;
  std::int64_t last_bad_step = 0;
  std::int64_t bad_steps = 0;

  void Push(bool bad, std::int64_t step) {
    history = (history << 1) | (bad ? 1u : 0u);
    if (bad) {
      if (bad_steps == 0) onset_step = step;
      ++bad_steps;
      last_bad_step = step;
      clean = 0;
    } else if (bad_steps > 0) {
      ++clean;
    }
  }
  int BadOfLast(int steps) const { return std::popcount(steps >= 32 ? history : history & ((1u << steps) - 1)); }
  void Save(StateWriter& out) const {
    out.Put(history);
    out.Put(clean);
    out.Put(onset_step);
    out.Put(last_bad_step);
    out.Put(bad_steps);
  }
  void Restore(StateReader& in) {
    history = in.Get<std::uint32_t>();
    clean = in.GetIn<std::int32_t>(0, 1 << 30);
    onset_step = in.GetStep();
    last_bad_step = in.GetStep();
    bad_steps = in.GetStep();
  }
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STREAK_H_
