// What every reader of logs promises of what it hands over; a fuzzer's process aborts where one does not hold.
#ifndef LOSSGAUGE_TESTS_FUZZ_CHECKING_SINK_H_
#define LOSSGAUGE_TESTS_FUZZ_CHECKING_SINK_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "server/replay/read_log.h"

namespace lossgauge::replay {

inline void Check(bool promise) {
  if (!promise) std::abort();
}

class CheckingSink final : public LogSink {
 public:
  void OnPoint(const LogPoint& point) override {
    Check(point.index == points_);
    Check(point.step >= 0 && point.interval_steps >= 1 && point.attempt >= 1 && point.line >= 1);
    Check(points_ == 0 || point.attempt > last_.attempt || (point.attempt == last_.attempt && point.step > last_.step));
    last_ = point;
    ++points_;
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { Check(std::isfinite(evaluation.loss_nats)); }
  std::uint64_t points() const { return points_; }

 private:
  LogPoint last_;
  std::uint64_t points_ = 0;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_TESTS_FUZZ_CHECKING_SINK_H_
