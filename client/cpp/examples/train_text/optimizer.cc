#include "client/cpp/examples/train_text/optimizer.h"

#include <algorithm>
#include <cmath>

namespace lossgauge::train_text {

double LearningRateAt(const OptimizerOptions& options, std::int64_t step) {
  const double done = static_cast<double>(step + 1), warm_up = static_cast<double>(options.warm_up_steps);
  if (done < warm_up) return options.learning_rate * done / warm_up;
  return options.learning_rate / std::sqrt(1 + (done - warm_up) / static_cast<double>(options.decay_steps));
}

double Norm(std::span<const float> values) {
  double sum[4] = {};  // four chains, so that the additions overlap; the order is still fixed
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sum[j] += static_cast<double>(values[i + j]) * values[i + j];
  }
  for (; i < values.size(); ++i) sum[0] += static_cast<double>(values[i]) * values[i];
  return std::sqrt(sum[0] + sum[1] + sum[2] + sum[3]);
}

void Scale(std::span<float> values, double factor) {
  const float f = static_cast<float>(factor);
  for (float& value : values) value *= f;
}

AdamW::AdamW(const OptimizerOptions& options, std::size_t parameter_count)
    : options_(options), first_moment_(parameter_count), second_moment_(parameter_count) {}

void AdamW::Update(double learning_rate, std::span<const float> gradients, std::span<float> parameters) {
  ++updates_;
  const float b1 = static_cast<float>(options_.beta1), b2 = static_cast<float>(options_.beta2);
  const double correction1 = 1 - std::pow(options_.beta1, static_cast<double>(updates_));
  const double correction2 = 1 - std::pow(options_.beta2, static_cast<double>(updates_));
  const float rate = static_cast<float>(learning_rate / correction1);
  const float root = static_cast<float>(1 / std::sqrt(correction2));
  const float epsilon = static_cast<float>(options_.epsilon);
  const float keep = static_cast<float>(1 - learning_rate * options_.weight_decay);
  float* m = first_moment_.data();
  float* v = second_moment_.data();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const float g = gradients[i];
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    parameters[i] = keep * parameters[i] - rate * m[i] / (std::sqrt(v[i]) * root + epsilon);
  }
}

}  // namespace lossgauge::train_text
