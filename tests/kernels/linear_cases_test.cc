// Linear cross-entropy: chunks, denominators, padding and upstream gradients. Case numbers are those of the list of public bug reports that the suite
// was built from.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "tests/kernels/check.h"
#include "tests/kernels/linear_backend.h"
#include "tests/kernels/linear_check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr std::int64_t kMasked = -100;

// The logits Z(rows, columns) as a product: hidden states are unit vectors, so grad_weight is the transpose of the logits' gradient.
LinearProblem FromLogits(const Matrix& logits, std::vector<std::int64_t> targets) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  Matrix identity(static_cast<std::size_t>(rows * rows));
  for (std::int64_t i = 0; i < rows; ++i) identity[static_cast<std::size_t>(i * (rows + 1))] = 1;
  return MakeLinearProblem(identity, Transposed(logits, rows, static_cast<std::int64_t>(logits.size()) / rows), std::move(targets));
}
LinearProblem Base() { return FromLogits(Z(8, 1000), Y(8, 1000)); }
LinearProblem BaseWithout(std::initializer_list<std::size_t> masked) {
  LinearProblem problem = Base();
  for (const std::size_t row : masked) problem.loss.targets[row] = kMasked;
  return problem;
}
LinearProblem Head() { return MakeLinearProblem(X(4, 64), W(130, 64), Y(4, 130)); }

// Rows [begin, end) as a call of its own.
LinearProblem Slice(const LinearProblem& whole, std::int64_t begin, std::int64_t end) {
  LinearProblem part = whole;
  part.rows = end - begin;
  part.hidden.assign(whole.hidden.begin() + begin * whole.width, whole.hidden.begin() + end * whole.width);
  part.loss.targets.assign(whole.loss.targets.begin() + begin, whole.loss.targets.begin() + end);
  part.loss.position_base = begin;
  return part;
}

double Sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(LinearCases, B06_EveryTermHasTheSameDenominator) {
  LinearProblem base = Base();
  base.loss.label_smoothing = 0.1;
  base.loss.denominator = 8;
  base.chunk_rows = 3;
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  double loss = 0;
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 8}}) {
    LinearProblem part = Slice(base, begin, end);
    part.loss.telemetry = telemetry.get();
    loss += static_cast<double>(TestedBackend().RunLinear(part).loss);
  }
  ExpectRightNotWrong(loss, 14.721547364707, 16.406679331704);
  const lg_step_record record = telemetry->Publish();
  ExpectRightNotWrong(Value(record.objective_sum) / 8, 14.721547364707, 32.813358663408);
  EXPECT_EQ(record.micro_batches, 2u) << "a call is one micro-batch, however many chunks it has";
}

TEST(LinearCases, B07_TheChunkSizeChangesNothing) {
  LinearProblem problem = BaseWithout({1, 2, 3});
  const LinearOutcome whole = TestedBackend().RunLinear(problem);
  for (const std::int64_t chunk_rows : {1, 3, 4, 8}) {
    SCOPED_TRACE("chunk of " + std::to_string(chunk_rows));
    problem.chunk_rows = chunk_rows;
    const LinearObserved chunked = RunLinearObserved(problem);
    ExpectRightNotWrong(static_cast<double>(chunked.outcome.loss), 14.286202462494, 12.910191484901);
    EXPECT_EQ(chunked.outcome.loss, whole.loss);
    EXPECT_NEAR(Norm(chunked.outcome.grad_weight), Norm(whole.grad_weight), 1e-6 * Norm(whole.grad_weight));
    EXPECT_NEAR(Norm(chunked.outcome.grad_hidden), Norm(whole.grad_hidden), 1e-6 * Norm(whole.grad_hidden));
    EXPECT_EQ(chunked.outcome.plan.chunks, (8 + chunk_rows - 1) / chunk_rows);
    ExpectLinearLikeOracle(problem);
  }
}

