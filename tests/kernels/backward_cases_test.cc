// What reaches the gradient from above, what is overwritten and what is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};

Problem Base() { return MakeProblem(Z(8, 1000), Y(8, 1000)); }
Problem Base5() {
  Problem problem = Base();
  for (const std::size_t row : {1u, 4u, 5u}) problem.targets[row] = -100;
  return problem;
}

TEST(Backward, B37_AnUpstreamGradientIsFoldedIn) {
  Problem base = Base(), base5 = Base5();
  base.upstream = base5.upstream = {3};
  ExpectRightNotWrong(Norm(TestedBackend().Run(base).grad), 1.064905083751, 0.354968361250);
  ExpectRightNotWrong(Norm(TestedBackend().Run(base5).grad), 1.347047980178, 0.449015993393);
  base.upstream = {static_cast<float>(2 * 15.005845802207)};
  ExpectRightNotWrong(Norm(TestedBackend().Run(base).grad), 10.653200987167, 0.354968361250);
}

TEST(Backward, B37_MinusOneNegatesAndZeroIsZero) {
  for (const int dtype : kDtypes) {
    Problem problem = Base5();
    problem.dtype = dtype;
    const Outcome plus = TestedBackend().Run(problem);
    problem.upstream = {-1};
    const Outcome minus = TestedBackend().Run(problem);
    problem.upstream = {0};
    const Observed zero = RunObserved(problem);
    problem.upstream = {0.25f};
    const Outcome quarter = TestedBackend().Run(problem);
    for (std::size_t i = 0; i < plus.grad.size(); ++i) {
      ASSERT_EQ(minus.grad[i], -plus.grad[i]);
      ASSERT_EQ(zero.outcome.grad[i], 0.0);
      if (dtype != LG_FP16) {
        ASSERT_EQ(quarter.grad[i], plus.grad[i] / 4);
      }
    }
    // The signals are those of the gradient at upstream 1.
    const Observed one = RunObserved([&] {
      Problem p = problem;
      p.upstream = {};
      return p;
    }());
    EXPECT_EQ(Value(zero.record.logit_grad_sq_sum), Value(one.record.logit_grad_sq_sum));
    EXPECT_EQ(Value(zero.record.probability_mass), Value(one.record.probability_mass));
  }
}

TEST(Backward, B37_ANonFiniteUpstreamIsCountedAndLeavesIgnoredRowsAtZero) {
  for (const float upstream : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    for (const int dtype : kDtypes) {
      Problem problem = Base5();
      problem.dtype = dtype;
      problem.upstream = {upstream};
      const Observed observed = RunObserved(problem);
      for (std::size_t i = 0; i < observed.outcome.grad.size(); ++i) {
        const std::size_t row = i / 1000;
        if (row == 1 || row == 4 || row == 5) {
          ASSERT_EQ(observed.outcome.grad[i], 0.0);
        } else {
          ASSERT_FALSE(std::isfinite(observed.outcome.grad[i]));
        }
      }
      EXPECT_EQ(observed.record.nonfinite_grad_rows, 5u);
      EXPECT_EQ(Value(observed.record.logit_grad_sq_sum), 0.0);
      EXPECT_EQ(observed.record.nonfinite_rows, 0u) << "the rows themselves are finite";
      EXPECT_TRUE(std::isfinite(observed.outcome.loss));
    }
  }
}

TEST(Backward, TinyAndHugeUpstreamsKeepTheirDigits) {
  for (const float upstream : {1e-20f, -1e-28f, 1e-36f, 1e20f, 1e36f}) {
    Problem problem = Base5();
    problem.upstream = {upstream};
    ExpectLikeOracle(problem);
  }
}

TEST(Backward, AnOverflowingGradScaleIsCounted) {
  Problem problem = Base();
  problem.dtype = LG_FP16;
  problem.reduction = LG_SUM;
  problem.by_grad_scale_pointer = true;
  problem.grad_scale = 131072;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.nonfinite_grad_rows, 8u);
  problem.grad_scale = 1024;
  ExpectLikeOracle(problem);
}

TEST(Backward, B38_EachTokenHasItsOwnUpstream) {
  Problem problem = Base();
  problem.reduction = LG_NONE;
  problem.upstream = {1, 0, 2, -1, 0.5f, 3, -0.125f, 7};
  const Outcome outcome = TestedBackend().Run(problem);
  ExpectOutcome(problem, outcome, Judge(problem));
  problem.upstream.assign(8, 1);
  const Outcome first_for_all = TestedBackend().Run(problem);
  EXPECT_NE(outcome.grad_bytes, first_for_all.grad_bytes);
}

TEST(Backward, B40_LogitsSurviveUnlessInPlaceWasAskedFor) {
  for (const int dtype : kDtypes) {
    Problem problem = Base();
    problem.dtype = dtype;
    const Outcome apart = TestedBackend().Run(problem);
    EXPECT_EQ(apart.logits_bytes, apart.logits_bytes_before);
    const Outcome again = TestedBackend().Run(problem);
    EXPECT_NEAR(static_cast<double>(again.loss), 15.005845802207, 1.5e-5);
    problem.in_place = true;
    const Outcome in_place = TestedBackend().Run(problem);
    EXPECT_EQ(in_place.grad_bytes, apart.grad_bytes);
    EXPECT_EQ(in_place.losses, apart.losses);
    EXPECT_EQ(in_place.loss, apart.loss);
  }
}

