#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/cpp/examples/train_text/matmul.h"
#include "client/cpp/examples/train_text/model.h"
#include "client/cpp/examples/train_text/optimizer.h"
#include "client/cpp/examples/train_text/random.h"
#include "lossgauge/gauge.hpp"

namespace lossgauge::train_text {
namespace {

std::vector<float> Randoms(std::size_t count, std::uint64_t stream) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(RandomNormal(7, stream, i));
  return values;
}

TEST(Multiply, EqualsThreeLoopsForEveryShapeOfTile) {
  ThreadPool pool(1);
  for (const std::int64_t m : {1, 5, 6, 7, 13}) {
    for (const std::int64_t n : {1, 15, 16, 33}) {
      for (const std::int64_t k : {1, 255, 256, 300}) {
        const std::vector<float> a = Randoms(static_cast<std::size_t>(m * k), 1), b = Randoms(static_cast<std::size_t>(k * n), 2);
        const std::vector<float> before = Randoms(static_cast<std::size_t>(m * n), 3);
        for (const bool transposed : {false, true}) {
          for (const bool accumulate : {false, true}) {
            std::vector<float> c = before;
            const ConstMatrix left{a.data(), transposed ? 1 : k, transposed ? m : 1};
            Multiply(pool, left, b.data(), c.data(), m, n, k, accumulate);
            for (std::int64_t i = 0; i < m; ++i) {
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = accumulate ? before[static_cast<std::size_t>(i * n + j)] : 0;
                for (std::int64_t p = 0; p < k; ++p) {
                  sum += static_cast<double>(left.data[i * left.row_stride + p * left.column_stride]) * b[static_cast<std::size_t>(p * n + j)];
                }
                ASSERT_NEAR(c[static_cast<std::size_t>(i * n + j)], sum, 1e-4) << m << " x " << n << " x " << k << " at " << i << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

struct Problem {
  ModelShape shape;
  std::vector<std::int32_t> context, targets;
};

Problem SmallProblem(Activation activation) {
  Problem p{{19, 3, 4, 5, activation}, {}, {}};
  for (std::uint64_t i = 0; i < 12; ++i) {
    for (std::uint64_t j = 0; j < 3; ++j) p.context.push_back(static_cast<std::int32_t>(RandomBits(1, j, i) % 19));
    p.targets.push_back(i % 5 == 4 ? -100 : static_cast<std::int32_t>(RandomBits(2, 0, i) % 19));
  }
  return p;
}

// The summed objective, with smoothing and z-loss; optionally its gradient into the model.
double Objective(ThreadPool& pool, const Problem& p, Model* model, bool backward) {
  float* logits = model->Forward(pool, p.context);
  const auto rows = static_cast<std::int64_t>(p.targets.size());
  std::vector<float> losses(p.targets.size());
  CrossEntropy loss(logits, rows, p.shape.columns(), p.targets.data());
  loss.args.vocab_size = p.shape.vocab_size;
  loss.args.reduction = LG_SUM;
  loss.args.label_smoothing = 0.1;
  loss.args.z_loss_weight = 0.01;
  loss.args.losses = losses.data();
  if (backward) loss.args.grad_logits = logits;
  loss.Run().OrThrow();
  if (backward) model->Backward(pool, p.context, logits);
  double sum = 0;
  for (const float value : losses) sum += value;
  return sum;
}

class ModelGradient : public testing::TestWithParam<Activation> {};

TEST_P(ModelGradient, EqualsFiniteDifferencesForEveryParameter) {
  ThreadPool pool(1);
  const Problem p = SmallProblem(GetParam());
  Model model(p.shape, 3);
  Objective(pool, p, &model, true);
  const std::vector<float> gradients = model.gradients();
  constexpr float kStep = 1.0f / 128;
  double largest = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const float kept = model.parameters()[i];
    model.parameters()[i] = kept + kStep;
    const double above = Objective(pool, p, &model, false);
    model.parameters()[i] = kept - kStep;
    const double below = Objective(pool, p, &model, false);
    model.parameters()[i] = kept;
    ASSERT_NEAR(gradients[i], (above - below) / (2 * kStep), 2e-3) << "parameter " << i;
    largest = std::max(largest, std::fabs(static_cast<double>(gradients[i])));
  }
  EXPECT_GT(largest, 0.1) << "a gradient of zeros would have passed";
}

INSTANTIATE_TEST_SUITE_P(Activations, ModelGradient, testing::Values(Activation::kGelu, Activation::kTanh));

TEST(Model, GivesTheSameBitsWithAnyNumberOfThreads) {
  ModelShape shape{257, 4, 8, 32, Activation::kGelu};
  std::vector<std::int32_t> context;
  for (std::uint64_t i = 0; i < 700 * 4; ++i) context.push_back(static_cast<std::int32_t>(RandomBits(1, 9, i) % 257));
  const std::vector<float> gradient = Randoms(static_cast<std::size_t>(700 * shape.columns()), 5);
  std::vector<float> expected_logits, expected_gradients;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Model model(shape, 1);
    const float* logits = model.Forward(pool, context);
    const std::vector<float> seen(logits, logits + 700 * shape.columns());
    model.Backward(pool, context, gradient.data());
    if (threads == 1) {
      expected_logits = seen;
      expected_gradients = model.gradients();
    }
    EXPECT_EQ(seen, expected_logits) << threads << " threads";
    EXPECT_EQ(model.gradients(), expected_gradients) << threads << " threads";
  }
}

TEST(AdamW, TakesTheStepsOfItsDefinition) {
  OptimizerOptions options;
  options.weight_decay = 0.1;
  AdamW optimizer(options, 1);
  std::vector<float> parameter = {1.0f};
  double m = 0, v = 0, expected = 1;
  for (int t = 1; t <= 5; ++t) {
    const double g = t % 2 == 0 ? -0.5 : 2.0, rate = 0.01 * t;
    optimizer.Update(rate, std::vector<float>{static_cast<float>(g)}, parameter);
    m = options.beta1 * m + (1 - options.beta1) * g;
    v = options.beta2 * v + (1 - options.beta2) * g * g;
    expected = expected * (1 - rate * options.weight_decay) -
               rate * (m / (1 - std::pow(options.beta1, t))) / (std::sqrt(v / (1 - std::pow(options.beta2, t))) + options.epsilon);
    EXPECT_NEAR(parameter[0], expected, 1e-6) << "update " << t;
  }
}

TEST(LearningRate, RisesLinearlyAndFallsWithTheRootOfTheStep) {
  OptimizerOptions options;
  options.learning_rate = 0.01;
  options.warm_up_steps = 100;
  options.decay_steps = 400;
  EXPECT_DOUBLE_EQ(LearningRateAt(options, 0), 0.0001);
  EXPECT_DOUBLE_EQ(LearningRateAt(options, 49), 0.005);
  EXPECT_DOUBLE_EQ(LearningRateAt(options, 99), 0.01);
  EXPECT_DOUBLE_EQ(LearningRateAt(options, 499), 0.01 / std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(LearningRateAt(options, 1299), 0.005);
}

TEST(Norm, IsEuclideanAndShowsANan) {
  EXPECT_DOUBLE_EQ(Norm(std::vector<float>{3, 0, 0, 0, 4}), 5);
  EXPECT_TRUE(std::isnan(Norm(std::vector<float>{3, std::nanf(""), 4})));
}

}  // namespace
}  // namespace lossgauge::train_text