TEST(LinearCases, B08_NoRowCountsAndNothingIsNaN) {
  LinearProblem problem = Head();
  problem.bias.assign(130, 0.25);
  problem.loss.targets.assign(4, kMasked);
  for (double& value : problem.hidden) value = NAN;
  const LinearObserved observed = RunLinearObserved(problem);
  ASSERT_EQ(observed.outcome.code, LG_OK) << observed.outcome.message;
  EXPECT_EQ(observed.outcome.loss, 0.0f);
  for (const auto* gradient : {&observed.outcome.grad_hidden, &observed.outcome.grad_weight, &observed.outcome.grad_bias}) {
    for (const double value : *gradient) EXPECT_EQ(value, 0.0);
  }
  EXPECT_EQ(observed.record.tokens, 4u);
  EXPECT_EQ(observed.record.unmasked_tokens, 0u);
  EXPECT_EQ(observed.record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD);
  EXPECT_EQ(Value(observed.record.hidden_grad_sq_sum), 0.0);
  EXPECT_EQ(Value(observed.record.head_grad_sq_sum), 0.0);
}

TEST(LinearCases, B08_WhatIsAddedToStaysAsItWas) {
  LinearProblem problem = Head();
  problem.bias.assign(130, 0.25);
  problem.loss.targets.assign(4, kMasked);
  problem.accumulate = true;
  problem.grad_weight_before = W(130, 64);
  problem.grad_bias_before.assign(130, 3);
  const LinearOutcome outcome = TestedBackend().RunLinear(problem);
  EXPECT_EQ(outcome.grad_weight, problem.grad_weight_before);
  EXPECT_EQ(outcome.grad_bias, problem.grad_bias_before);
}

TEST(LinearCases, B08_ARankWithoutTokensChangesNoMean) {
  LinearProblem base = BaseWithout({0, 1});
  base.loss.denominator = 6;
  const double sum = static_cast<double>(TestedBackend().RunLinear(Slice(base, 0, 2)).loss) +
                     static_cast<double>(TestedBackend().RunLinear(Slice(base, 2, 8)).loss);
  ExpectRightNotWrong(sum, 15.103854827357, 7.551927413678);
}

TEST(LinearCases, NoRowsAtAllClearTheHeadsGradientAndCountNothing) {
  LinearProblem problem;
  problem.width = 8;
  problem.columns = 40;
  problem.weight = W(40, 8);
  problem.bias.assign(40, 1);
  const LinearObserved observed = RunLinearObserved(problem);
  ASSERT_EQ(observed.outcome.code, LG_OK) << observed.outcome.message;
  EXPECT_EQ(observed.outcome.loss, 0.0f);
  EXPECT_EQ(observed.outcome.plan.chunks, 0);
  for (const auto* gradient : {&observed.outcome.grad_weight, &observed.outcome.grad_bias}) {
    for (const double value : *gradient) EXPECT_EQ(value, 0.0);
  }
  EXPECT_EQ(observed.record.tokens, 0u);
  EXPECT_EQ(observed.record.micro_batches, 1u);
}

TEST(LinearCases, B22_TheHeadsGradientIsSummedInFp32) {
  // 1024 chunks that each add bf16(0.01), as a gradient of 1/2 at each of two columns times an upstream of 2 gives.
  LinearProblem problem = MakeLinearProblem(Matrix(1024, 0.01), Matrix(2, 0.0), std::vector<std::int64_t>(1024, 0));
  problem.dtype = problem.head_grad_dtype = LG_BF16;
  problem.logits_dtype = HasLogitsOfAnotherType() ? LG_FP32 : LG_BF16;
  problem.loss.reduction = LG_SUM;
  problem.loss.upstream = {2};
  problem.chunk_rows = 1;
  const LinearOutcome outcome = TestedBackend().RunLinear(problem);
  ASSERT_EQ(outcome.code, LG_OK) << outcome.message;
  ExpectRightNotWrong(outcome.grad_weight[1], 10.25, 4.0);
  EXPECT_EQ(outcome.grad_weight[0], -outcome.grad_weight[1]);
}

TEST(LinearCases, B22_ManyChunksGiveTheGradientOfOne) {
  LinearProblem problem = MakeLinearProblem(X(64, 32), W(300, 32), Y(64, 300));
  problem.loss.reduction = LG_SUM;
  const LinearOutcome one = TestedBackend().RunLinear(problem);
  problem.chunk_rows = 1;
  const LinearOutcome many = TestedBackend().RunLinear(problem);
  ASSERT_EQ(many.plan.chunks, 64);
  for (std::size_t i = 0; i < one.grad_weight.size(); ++i) EXPECT_NEAR(one.grad_weight[i], many.grad_weight[i], 2e-6);
  EXPECT_EQ(one.loss, many.loss);
}

