// How calls of linear cross-entropy fit together: two passes, micro-batches that add up, repeats, budgets, and what the gradient signals are of.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/kernels/chance.h"
#include "tests/kernels/check.h"
#include "tests/kernels/linear_backend.h"
#include "tests/kernels/linear_check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

LinearProblem Head(std::int64_t rows = 40) {
  LinearProblem problem = MakeLinearProblem(X(rows, 48), W(700, 48), Y(rows, 700));
  problem.bias.assign(700, 0.125);
  for (std::size_t i = 0; i < problem.loss.targets.size(); i += 5) problem.loss.targets[i] = -100;
  return problem;
}

LinearProblem Rows(const LinearProblem& whole, std::int64_t begin, std::int64_t end) {
  LinearProblem part = whole;
  part.rows = end - begin;
  part.hidden.assign(whole.hidden.begin() + begin * whole.width, whole.hidden.begin() + end * whole.width);
  part.loss.targets.assign(whole.loss.targets.begin() + begin, whole.loss.targets.begin() + end);
  part.loss.position_base = begin;
  return part;
}

void ExpectSameGradients(const LinearOutcome& a, const LinearOutcome& b) {
  EXPECT_EQ(a.grad_hidden_bytes, b.grad_hidden_bytes);
  EXPECT_EQ(a.grad_weight_bytes, b.grad_weight_bytes);
  EXPECT_EQ(a.grad_bias_bytes, b.grad_bias_bytes);
}

TEST(LinearCalls, ASecondPassGivesTheGradientsOfOne) {
  for (const int dtype : {LG_FP32, LG_BF16}) {
    LinearProblem problem = Head();
    problem.dtype = dtype;
    problem.chunk_rows = 7;
    problem.loss.upstream = {-2.5};
    const LinearOutcome at_once = TestedBackend().RunLinear(problem);
    const auto telemetry = TestedBackend().OpenTelemetry({700, {}});
    problem.loss.telemetry = telemetry.get();
    LinearProblem forward = problem;
    forward.wants_grad_hidden = forward.wants_grad_weight = forward.wants_grad_bias = false;
    const LinearOutcome first = TestedBackend().RunLinear(forward);
    EXPECT_EQ(first.losses, at_once.losses);
    EXPECT_EQ(first.loss, at_once.loss);
    LinearProblem backward = problem;
    backward.loss.call = Problem::Call::kBackward;
    const LinearOutcome second = TestedBackend().RunLinear(backward);
    ExpectSameGradients(second, at_once);
    EXPECT_TRUE(std::isnan(second.loss)) << "the second pass wrote a loss";
    for (const float loss : second.losses) EXPECT_TRUE(std::isnan(loss)) << "the second pass wrote losses";
    const lg_step_record record = telemetry->Publish();
    EXPECT_EQ(record.micro_batches, 1u) << "the second pass was counted";
    EXPECT_EQ(record.tokens, 40u);
    EXPECT_EQ(record.present & (LG_HAS_LOGIT_GRAD | LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), 0u) << "no gradient was seen by the gauge";
  }
}

TEST(LinearCalls, LossesAreThoseOfExistingLogits) {
  LinearProblem problem = Head();
  problem.logits_dtype = LG_FP32;
  problem.chunk_rows = 9;
  const LinearOutcome linear = TestedBackend().RunLinear(problem);
  const Outcome whole = TestedBackend().Run(AsProblem(problem));
  for (std::size_t i = 0; i < whole.losses.size(); ++i) {
    EXPECT_NEAR(linear.losses[i], whole.losses[i], 1e-6 * static_cast<double>(whole.losses[i]));
    EXPECT_NEAR(linear.log_z[i], whole.log_z[i], 1e-6 * static_cast<double>(whole.log_z[i]));
  }
  if (!TestedBackend().HasSameBitsForAnyLayout()) return;
  EXPECT_EQ(linear.losses, whole.losses);
  EXPECT_EQ(linear.log_z, whole.log_z);
  EXPECT_EQ(linear.loss, whole.loss);
}

