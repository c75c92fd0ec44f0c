// The signals: what each counts, over which tokens, and how parts merge.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/host/fingerprint.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

Problem Base() { return MakeProblem(Z(8, 1000), Y(8, 1000)); }
Problem Base5() {
  Problem problem = Base();
  for (const std::size_t row : {1u, 4u, 5u}) problem.targets[row] = -100;
  return problem;
}

TEST(Signals, B51_MetricsCoverTheTokensOfTheLoss) {
  Problem problem = Base5();
  for (std::size_t j = 1000; j < 2000; ++j) problem.logits[j] = 1e4;
  problem.logits[1500] = NAN;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.max_abs_logit, 8.0);
  EXPECT_NEAR(Value(observed.record.log_z_sum) / 5, 12.156145971751, 1.2e-5);
  EXPECT_NEAR(observed.record.log_z_max, 12.189564907539, 1.2e-5);
  EXPECT_EQ(observed.record.nonfinite_rows, 0u);
  EXPECT_EQ(observed.record.finite_tokens, 5u);
}

TEST(Signals, B51_GradientNormsMergeAsSquares) {
  Problem base = Base();
  base.denominator = 8;
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  double halves[2];
  for (const std::int64_t half : {0, 1}) {
    Problem part = base;
    part.rows = 4;
    part.logits.assign(base.logits.begin() + half * 4000, base.logits.begin() + (half + 1) * 4000);
    part.targets.assign(base.targets.begin() + half * 4, base.targets.begin() + (half + 1) * 4);
    part.telemetry = telemetry.get();
    halves[half] = Norm(TestedBackend().Run(part).grad);
  }
  const lg_step_record record = telemetry->Publish();
  EXPECT_NEAR(halves[0], 0.251010004705, 3e-7);
  EXPECT_NEAR(halves[1], 0.250991065631, 3e-7);
  ExpectRightNotWrong(std::sqrt(Value(record.logit_grad_sq_sum)) / record.denominator_max, 0.354968361250, 0.502001070336);
}

TEST(Signals, B51_TheGradientNormIsOfTheEmittedGradient) {
  Problem problem = Base();
  problem.dtype = LG_BF16;
  const Observed observed = RunObserved(problem);
  ExpectRightNotWrong(std::sqrt(Value(observed.record.logit_grad_sq_sum)) / 8, 0.354971349811, 0.354968361250);
}

TEST(Signals, SquaresOfALargeGradientAreNotCutOff) {
  // A z-loss far from its minimum: |gradient| about 80 at one column, whose square of some 6500 is more than a lane of the ring kernel keeps below the point.
  for (const int dtype : {LG_FP32, LG_BF16}) {
    for (const std::int64_t columns : {1000, 8000, 40000, 100000, 200000}) {
      SCOPED_TRACE("columns " + std::to_string(columns));
      Problem problem;
      problem.dtype = dtype;
      problem.rows = 2;
      problem.columns = columns;
      problem.logits.assign(static_cast<std::size_t>(2 * columns), 0.);
      for (const std::int64_t i : {5, 6}) problem.logits[static_cast<std::size_t>((i - 5) * columns + i)] = 40;
      problem.targets = {7, 999};
      problem.z_loss_weight = 1;
      ExpectLikeOracle(problem);
    }
  }
}

TEST(Signals, ProbabilityMassIsOneATokenAndBreaksWithoutIt) {
  const Observed observed = RunObserved(Base5());
  EXPECT_NEAR(Value(observed.record.probability_mass), 5.0, 5e-6);
  EXPECT_EQ(observed.record.mass_error_rows, 0u);
  EXPECT_EQ(observed.record.target_hits, 5u);
}

TEST(Signals, CorrectTokensTakeTheLowestIndexOfTheMaximum) {
  // Ties: the lowest index that attains the maximum is the answer.
  Problem problem =
      MakeProblem({1, 3, 3, 0, /**/ 1, 3, 3, 0, /**/ 1, 3, 3, 4, /**/ 5, 5, 5, 5, /**/ 5, 5, 5, 5}, {1, 2, 3, 0, 3});
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.correct_tokens, 3u);
}

TEST(Signals, PlacesNameThePositionInTheStepAndBreakTiesDownwards) {
  Problem problem = Base();
  problem.logits[6 * 1000 + 321] = 9;
  problem.logits[6 * 1000 + 777] = -9;
  problem.logits[3 * 1000 + 500] = -9;
  problem.position_base = 1'000'000;
  lg_step_record record = RunObserved(problem).record;
  EXPECT_EQ(record.max_abs_logit, 9.0);
  EXPECT_EQ(record.worst_logit_position, 1'000'003);
  EXPECT_EQ(record.worst_logit_column, 500);
  // Compacted rows keep their original positions.
  problem.positions = {70, 60, 50, 40, 30, 20, 10, 0};
  record = RunObserved(problem).record;
  EXPECT_EQ(record.worst_logit_position, 10);
  EXPECT_EQ(record.worst_logit_column, 321);
  const Oracle oracle = Judge(problem);
  EXPECT_EQ(record.worst_row_position, oracle.worst_row);
  EXPECT_EQ(record.mask_fingerprint, oracle.mask_fingerprint);
}

