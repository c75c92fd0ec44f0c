// Where the elements lie: padding, strides, odd widths, alignment, bad targets, no rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};

TEST(Layout, B28_B38_AHeadOf130ColumnsHasNoPhantomColumns) {
  const Matrix x = X(4, 64), w = W(130, 64);
  Problem problem = MakeProblem(TimesTransposed(x, w, 4, 130, 64), {7, 38, 69, 100});
  ASSERT_EQ(problem.logits[0], 0.654296875);
  Outcome outcome = TestedBackend().Run(problem);
  const double nll[] = {7.103026115, 7.280018012, 8.538923830, 8.499696695};
  const double lse[] = {5.397947990, 5.432361762, 5.562361330, 5.534852945};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(static_cast<double>(outcome.losses[i]), nll[i], 8e-6);
    EXPECT_NEAR(static_cast<double>(outcome.log_z[i]), lse[i], 6e-6);
  }
  ExpectRightNotWrong(static_cast<double>(outcome.loss), 7.855416162825, 8.277512915703);
  // The head's gradients, from the logits' gradient.
  const Matrix grad_x = TimesTransposed(outcome.grad, Transposed(w, 130, 64), 4, 64, 130);
  Matrix grad_w = TimesTransposed(Transposed(outcome.grad, 4, 130), Transposed(x, 4, 64), 130, 64, 4);
  EXPECT_NEAR(Norm(grad_x), 1.614871478874, 1.6e-6);
  EXPECT_NEAR(Norm(grad_w), 1.202202000254, 1.2e-6);
  EXPECT_NEAR(grad_x[0], -0.068439342321, 1e-7);
  EXPECT_NEAR(grad_w[7 * 64], 0.085265177326, 1e-7);

  // B38: an upstream gradient for each token reaches each token.
  problem.reduction = LG_NONE;
  problem.upstream = {1, 0, 2, -1};
  outcome = TestedBackend().Run(problem);
  grad_w = TimesTransposed(Transposed(outcome.grad, 4, 130), Transposed(x, 4, 64), 130, 64, 4);
  ExpectRightNotWrong(Norm(grad_w), 5.906343411112, 4.808808001016);
  EXPECT_NEAR(grad_w[7 * 64], 0.339043465630, 1e-6);
  ExpectOutcome(problem, outcome, Judge(problem));
}

TEST(Layout, B28_PaddedColumnsTakeNoPart) {
  // 126 columns of padding that are NaN, then all real logits 20 lower, where phantom zeros would take over.
  for (const double bias : {0.0, -20.0}) {
    const Matrix tight = TimesTransposed(X(4, 64), W(130, 64), 4, 130, 64);
    std::vector<double> padded;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 256; ++j) padded.push_back(j < 130 ? tight[i * 130 + j] + bias : NAN);
    }
    Problem problem = MakeProblem(padded, {7, 38, 69, 100});
    problem.vocab_size = 130;
    const Observed observed = RunObserved(problem);
    ExpectRightNotWrong(static_cast<double>(observed.outcome.loss), 7.855416162825,
                        bias == 0 ? 8.277512915703 : 27.209817067142);
    EXPECT_EQ(observed.record.nonfinite_rows, 0u);
    ExpectOutcome(problem, observed.outcome, Judge(problem));
  }
  Problem rounded = MakeProblem(TimesTransposed(X(4, 64), W(130, 64), 4, 130, 64), {7, 38, 69, 100});
  rounded.dtype = LG_BF16;
  ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(rounded).loss), 7.853003650043, 7.855416162825);
}

TEST(Layout, B28_ABiasIsAddedOnce) {
  Matrix logits = TimesTransposed(X(4, 64), W(130, 64), 4, 130, 64);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] += static_cast<double>(static_cast<int>((17 * (i % 130)) % 11) - 5) / 4.0;
  const Outcome outcome = TestedBackend().Run(MakeProblem(logits, {7, 38, 69, 100}));
  ExpectRightNotWrong(static_cast<double>(outcome.loss), 7.524396386949, 7.628426605628);
  std::vector<double> grad_b(130);
  double sum = 0;
  for (std::size_t i = 0; i < outcome.grad.size(); ++i) grad_b[i % 130] += outcome.grad[i], sum += outcome.grad[i];
  EXPECT_NEAR(Norm(grad_b), 0.489014130975, 5e-7);
  EXPECT_NEAR(grad_b[7], -0.229155106550, 3e-7);
  EXPECT_NEAR(sum, 0, 1e-6);
}