TEST(LinearCalls, TheSameCallGivesTheSameBitsWhereverItsWorkspaceIs) {
  LinearProblem problem = Head();
  problem.dtype = problem.head_grad_dtype = LG_BF16;
  problem.chunk_rows = 6;
  const LinearOutcome own = TestedBackend().RunLinear(problem);
  problem.gives_workspace = true;
  const LinearOutcome given = TestedBackend().RunLinear(problem);
  ExpectSameGradients(own, given);
  EXPECT_EQ(own.losses, given.losses);
  EXPECT_EQ(own.loss, given.loss);
}

TEST(LinearCalls, MicroBatchesAddToTheHeadsGradientAndToItsSquare) {
  LinearProblem whole = Head();
  whole.loss.denominator = 32;
  whole.head_grad_signal = true;
  const LinearObserved once = RunLinearObserved(whole);
  const auto telemetry = TestedBackend().OpenTelemetry({700, {}});
  std::vector<double> weight, bias;
  for (const auto& [begin, end] : {std::pair{0, 13}, {13, 14}, {14, 40}}) {
    LinearProblem part = Rows(whole, begin, end);
    part.chunk_rows = 4;
    part.loss.telemetry = telemetry.get();
    part.accumulate = begin != 0;
    part.grad_weight_before = weight;
    part.grad_bias_before = bias;
    const LinearOutcome outcome = TestedBackend().RunLinear(part);
    ASSERT_EQ(outcome.code, LG_OK) << outcome.message;
    weight = outcome.grad_weight;
    bias = outcome.grad_bias;
  }
  const lg_step_record record = telemetry->Publish();
  for (std::size_t i = 0; i < weight.size(); ++i) EXPECT_NEAR(weight[i], once.outcome.grad_weight[i], 1e-7);
  for (std::size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(bias[i], once.outcome.grad_bias[i], 1e-7);
  EXPECT_EQ(record.micro_batches, 3u);
  ASSERT_NE(record.present & LG_HAS_HEAD_GRAD, 0u);
  const double norm = Norm(weight);
  EXPECT_NEAR(std::sqrt(Value(record.head_grad_sq_sum)) / 32, norm, 2e-6 * norm);
  EXPECT_NEAR(Value(record.head_grad_sq_sum), Value(once.record.head_grad_sq_sum), 4e-6 * Value(once.record.head_grad_sq_sum));
  EXPECT_NEAR(Value(record.hidden_grad_sq_sum), Value(once.record.hidden_grad_sq_sum), 4e-6 * Value(once.record.hidden_grad_sq_sum));
}

TEST(LinearCalls, GradientSignalsAreAbsentWhereTheyCannotBeTold) {
  LinearProblem problem = Head();
  problem.loss.upstream = {0};
  EXPECT_EQ(RunLinearObserved(problem).record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), 0u) << "an upstream of 0";
  problem.loss.upstream = std::vector<float>(40, 2);
  EXPECT_EQ(RunLinearObserved(problem).record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), LG_HAS_HIDDEN_GRAD) << "an upstream per token";
  problem.loss.upstream.clear();
  problem.hidden[48 * 3] = NAN;
  EXPECT_EQ(RunLinearObserved(problem).record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), LG_HAS_HIDDEN_GRAD) << "a row that is not finite";
}

TEST(LinearCalls, ABudgetIsKeptAndChangesNoResult) {
  LinearProblem problem = Head();
  problem.dtype = LG_BF16;
  problem.chunk_rows = 3;
  const std::int64_t bytes_of_three = TestedBackend().RunLinear(problem).plan.workspace_bytes;
  problem.chunk_rows = 1;
  const std::int64_t bytes_of_one = TestedBackend().RunLinear(problem).plan.workspace_bytes;
  ASSERT_LT(bytes_of_one, bytes_of_three);
  problem.chunk_rows = 0;
  problem.gives_workspace = true;
  for (const std::int64_t budget : {bytes_of_one, bytes_of_three, 10 * bytes_of_three}) {
    problem.memory_budget = budget;
    const LinearOutcome outcome = TestedBackend().RunLinear(problem);
    EXPECT_LE(outcome.plan.workspace_bytes, budget);
    EXPECT_GE(outcome.plan.chunks * outcome.plan.chunk_rows, 40);
    ExpectLinearLikeOracle(problem);
  }
  problem.memory_budget = bytes_of_one - 1;
  const LinearOutcome refused = TestedBackend().RunLinear(problem);
  EXPECT_EQ(refused.code, LG_INVALID_ARGUMENT);
  EXPECT_NE(refused.message.find("memory_budget: expected at least " + std::to_string(bytes_of_one)), std::string::npos) << refused.message;
  for (const unsigned char byte : refused.grad_hidden_bytes) ASSERT_EQ(byte, 0xff) << "written before it was refused";
}

