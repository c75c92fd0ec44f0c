// A positive series that must not jump by a factor: gradient norm (condition grad_explosion) and max|z| (condition logit_blowup).
//
// Looks at the logarithm against a robust baseline. High = beyond both the deviations and the factor of the policy.
#ifndef LOSSGAUGE_SERVER_DETECT_FACTOR_WATCH_H_
#define LOSSGAUGE_SERVER_DETECT_FACTOR_WATCH_H_

#include <optional>

#include "server/detect/robust_baseline.h"

namespace lossgauge::detect {

class FactorWatch {
 public:
  struct Result {
    double factor = 1;  // value over its expectation
    bool high = false;
    double expected = 0;
  };
  // value must be finite and > 0.
  Result OnValue(double value, double deviations, double factor, int baseline_steps);
  // The typical value has changed for good, or a new attempt starts from scratch.
  void Clear();

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  RobustBaseline baseline_;
  std::int32_t high_run_ = 0;  // flagged values in a row
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_FACTOR_WATCH_H_
