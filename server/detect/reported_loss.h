// Is the loss that the trainer logs the loss? If not: what did it log instead?
#ifndef LOSSGAUGE_SERVER_DETECT_REPORTED_LOSS_H_
#define LOSSGAUGE_SERVER_DETECT_REPORTED_LOSS_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "server/detect/accounting.h"
#include "server/detect/state_codec.h"
#include "server/state/joined_step.h"

namespace lossgauge::detect {

// One unit in the last place of a dtype (LG_DTYPE_*) at `value`.
double UlpOf(std::uint64_t dtype, double value);

// Losses of the last steps, for trainers that log an average. Saved are as many as the trainer averages over, at most kMaxSaved; a longer
// interval is not judged after a restart until it has been seen whole again.
class ReportedLossCheck {
 public:
  // nullopt: nothing was reported, it is right, or it cannot be judged (ranks missing, interval not seen whole). Call at every step.
  std::optional<AccountingFinding> OnStep(const state::JoinedStep& joined);
  void OnAttempt() { steps_.clear(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

  // A loss and an objective over the interval, both ways that an average can be meant.
  struct Interval {
    double mean_loss = 0;   // mean of the steps' losses
    double ratio_loss = 0;  // ratio of sums
    std::optional<double> mean_objective;
    std::optional<double> ratio_objective;
  };

 private:
  static constexpr std::size_t kMaxInterval = 1024;
  static constexpr std::size_t kMaxSaved = 100;
  struct Step {
    std::int64_t step = 0;
    double loss = 0;
    double objective = 0;  // NaN: absent
    double tokens = 0;
  };
  std::optional<Interval> Over(std::uint64_t interval, std::int64_t last_step) const;

  std::deque<Step> steps_;
  std::uint32_t interval_ = 0;  // as last reported, at least 2 (the step before is a hypothesis); 0 = nothing was reported yet
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_REPORTED_LOSS_H_