TEST(LinearCases, B24_TheZLossAndSmoothingReachEveryGradient) {
  const struct {
    double smoothing, z_loss, loss, norm;
  } cases[] = {{0, 1e-4, 14.220923263811, 0.449024762068}, {0.1, 0, 14.001908471751, 0.404492046643}, {0.1, 1e-4, 14.016685763811, 0.404501661651}};
  for (const auto& each : cases) {
    LinearProblem problem = BaseWithout({1, 4, 5});
    problem.chunk_rows = 2;
    problem.loss.label_smoothing = each.smoothing;
    problem.loss.z_loss_weight = each.z_loss;
    const LinearObserved observed = RunLinearObserved(problem);
    ExpectRightNotWrong(static_cast<double>(observed.outcome.loss), each.loss, 14.206145971751);
    ExpectRightNotWrong(Norm(observed.outcome.grad_weight), each.norm, 0.449015993393);
    double row = 0;
    for (std::size_t j = 0; j < 1000; ++j) row += observed.outcome.grad_weight[j * 8];
    EXPECT_NEAR(row, each.z_loss * 4.84674, 5e-7) << "sum of the gradient of the first row's logits";
    EXPECT_NEAR(Value(observed.record.z_loss_sum) / 5, each.z_loss * 147.77292060, 2e-8);
  }
}

TEST(LinearCases, B24_WeightZeroIsNoZLoss) {
  LinearProblem problem = BaseWithout({1, 4, 5});
  const LinearOutcome without = TestedBackend().RunLinear(problem);
  for (std::size_t k = 0; k < 8; ++k) problem.hidden[8 + k] = HUGE_VAL;  // a masked row
  problem.loss.z_loss_weight = 0;
  const LinearOutcome with = TestedBackend().RunLinear(problem);
  EXPECT_EQ(with.grad_weight_bytes, without.grad_weight_bytes);
  EXPECT_EQ(with.grad_hidden_bytes, without.grad_hidden_bytes);
  EXPECT_EQ(with.losses, without.losses);
}

TEST(LinearCases, B25_TinyGradientsAreNotLeftOut) {
  constexpr std::int64_t kColumns = 8192;
  LinearProblem problem = FromLogits(Matrix(2 * kColumns, 0.0), {7, 38});
  problem.bias.assign(kColumns, 0.0);
  const LinearOutcome outcome = TestedBackend().RunLinear(problem);
  EXPECT_NEAR(static_cast<double>(outcome.loss), 9.010913347279, 9e-6);
  ExpectRightNotWrong(Norm(outcome.grad_weight), 0.707063621497, 0.5 * std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(outcome.grad_weight[2 * 4000], 6.103515625e-05, 1e-10);
  EXPECT_NEAR(outcome.grad_weight[2 * 7], -0.49993896484375, 5e-7);
  EXPECT_NEAR(outcome.grad_bias[4000], 2 * 6.103515625e-05, 2e-10);
  EXPECT_NEAR(outcome.grad_bias[38], -0.49993896484375 + 6.103515625e-05, 5e-7);
  LinearProblem head = MakeLinearProblem(X(2, 64), Matrix(64 * kColumns, 0.0), {7, 38});
  head.wants_grad_hidden = false;
  ExpectLinearLikeOracle(head);
}

TEST(LinearCases, B28_NoColumnsBeyondTheVocabulary) {
  LinearProblem problem = Head();
  for (const std::int64_t columns : {130, 131, 256, 300}) {
    SCOPED_TRACE("head of " + std::to_string(columns));
    problem.columns = columns;
    problem.loss.vocab_size = 130;
    problem.weight.resize(static_cast<std::size_t>(columns * 64), NAN);
    const LinearOutcome outcome = TestedBackend().RunLinear(problem);
    ASSERT_EQ(outcome.code, LG_OK) << outcome.message;
    ExpectRightNotWrong(static_cast<double>(outcome.loss), 7.855416162825, 8.277512915703);
    const double losses[] = {7.103026115, 7.280018012, 8.538923830, 8.499696695}, log_z[] = {5.397947990, 5.432361762, 5.562361330, 5.534852945};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(static_cast<double>(outcome.losses[i]), losses[i], 1e-6 * losses[i]);
      EXPECT_NEAR(static_cast<double>(outcome.log_z[i]), log_z[i], 1e-6 * log_z[i]);
    }
    EXPECT_NEAR(Norm(outcome.grad_hidden), 1.614871478874, 2e-6);
    EXPECT_NEAR(Norm(outcome.grad_weight), 1.202202000254, 2e-6);
    EXPECT_NEAR(outcome.grad_hidden[0], -0.068439342321, 1e-7);
    EXPECT_NEAR(outcome.grad_weight[7 * 64], 0.085265177326, 1e-7);
    for (std::size_t i = 130 * 64; i < outcome.grad_weight.size(); ++i) EXPECT_EQ(outcome.grad_weight[i], 0.0);
  }
}