TEST(Backward, B41_TheLossDoesNotDependOnWhatElseIsAskedFor) {
  for (const bool mapped : {false, true}) {
    Problem everything = Base5();
    everything.label_smoothing = 0.1;
    everything.z_loss_weight = 1e-4;
    if (mapped) everything.logit_softcap = 5;
    const Observed full = RunObserved(everything);
    Problem loss_only = everything;
    loss_only.wants_grad = false;
    const Observed alone = RunObserved(loss_only);
    EXPECT_EQ(full.outcome.losses, alone.outcome.losses);
    EXPECT_EQ(full.outcome.loss, alone.outcome.loss);
    EXPECT_EQ(full.outcome.log_z, alone.outcome.log_z);
    EXPECT_EQ(alone.record.present & (LG_HAS_MASS | LG_HAS_LOGIT_GRAD), 0u) << "no gradient, no mass";
    for (const unsigned char byte : alone.outcome.grad_bytes) ASSERT_EQ(byte, 0xff) << "written though not asked for";
    Problem without_gauge = everything;
    const Outcome silent = TestedBackend().Run(without_gauge);
    EXPECT_EQ(silent.grad_bytes, full.outcome.grad_bytes) << "telemetry changed the gradient";
    EXPECT_EQ(silent.loss, full.outcome.loss);
    Problem scalar_only = everything;
    scalar_only.wants_losses = scalar_only.wants_log_z = scalar_only.wants_grad = false;
    const Outcome scalar = TestedBackend().Run(scalar_only);
    EXPECT_EQ(scalar.loss, full.outcome.loss);
    EXPECT_TRUE(std::isnan(scalar.losses[0]));
    EXPECT_TRUE(std::isnan(scalar.log_z[0]));
  }
}

TEST(Backward, ALaterUpstreamIsRecomputedFromKeptLogitsAndAddsNothing) {
  Problem problem = Base5();
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  problem.telemetry = telemetry.get();
  problem.upstream = {0.7f};
  const Outcome folded = TestedBackend().Run(problem);
  problem.call = Problem::Call::kBackward;
  const Outcome later = TestedBackend().Run(problem);
  EXPECT_EQ(folded.grad_bytes, later.grad_bytes);
  const lg_step_record record = telemetry->Publish();
  EXPECT_EQ(record.micro_batches, 1u);
  EXPECT_EQ(record.unmasked_tokens, 5u);
}

class ScaleGradient : public testing::TestWithParam<int> {
 protected:
  // Scales a row of values, then returns them.
  std::vector<double> Scaled(const std::vector<double>& values, std::vector<float> upstream, std::int64_t rows = 1) {
    const std::int64_t bytes = BytesOf(GetParam());
    std::vector<unsigned char> grad(values.size() * static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < values.size(); ++i)
      Store(GetParam(), values[i], grad.data() + i * static_cast<std::size_t>(bytes));
    lg_scale_gradient_args args;
    lg_scale_gradient_args_init(&args);
    args.grad = grad.data();
    args.dtype = GetParam();
    args.rows = rows;
    args.columns = static_cast<std::int64_t>(values.size()) / rows;
    args.upstream = upstream.data();
    args.upstream_stride = upstream.size() > 1 ? 1 : 0;
    EXPECT_EQ(lg_scale_gradient(&args), LG_OK) << lg_last_error();
    std::vector<double> scaled;
    for (std::size_t i = 0; i < values.size(); ++i)
      scaled.push_back(Load(GetParam(), grad.data() + i * static_cast<std::size_t>(bytes)));
    return scaled;
  }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (int i = 0; i < 101; ++i) values.push_back(RoundTo(GetParam(), std::sin(i) / 7));
    return values;
  }
};

TEST_P(ScaleGradient, OneAndPowersOfTwoAreExact) {
  const std::vector<double> values = Values();
  EXPECT_EQ(Scaled(values, {1}), values);
  const std::vector<double> scaled = Scaled(values, {-4});
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(scaled[i], -4 * values[i]);
}

TEST_P(ScaleGradient, AnythingElseCostsOneRounding) {
  const std::vector<double> values = Values();
  const std::vector<double> scaled = Scaled(values, {0.3f});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = values[i] * static_cast<double>(0.3f);
    EXPECT_LE(std::fabs(scaled[i] - exact), 0.50001 * Ulp(GetParam(), exact)) << i;
  }
}

TEST_P(ScaleGradient, ZeroClearsNonFiniteValuesAndInfinityKeepsZeros) {
  std::vector<double> values = Values();
  values[3] = NAN;
  values[70] = HUGE_VAL;
  for (const double value : Scaled(values, {0})) EXPECT_EQ(value, 0.0);
  values = Values();
  const std::vector<double> infinite = Scaled(values, {HUGE_VALF});
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      EXPECT_EQ(infinite[i], 0.0);
    } else {
      EXPECT_TRUE(std::isinf(infinite[i]));
    }
  }
  values[50] = NAN;
  EXPECT_TRUE(std::isnan(Scaled(values, {2})[50]));
}

TEST_P(ScaleGradient, EachRowHasItsOwnUpstream) {
  std::vector<double> values(3 * 37, 1.0);
  const std::vector<double> scaled = Scaled(values, {2, 0, -1}, 3);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(scaled[i], i < 37 ? 2 : i < 74 ? 0 : -1);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ScaleGradient, testing::ValuesIn(kDtypes));

}  // namespace
}  // namespace lossgauge::test
