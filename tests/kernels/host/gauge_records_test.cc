// What a job hands to a gauge is what a reader finds in the records of its ring.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/host/one_gauge.h"

namespace lossgauge {
namespace {

TEST_F(GaugeTest, PublishesWhatWasObservedAndAddsUpTotals) {
  Open();
  Observe(Observation(10.5, 8, 6));
  Observe(Observation(1.25, 8, 7));
  Publish();
  Observe(Observation(3, 8, 8));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 0);
  EXPECT_EQ(steps[0].block, 0u);
  EXPECT_EQ(steps[0].micro_batches, 2u);
  EXPECT_EQ(steps[0].tokens, 16u);
  EXPECT_EQ(steps[0].unmasked_tokens, 13u);
  EXPECT_EQ(steps[0].finite_tokens, 13u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 11.75);
  EXPECT_TRUE((steps[0].present & LG_HAS_LOSS) != 0);
  EXPECT_TRUE((steps[0].present & LG_HAS_GRAD_NORM) == 0);
  EXPECT_EQ(steps[1].step, 1);
  EXPECT_EQ(steps[1].tokens, 8u);
  EXPECT_EQ(steps[1].total_steps, 2u);
  EXPECT_EQ(steps[1].total_tokens, 24u);
  EXPECT_EQ(lg_fixed128_to_double(steps[1].total_nll_sum), 14.75);
  EXPECT_GE(steps[1].boot_ns, steps[0].boot_ns);
}

TEST_F(GaugeTest, PublishesAStepWithoutAnyLossCallToo) {
  Open();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].present, 0u);
  EXPECT_EQ(steps[0].total_steps, 1u);
}

TEST_F(GaugeTest, HandsOverScalarsOnceAndForgetsThem) {
  Open();
  float norm = 2.5f;
  lg_reported_loss reported;
  lg_reported_loss_init(&reported);
  reported.value = 4.5;
  reported.dtype = LG_BF16;
  reported.interval = 10;
  reported.auxiliary = 0.5;
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, &norm, LG_FP32), LG_OK);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_LEARNING_RATE, 1e-3), LG_OK);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_DENOMINATOR, 96), LG_OK);
  EXPECT_EQ(lg_gauge_set_reported_loss(gauge_, &reported), LG_OK);
  norm = 3.5f;  // read at publish
  Publish();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].present,
            std::uint64_t{LG_HAS_GRAD_NORM | LG_HAS_LEARNING_RATE | LG_HAS_DENOMINATOR | LG_HAS_REPORTED_LOSS});
  EXPECT_EQ(steps[0].grad_norm, 3.5);
  EXPECT_EQ(steps[0].learning_rate, 1e-3);
  EXPECT_EQ(steps[0].denominator_min, 96);
  EXPECT_EQ(steps[0].denominator_max, 96);
  EXPECT_EQ(steps[0].reported_loss, 4.5);
  EXPECT_EQ(steps[0].reported_loss_auxiliary, 0.5);
  EXPECT_EQ(steps[0].reported_loss_dtype, std::uint64_t{LG_DTYPE_BF16});
  EXPECT_EQ(steps[0].reported_loss_interval, 10u);
  EXPECT_EQ(steps[1].present, 0u);
  EXPECT_EQ(steps[1].grad_norm, 0);
}

TEST_F(GaugeTest, CountsNonFiniteStepsExactly) {
  Open();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Publish();
  lg_gauge_set_scalar(gauge_, LG_GRAD_NORM, nan);
  Publish();
  Observe(Observation(nan, 8, 6));
  Publish();
  lg_observation with_rows = Observation(5, 8, 6);
  with_rows.nonfinite_rows = 2;
  Observe(with_rows);
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].total_nonfinite_steps, 0u);
  EXPECT_EQ(steps[1].total_nonfinite_steps, 1u);
  EXPECT_TRUE(std::isnan(steps[1].grad_norm));
  EXPECT_EQ(steps[2].nonfinite_rows, 6u) << "a sum that is not finite tells nothing about any of its rows";
  EXPECT_EQ(steps[2].finite_tokens, 0u);
  EXPECT_EQ(lg_fixed128_to_double(steps[2].nll_sum), 0);
  EXPECT_EQ(steps[3].finite_tokens, 4u);
  EXPECT_EQ(steps[3].total_nonfinite_rows, 8u);
  EXPECT_EQ(steps[3].total_nonfinite_steps, 3u);
}