TEST(LinearCases, B28_ABiasIsAddedOnce) {
  LinearProblem problem = Head();
  problem.bias.assign(130, -20.0);
  ExpectRightNotWrong(static_cast<double>(TestedBackend().RunLinear(problem).loss), 7.855416162825, 27.209817067142);
  for (std::int64_t v = 0; v < 130; ++v) problem.bias[static_cast<std::size_t>(v)] = static_cast<double>((17 * v) % 11 - 5) / 4;
  for (const std::int64_t chunk_rows : {0, 1, 3}) {
    problem.chunk_rows = chunk_rows;
    const LinearOutcome outcome = TestedBackend().RunLinear(problem);
    ExpectRightNotWrong(static_cast<double>(outcome.loss), 7.524396386949, 7.628426605628);
    EXPECT_NEAR(Norm(outcome.grad_bias), 0.489014130975, 1e-6);
    EXPECT_NEAR(outcome.grad_bias[7], -0.229155106550, 1e-6);
    EXPECT_NEAR(Sum(outcome.grad_bias), 0, 1e-6);
  }
}

TEST(LinearCases, B28_ABiasIn16BitsIsWithinTheirRounding) {
  LinearProblem problem = Head();
  for (std::int64_t v = 0; v < 130; ++v) problem.bias.push_back(static_cast<double>((17 * v) % 11 - 5) / 4);
  for (const int dtype : {LG_BF16, LG_FP16}) {
    problem.dtype = problem.logits_dtype = dtype;
    ExpectRightNotWrong(static_cast<double>(TestedBackend().RunLinear(problem).loss), 7.524396386949, 7.628426605628, 2e-3);
  }
}

TEST(LinearCases, B28_TheDtypeOfLogitsIsAsAskedFor) {
  LinearProblem problem = Head();
  problem.dtype = LG_BF16;
  problem.logits_dtype = LG_FP32;
  if (HasLogitsOfAnotherType()) ExpectRightNotWrong(static_cast<double>(TestedBackend().RunLinear(problem).loss), 7.855416162825, 7.853003650043);
  problem.logits_dtype = LG_BF16;
  ExpectRightNotWrong(static_cast<double>(TestedBackend().RunLinear(problem).loss), 7.853003650043, 7.855416162825);
}

TEST(LinearCases, B38_EachTokenHasItsOwnUpstream) {
  LinearProblem problem = Head();
  problem.loss.reduction = LG_NONE;
  problem.loss.upstream = {1, 0, 2, -1};
  for (const std::int64_t chunk_rows : {0, 1, 3}) {
    problem.chunk_rows = chunk_rows;
    const LinearObserved observed = RunLinearObserved(problem);
    ExpectRightNotWrong(Norm(observed.outcome.grad_weight), 5.906343411112, 4.808808001016);
    ExpectRightNotWrong(observed.outcome.grad_weight[7 * 64], 0.339043465630, 0.341060709304);
    EXPECT_EQ(observed.record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), 0u) << "an upstream of 0 cannot be undone";
  }
}

TEST(LinearCases, B48_AllColumnsReachTheHiddenGradientAndNothingBesideIt) {
  LinearProblem problem = Head();
  problem.grad_hidden_stride = 67;
  problem.grad_weight_stride = 70;
  problem.chunk_rows = 3;
  const LinearOutcome outcome = TestedBackend().RunLinear(problem);
  EXPECT_NEAR(Norm(outcome.grad_hidden), 1.614871478874, 2e-6);
  EXPECT_NEAR(Norm(outcome.grad_weight), 1.202202000254, 2e-6);
  EXPECT_TRUE(outcome.gaps_unharmed);
}

}  // namespace
}  // namespace lossgauge::test
