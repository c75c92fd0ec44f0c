// Faults by their arithmetic; what they do to a job is in train_text_test.cc.
#include "client/cpp/examples/train_text/faults.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace lossgauge::train_text {
namespace {

// The gradient that is of a z-loss with the wrong sign against float64: minus the z-loss's own part, where the call had added it.
TEST(Faults, AZLossOfTheWrongSignPushesWhereTheRightOnePulls) {
  const std::vector<float> logits = {1, 2, 4, 0, 0, 3, 1, 0};  // two rows of three columns and one of padding
  const std::vector<std::int32_t> targets = {2, kIgnoreIndex};
  std::vector<float> gradients(8, 0.5f), log_z(2);
  lg_cross_entropy_args loss;
  lg_cross_entropy_args_init(&loss);
  loss.rows = 2;
  loss.vocab_size = 3;
  loss.targets = targets.data();
  loss.ignore_index = kIgnoreIndex;
  loss.z_loss_weight = 0.25;
  loss.denominator = 8;
  loss.log_z = log_z.data();
  const double sum = std::exp(1) + std::exp(2) + std::exp(4);
  log_z[0] = static_cast<float>(std::log(sum));
  SubtractZLossGradient(loss, logits, 4, gradients.data());
  for (std::size_t i = 0; i < 8; ++i) {
    const double part = i < 3 ? 2 * 0.25 * std::log(sum) * std::exp(logits[i]) / sum / 8 : 0;
    EXPECT_NEAR(gradients[i], 0.5 - 2 * part, 1e-6) << i;
  }
}

}  // namespace
}  // namespace lossgauge::train_text