TEST_F(GaugeTest, ReadsAnObservationWhereItsPointersSay) {
  Open();
  double sum = 10.5, denominator = 7;
  std::int64_t unmasked = 6;
  lg_observation observation = Observation(-1, 8, 99);
  observation.nll_sum_pointer = &sum;
  observation.unmasked_tokens_pointer = &unmasked;
  observation.denominator_pointer = &denominator;
  Observe(observation);
  Publish();
  observation.tokens = 0;
  Observe(observation);
  Publish();
  const auto steps = Steps();
  EXPECT_EQ(steps[0].tokens, 8u);
  EXPECT_EQ(steps[0].finite_tokens, 6u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 10.5);
  EXPECT_EQ(steps[0].denominator_max, 7);
  EXPECT_EQ(steps[1].tokens, 6u) << "as many as unmasked";
}

TEST_F(GaugeTest, WhatPointersReadIsNotRefusedButBroughtIntoRange) {
  Open();
  const auto observe = [this](double sum, std::int64_t unmasked, double denominator, std::int64_t tokens, std::int64_t nonfinite) {
    lg_observation observation = Observation(0, tokens, 0);
    observation.nll_sum_pointer = &sum;
    observation.unmasked_tokens_pointer = &unmasked;
    observation.denominator_pointer = &denominator;
    observation.nonfinite_rows = nonfinite;
    Observe(observation);
    Publish();
    return Steps().back();
  };
  for (const double none : {0., -3., HUGE_VAL, std::nan("")}) EXPECT_EQ(observe(1, 4, none, 8, 0).present & LG_HAS_DENOMINATOR, 0u) << none;
  EXPECT_EQ(observe(1, 9, 1, 8, 0).unmasked_tokens, 8u);
  EXPECT_EQ(observe(1, -9, 1, 8, 3).unmasked_tokens, 0u);
  const lg_step_record few = observe(1, 2, 1, 8, 3);
  EXPECT_EQ(few.nonfinite_rows, 2u);
  EXPECT_EQ(few.finite_tokens, 0u);
  for (const double wrong : {-1., HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const lg_step_record record = observe(wrong, 4, 1, 8, 0);
    EXPECT_EQ(record.nonfinite_rows, 4u) << wrong;
    EXPECT_EQ(lg_fixed128_to_double(record.nll_sum), 0) << wrong;
  }
  EXPECT_EQ(observe(1e300, 4, 1, 8, 0).clamped_rows, 1u);
}

TEST_F(GaugeTest, ClampsHugeSumsSoThatTheirTotalNeverWraps) {
  Open();
  for (int i = 0; i < 200; ++i) {
    Observe(Observation(1e300, 1 << 20, 1 << 20));
    Publish();
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 200u);
  EXPECT_EQ(steps[199].clamped_rows, 1u);
  EXPECT_EQ(lg_fixed128_to_double(steps[199].total_nll_sum), 0x1p47 * 200);
}

TEST_F(GaugeTest, KeepsEvaluationOutOfTheStep) {
  Open();
  Observe(Observation(10, 8, 8));
  ASSERT_EQ(lg_gauge_phase_begin(gauge_, LG_EVALUATION), LG_OK);
  Observe(Observation(1000, 80, 80));
  ASSERT_EQ(lg_gauge_phase_end(gauge_, LG_EVALUATION), LG_OK);
  Observe(Observation(20, 8, 8));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].block, 1u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 1000);
  EXPECT_EQ(steps[1].block, 0u) << "the main block comes last: who has it has the whole step";
  EXPECT_EQ(lg_fixed128_to_double(steps[1].nll_sum), 30);
  EXPECT_EQ(steps[1].total_tokens, 16u);
}

TEST_F(GaugeTest, GoesOnPastTheEndOfItsRings) {
  Open();
  for (int i = 0; i < 700; ++i) {
    Observe(Observation(1, 1, 1));
    Publish();
    lg_gauge_note(gauge_, i, "n");
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), std::size_t{LG_STEP_SLOT_COUNT});
  EXPECT_EQ(steps.back().step, 699);
  EXPECT_EQ(steps.back().total_steps, 700u);
  EXPECT_EQ(lg_fixed128_to_double(steps.front().total_nll_sum), 189);
  EXPECT_EQ(Events().size(), std::size_t{LG_EVENT_SLOT_COUNT});
}

}  // namespace
}  // namespace lossgauge
