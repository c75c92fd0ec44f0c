// How many steps lie between two that are seen: 1 for a job's own records, 10, 50 or 500 for a log. Durations of detectors count points; what
// is physical (a gradient norm that leads the loss by a few steps) counts steps.
#ifndef LOSSGAUGE_SERVER_DETECT_STEP_INTERVAL_H_
#define LOSSGAUGE_SERVER_DETECT_STEP_INTERVAL_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "server/detect/state_codec.h"

namespace lossgauge::detect {

class StepInterval {
 public:
  // Steps rise within an attempt. Returns the median of the last five gaps, so that a lost record makes no sparse run; 1 while nothing is known.
  std::int64_t OnStep(std::int64_t step) {
    if (last_step_ >= 0 && step > last_step_) {
      gaps_[static_cast<std::size_t>(count_ % kGaps)] = step - last_step_;
      ++count_;
    }
    last_step_ = step;
    const int size = static_cast<int>(std::min<std::int64_t>(count_, kGaps));
    if (size == 0) return 1;
    std::array<std::int64_t, kGaps> sorted = gaps_;
    std::nth_element(sorted.begin(), sorted.begin() + (size - 1) / 2, sorted.begin() + size);
    return sorted[static_cast<std::size_t>((size - 1) / 2)];
  }
  void OnAttempt() { last_step_ = -1; }

  void Save(StateWriter& out) const {
    for (const std::int64_t gap : gaps_) out.Put(gap);
    out.Put(count_);
    out.Put(last_step_);
  }
  void Restore(StateReader& in) {
    for (std::int64_t& gap : gaps_) gap = in.GetStep();
    count_ = in.GetStep();
    last_step_ = in.GetStep();
  }

 private:
  static constexpr std::int64_t kGaps = 5;
  std::array<std::int64_t, kGaps> gaps_{1, 1, 1, 1, 1};
  std::int64_t count_ = 0;
  std::int64_t last_step_ = -1;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STEP_INTERVAL_H_