TEST(Layout, PaddedTargetsAreBadTargets) {
  Problem problem = MakeProblem(Z(3, 8), {5, 6, 7});
  problem.vocab_size = 6;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.bad_targets, 2u);
  EXPECT_EQ(observed.record.unmasked_tokens, 1u);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

TEST(Layout, B29_TargetsOutOfRangeAreCountedAndAddNothing) {
  const Problem base = MakeProblem(Z(8, 1000), Y(8, 1000));
  const std::int64_t wide = (std::int64_t{1} << 32) + 7;
  for (const std::int64_t target : {std::int64_t{1000}, std::int64_t{1023}, std::int64_t{-1}, std::int64_t{INT32_MAX}, wide,
                                    std::int64_t{INT64_MIN}, std::int64_t{INT64_MAX}, std::int64_t{-100}}) {
    Problem problem = base;
    problem.targets[3] = target;
    if (target == -100) problem.ignore_index = -1;
    const Observed observed = RunObserved(problem);
    EXPECT_EQ(observed.record.bad_targets, 1u) << target;
    EXPECT_EQ(observed.record.unmasked_tokens, 7u) << target;
    EXPECT_EQ(observed.outcome.losses[3], 0.0f);
    for (std::size_t j = 3000; j < 4000; ++j) ASSERT_EQ(observed.outcome.grad[j], 0.0) << target;
    ExpectOutcome(problem, observed.outcome, Judge(problem));
  }
  Problem narrow = base;
  narrow.target_dtype = LG_INT32;
  narrow.targets[3] = INT32_MAX;
  EXPECT_EQ(RunObserved(narrow).record.bad_targets, 1u);
}

TEST(Layout, B30_TheIgnoreIndexMayBeAnOrdinaryClass) {
  Problem problem = MakeProblem(Z(4, 5), {2, 0, 2, 4});
  problem.ignore_index = 2;
  const Outcome outcome = TestedBackend().Run(problem);
  ExpectRightNotWrong(static_cast<double>(outcome.loss), 4.524547733760, 4.722220990516);
  EXPECT_NEAR(static_cast<double>(outcome.losses[1]), 1.298012042, 1.3e-6);
  EXPECT_NEAR(static_cast<double>(outcome.losses[3]), 7.751083426, 7.8e-6);
  EXPECT_EQ(outcome.losses[0], 0.0f);
}

TEST(Layout, B31_StridedViewsAreReadWhereTheyLie) {
  // Z(8, 8) seen as (4, 2, 8) and swapped to (2, 4, 8): two calls of four rows, 16 elements apart.
  const Matrix z = Z(8, 8);
  const std::vector<std::int64_t> y = Y(8, 8);
  const double right[] = {1.127204555, 1.127265588, 1.314704555, 1.314765588,
                          9.439765588, 7.939102642, 1.689704555, 1.689765588};
  double sum = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    Problem problem;
    problem.rows = 4;
    problem.columns = 8;
    problem.row_stride = 16;
    for (std::size_t r = 0; r < 4; ++r) {
      problem.logits.insert(problem.logits.end(), z.begin() + static_cast<std::ptrdiff_t>((r * 2 + i) * 8),
                            z.begin() + static_cast<std::ptrdiff_t>((r * 2 + i + 1) * 8));
      problem.targets.push_back(y[i * 4 + r]);
    }
    const Outcome outcome = TestedBackend().Run(problem);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_NEAR(static_cast<double>(outcome.losses[r]), right[i * 4 + r], 1e-5);
      sum += static_cast<double>(outcome.losses[r]);
    }
    ExpectOutcome(problem, outcome, Judge(problem));
  }
  ExpectRightNotWrong(sum / 8, 3.205284832262, 5.213097332262);
}

TEST(Layout, B31_GradientAndTargetsHaveStridesOfTheirOwn) {
  for (const int dtype : kDtypes) {
    Problem problem = MakeProblem(Z(6, 37), Y(6, 37));
    problem.dtype = dtype;
    problem.row_stride = 41;
    problem.grad_row_stride = 53;
    problem.target_stride = 3;
    ExpectLikeOracle(problem);
    problem.target_dtype = LG_INT32;
    problem.in_place = true;
    ExpectLikeOracle(problem);
  }
}