TEST(LinearCalls, AToldNumberOfUnmaskedRowsChangesNoResult) {
  const struct {
    std::int64_t rows, told, chunk_rows, chunks;  // a fifth of the rows is masked
  } cases[] = {{40, 32, 0, 1},   {40, 32, 1, 32},   {40, 32, 7, 5},      {40, 35, 7, 5},     {40, 40, 7, 6},
               {40, 999, 7, 6},  {40, 32, 32, 1},   {200, 160, 100, 2},  {200, 165, 160, 2}};  // the last chunk of a device has 64 rows of room there
  for (const auto& each : cases) {
    for (const int dtype : {LG_FP32, LG_BF16}) {
      SCOPED_TRACE(testing::Message() << each.told << " of " << each.rows << " rows, chunks of " << each.chunk_rows << ", dtype " << dtype);
      LinearProblem problem = Head(each.rows);
      problem.dtype = problem.head_grad_dtype = dtype;
      problem.chunk_rows = each.chunk_rows;
      problem.most_unmasked_rows = each.told;
      problem.gives_workspace = true;
      ExpectLinearLikeOracle(problem);
      if (!TestedBackend().IsDevice()) continue;  // it counts for itself
      EXPECT_EQ(TestedBackend().RunLinear(problem).plan.chunks, each.chunks);
    }
  }
}

TEST(LinearCalls, ToldThatNoRowCountsACallWritesZeros) {
  LinearProblem problem = Head();
  problem.loss.targets.assign(40, -100);
  problem.hidden.assign(40 * 48, NAN);
  problem.most_unmasked_rows = 0;
  const LinearObserved observed = RunLinearObserved(problem);
  ASSERT_EQ(observed.outcome.code, LG_OK) << observed.outcome.message;
  EXPECT_EQ(observed.outcome.loss, 0.0f);
  for (const auto* values : {&observed.outcome.grad_hidden, &observed.outcome.grad_weight, &observed.outcome.grad_bias}) {
    for (const double value : *values) ASSERT_EQ(value, 0.0);
  }
  for (const float loss : observed.outcome.losses) EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(observed.record.tokens, 40u);
  EXPECT_EQ(observed.record.unmasked_tokens, 0u);
  EXPECT_EQ(observed.record.nonfinite_rows, 0u);
  EXPECT_EQ(observed.record.micro_batches, 1u);
}

