// AdamW, and a learning rate that warms up linearly and then falls with the square root of the step. The rate depends on the step
// alone, not on the planned length, so a run that is cut and resumed takes the same path.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_OPTIMIZER_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_OPTIMIZER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace lossgauge::train_text {

struct OptimizerOptions {
  double learning_rate = 0;  // peak
  std::int64_t warm_up_steps = 0;  // linear rise to the peak
  std::int64_t decay_steps = 1;    // this long after it, the rate is peak / sqrt(2)
  double beta1 = 0.9, beta2 = 0.98, epsilon = 1e-8;
  double weight_decay = 0;  // decoupled, times the learning rate
};

// For step 0, 1, ...
double LearningRateAt(const OptimizerOptions& options, std::int64_t step);

// L2 norm, summed in double in order. Not finite if any element is not.
double Norm(std::span<const float> values);
void Scale(std::span<float> values, double factor);

class AdamW {
 public:
  AdamW(const OptimizerOptions& options, std::size_t parameter_count);
  // One update with bias correction for the `updates()`-th time.
  void Update(double learning_rate, std::span<const float> gradients, std::span<float> parameters);

  // For checkpoints.
  std::vector<float>& first_moment() { return first_moment_; }
  std::vector<float>& second_moment() { return second_moment_; }
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  OptimizerOptions options_;
  std::vector<float> first_moment_, second_moment_;
  std::int64_t updates_ = 0;
};

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_OPTIMIZER_H_