TEST(Signals, FingerprintsAreFixedForEver) {
  EXPECT_EQ(lg_target_hash(0), UINT64_C(0x8209b480faed1b10));
  EXPECT_EQ(lg_target_hash(50256), UINT64_C(0xd19d4b28a36dc771));
  EXPECT_EQ(lg_position_hash(0, 0), UINT64_C(0xee0e9eaa011f9efe));
  EXPECT_EQ(lg_position_hash(4095, 31999), UINT64_C(0x01589e8965a1589d));
}

TEST(Signals, FingerprintsTellAMovedMaskFromAMovedToken) {
  const lg_step_record base = RunObserved(Base5()).record;
  Problem other_mask = Base5();
  other_mask.targets[1] = other_mask.targets[0];
  other_mask.targets[0] = -100;
  const lg_step_record moved = RunObserved(other_mask).record;
  EXPECT_EQ(base.target_fingerprint, moved.target_fingerprint);
  EXPECT_NE(base.mask_fingerprint, moved.mask_fingerprint);
  Problem other_token = Base5();
  other_token.targets[0] = 8;
  EXPECT_NE(RunObserved(other_token).record.target_fingerprint, base.target_fingerprint);
}

TEST(Signals, BytesAreThoseOfScoredTargets) {
  std::vector<std::uint8_t> bytes(1000, 3);
  bytes[7] = 0;  // a special token: no text
  bytes[69] = 11;
  const Problem base = Base();
  const Observed observed = RunObserved(base, {1000, bytes});
  EXPECT_EQ(observed.record.target_bytes, 11u + 6 * 3);
  const Oracle oracle = Judge(base);
  EXPECT_NEAR(Value(observed.record.scored_nll_sum), oracle.nll_sum - oracle.rows[0].nll, 1e-6 * oracle.nll_sum);
  EXPECT_NE(observed.record.present & LG_HAS_TARGET_BYTES, 0u);
  EXPECT_EQ(RunObserved(base).record.present & LG_HAS_TARGET_BYTES, 0u);
}

TEST(Signals, AShortByteTableIsNotReadBeyondItsEnd) {
  Problem problem = MakeProblem(Z(2, 1000), {5, 999});
  const Observed observed = RunObserved(problem, {10, std::vector<std::uint8_t>(10, 2)});
  EXPECT_EQ(observed.record.target_bytes, 2u);
}

TEST(Signals, ObservedLogitsCountLikeALossWithoutGradient) {
  Problem problem = Base5();
  problem.label_smoothing = 0.1;
  Problem loss_only = problem;
  loss_only.wants_grad = false;
  const lg_step_record loss = RunObserved(loss_only).record;
  problem.call = Problem::Call::kObserve;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.outcome.code, LG_OK) << observed.outcome.message;
  EXPECT_EQ(lg_fixed128_compare(observed.record.nll_sum, loss.nll_sum), 0);
  EXPECT_EQ(lg_fixed128_compare(observed.record.log_z_sum, loss.log_z_sum), 0);
  EXPECT_EQ(observed.record.mask_fingerprint, loss.mask_fingerprint);
  EXPECT_EQ(observed.record.present & LG_HAS_DENOMINATOR, 0u) << "nothing was divided";
  EXPECT_EQ(observed.record.present & LG_HAS_MASS, 0u);
}

TEST(Signals, AMixOfLaunchesWithAndWithoutGradientShowsNoMass) {
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  Problem problem = Base();
  problem.telemetry = telemetry.get();
  TestedBackend().Run(problem);
  problem.wants_grad = false;
  TestedBackend().Run(problem);
  const lg_step_record record = telemetry->Publish();
  EXPECT_EQ(record.present & LG_HAS_MASS, 0u) << "half of the tokens have no mass: that is no broken normaliser";
  EXPECT_EQ(record.finite_tokens, 16u);
}

TEST(Signals, EvaluationGoesToItsOwnBlock) {
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  Problem problem = Base();
  problem.telemetry = telemetry.get();
  TestedBackend().Run(problem);
  ASSERT_EQ(lg_gauge_phase_begin(telemetry->gauge(), LG_EVALUATION), LG_OK);
  TestedBackend().Run(problem);
  ASSERT_EQ(lg_gauge_phase_end(telemetry->gauge(), LG_EVALUATION), LG_OK);
  problem.block = 1;
  TestedBackend().Run(problem);
  EXPECT_EQ(telemetry->Publish().tokens, 8u);
}

TEST(Signals, HugeTermsAreClampedAndCounted) {
  Problem problem = MakeProblem({3e38, -3e38, 0, 0}, {1, 0});
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.clamped_rows, 1u);
  EXPECT_EQ(observed.record.finite_tokens, 2u);
  EXPECT_NEAR(Value(observed.record.nll_sum), 0x1p31 + std::log(2.0), 1e-3);
  EXPECT_EQ(observed.record.worst_row_position, 0);
}

TEST(Signals, AStepWithoutLaunchesIsEmptyAndTheNextIsWhole) {
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  EXPECT_EQ(telemetry->Publish().tokens, 0u);
  Problem problem = Base();
  problem.telemetry = telemetry.get();
  TestedBackend().Run(problem);
  EXPECT_EQ(telemetry->Publish().tokens, 8u);
  EXPECT_EQ(telemetry->Publish().tokens, 0u);
}

}  // namespace
}  // namespace lossgauge::test