TEST(Layout, B33_OddWidthsAndMisalignedPointers) {
  struct Row {
    std::int64_t v;
    double lse[2], nll[2], norm;
  };
  for (const Row& row : {Row{7, {2.235734741, 7.564649911}, {8.860734741, 1.689649911}, 0.747002003289},
                         Row{128256, {17.016283007, 17.016472929}, {23.078783007, 11.141472929}, 0.707123785959}}) {
    for (const int dtype : kDtypes) {
      for (const bool left : {false, true}) {
        Problem problem = MakeProblem(Z(2, row.v), {row.v - 1, 0});
        problem.dtype = dtype;
        problem.target_dtype = LG_INT32;
        problem.flush_left = left;
        // Else the last row ends at the guard page, and no shift may hide a read past it.
        if (left) problem.shift_bytes = dtype == LG_FP32 ? 4 : 2;
        const Outcome outcome = TestedBackend().Run(problem);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_NEAR(static_cast<double>(outcome.log_z[i]), row.lse[i], 1e-6 * row.lse[i]);
          EXPECT_NEAR(static_cast<double>(outcome.losses[i]), row.nll[i], 1e-6 * row.nll[i]);
        }
        EXPECT_NEAR(Norm(outcome.grad), row.norm, dtype == LG_FP32 ? 1e-6 : 1e-3);
        ExpectOutcome(problem, outcome, Judge(problem));
      }
    }
  }
}

TEST(Layout, AGradientLargerThanTheCachesHasTheSameBits) {
  // Large enough to be stored past the caches; once aligned to vectors, once not, once in place.
  Problem problem = MakeProblem(Z(140, 32001), Y(140, 32001));
  problem.grad_row_stride = 32016;
  problem.flush_left = true;
  const Observed streamed = RunObserved(problem);
  problem.shift_bytes = 4;
  const Observed misaligned = RunObserved(problem);
  problem.shift_bytes = 0;
  problem.in_place = true;
  const Observed in_place = RunObserved(problem);
  const double squares = Value(streamed.record.logit_grad_sq_sum), squares_in_place = Value(in_place.record.logit_grad_sq_sum);
  if (TestedBackend().HasSameBitsForAnyLayout()) {
    EXPECT_EQ(streamed.outcome.grad_bytes, misaligned.outcome.grad_bytes);
    EXPECT_EQ(streamed.outcome.grad_bytes, in_place.outcome.grad_bytes);
    EXPECT_EQ(squares, squares_in_place);
  } else {
    EXPECT_NEAR(squares, squares_in_place, 1e-6 * squares);
    ExpectOutcome(problem, in_place.outcome, Judge(problem));
    ExpectOutcome(problem, misaligned.outcome, Judge(problem));
  }
  EXPECT_TRUE(streamed.outcome.gaps_unharmed);
  problem.in_place = false;
  ExpectOutcome(problem, streamed.outcome, Judge(problem));
}

TEST(Layout, B34_NoRowsIsNoError) {
  Problem none;
  none.columns = 1000;
  const Observed observed = RunObserved(none);
  EXPECT_EQ(observed.outcome.code, LG_OK) << observed.outcome.message;
  EXPECT_EQ(observed.outcome.loss, 0.0f);
  EXPECT_EQ(observed.record.tokens, 0u);
  EXPECT_EQ(Value(observed.record.nll_sum), 0.0);
  EXPECT_NEAR(static_cast<double>(TestedBackend().Run(MakeProblem(Z(8, 1000), Y(8, 1000))).loss), 15.005845802207, 1.5e-5);
}

TEST(Layout, B35_TargetWidthAndLogitsDtypeDoNotChangeExactInputs) {
  Problem problem = MakeProblem(Z(8, 1000), Y(8, 1000));
  const Outcome wide = TestedBackend().Run(problem);
  problem.target_dtype = LG_INT32;
  const Outcome narrow = TestedBackend().Run(problem);
  EXPECT_EQ(wide.grad_bytes, narrow.grad_bytes);
  EXPECT_EQ(wide.losses, narrow.losses);
  problem.dtype = LG_BF16;
  const Outcome bf16 = TestedBackend().Run(problem);
  problem.dtype = LG_FP16;
  const Outcome fp16 = TestedBackend().Run(problem);
  for (std::size_t i = 0; i < 8; ++i) {
    const float slack = TestedBackend().HasSameBitsForAnyLayout() ? 0.0f : 1e-6f;
    EXPECT_NEAR(wide.losses[i], bf16.losses[i], slack * wide.losses[i]);
    EXPECT_NEAR(wide.losses[i], fp16.losses[i], slack * wide.losses[i]);
    EXPECT_NEAR(wide.log_z[i], bf16.log_z[i], slack * wide.log_z[i]);
  }
}

}  // namespace
}  // namespace lossgauge::test