// Of 40 rows 32 are unmasked.
TEST(LinearCalls, RowsBeyondTheToldNumberShow) {
  for (const std::int64_t told : {0, 1, 13, 31}) {
    for (const std::int64_t chunk_rows : {0, 4, 10}) {
      SCOPED_TRACE(testing::Message() << "told " << told << ", chunks of " << chunk_rows);
      LinearProblem problem = Head();
      problem.chunk_rows = chunk_rows;
      problem.most_unmasked_rows = told;
      problem.loss.position_base = 500;
      if (!TestedBackend().IsDevice()) {
        ExpectLinearLikeOracle(problem);  // it counts for itself
        continue;
      }
      const LinearObserved all = RunLinearObserved(problem);
      // The same call in which the rows without room are masked.
      LinearProblem room = problem;
      room.loss.denominator = 32;
      std::int64_t unmasked = 0, first_without_room = -1;
      for (std::size_t row = 0; row < 40; ++row) {
        std::int64_t& target = room.loss.targets[row];
        if (target == -100 || ++unmasked <= told) continue;
        if (first_without_room < 0) first_without_room = static_cast<std::int64_t>(row);
        target = -100;
      }
      ExpectLinearLikeOracle(room);
      const LinearObserved part = RunLinearObserved(room);
      ASSERT_EQ(all.outcome.code, LG_OK) << all.outcome.message;
      EXPECT_TRUE(std::isnan(all.outcome.loss));
      EXPECT_EQ(all.outcome.grad_weight_bytes, part.outcome.grad_weight_bytes);
      EXPECT_EQ(all.outcome.grad_bias_bytes, part.outcome.grad_bias_bytes);
      for (std::size_t row = 0; row < 40; ++row) {
        const bool has_room = problem.loss.targets[row] == room.loss.targets[row];
        const auto expect = [&](double got, double right) {
          EXPECT_TRUE(has_room ? got == right : std::isnan(got)) << "row " << row << ": " << got << ", with room " << right;
        };
        expect(all.outcome.losses[row], part.outcome.losses[row]);
        expect(all.outcome.log_z[row], part.outcome.log_z[row]);
        for (std::size_t k = 48 * row; k < 48 * (row + 1); ++k) expect(all.outcome.grad_hidden[k], part.outcome.grad_hidden[k]);
      }
      problem.most_unmasked_rows = -1;
      const lg_step_record right = RunLinearObserved(problem).record;
      EXPECT_EQ(all.record.tokens, right.tokens);
      EXPECT_EQ(all.record.unmasked_tokens, right.unmasked_tokens);
      EXPECT_EQ(all.record.mask_fingerprint, right.mask_fingerprint);
      EXPECT_EQ(all.record.target_fingerprint, right.target_fingerprint);
      EXPECT_EQ(all.record.denominator_max, right.denominator_max);
      EXPECT_EQ(all.record.finite_tokens, static_cast<std::uint64_t>(told));
      EXPECT_EQ(all.record.nonfinite_rows, static_cast<std::uint64_t>(32 - told));
      EXPECT_EQ(all.record.first_nonfinite_row, 500 + first_without_room);
      EXPECT_EQ(Value(all.record.nll_sum), Value(part.record.nll_sum));
      EXPECT_EQ(all.record.present & (LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD), LG_HAS_HIDDEN_GRAD) << "squares of a gradient that lacks rows";
    }
  }
}

TEST(LinearCalls, LogitsInAnotherDtypeAreRightOrRefused) {
  LinearProblem problem = Head();
  problem.dtype = LG_BF16;
  problem.logits_dtype = LG_FP32;
  if (HasLogitsOfAnotherType()) return ExpectLinearLikeOracle(problem);
  const LinearOutcome refused = TestedBackend().RunLinear(problem);
  EXPECT_EQ(refused.code, LG_UNIMPLEMENTED);
  EXPECT_NE(refused.message.find("logits_dtype: expected dtype (1) on a device, got 0"), std::string::npos) << refused.message;
  for (const auto* bytes : {&refused.grad_hidden_bytes, &refused.grad_weight_bytes, &refused.grad_bias_bytes}) {
    for (const unsigned char byte : *bytes) ASSERT_EQ(byte, 0xff) << "written before it was refused";
  }
  for (const float loss : refused.losses) EXPECT_TRUE(std::isnan(loss));
  EXPECT_TRUE(std::isnan(refused.loss));
}

TEST(LinearCalls, PositionsOfMaskedRowsAreNotGivenToOthers) {
  LinearProblem problem = Head(12);
  problem.chunk_rows = 2;
  problem.loss.position_base = 1000;
  for (std::int64_t k = 0; k < 48; ++k) problem.hidden[static_cast<std::size_t>(48 * 8 + k)] *= 64;  // row 8 has the largest logit
  problem.hidden[48 * 9] = NAN;
  const LinearObserved observed = RunLinearObserved(problem);
  EXPECT_EQ(observed.record.worst_logit_position, 1008);
  EXPECT_EQ(observed.record.first_nonfinite_row, 1009);
  problem.loss.positions.clear();
  for (std::int64_t i = 0; i < 12; ++i) problem.loss.positions.push_back(500 - i);
  EXPECT_EQ(RunLinearObserved(problem).record.worst_logit_position, 492);
}

}  // namespace
}  // namespace lossgauge::test
