#include <gtest/gtest.h>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

// Steps at a loss that looks fine, with log Z around `from`, moving by `slope` a step.
void Drift(JudgeScript& job, int steps, double from, double slope, double z_loss_nats = 0, double sd = 0.3) {
  for (int i = 0; i < steps; ++i) {
    const double log_z = from + slope * i + sd * job.noise.Next();
    job.Step({.loss = 2.2 + 0.02 * job.noise.Next(), .edit = [&](std::uint32_t, lg_step_record& record) {
                record.log_z_sum = lg_fixed128_from_double(log_z * static_cast<double>(record.finite_tokens));
                if (z_loss_nats > 0) record.present |= LG_HAS_OBJECTIVE;
                record.z_loss_sum = lg_fixed128_from_double(z_loss_nats * static_cast<double>(record.finite_tokens));
              }});
  }
}

TEST(NormalizerDrift, ThatAZLossDoesNotHoldIsWatchedThoughTheLossIsFine) {
  JudgeScript job;
  Drift(job, 640, 0.5, 0, 1e-4);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  Drift(job, 640, 0.5, 0.01, 1e-4);
  job.Look();
  const auto drift = job.FindOpen(Condition::kNormalizerDrift);
  ASSERT_TRUE(drift);
  EXPECT_EQ(drift->severity, state::Severity::kWarning);
  EXPECT_NEAR(static_cast<double>(drift->onset_step), 640, 128);
  EXPECT_NE(drift->summary.find("the z-loss does not hold it"), std::string::npos) << drift->summary;
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_EQ(job.OpenedInAll(), 1u) << "nothing of the loss";
}

TEST(NormalizerDrift, WithoutAZLossItIsInfoUntilLogitsGetCoarse) {
  JudgeScript job;
  Drift(job, 1024, 10, 0.01);
  ASSERT_TRUE(job.IsOpen(Condition::kNormalizerDrift));
  EXPECT_EQ(job.FindOpen(Condition::kNormalizerDrift)->severity, state::Severity::kInfo);
  Drift(job, 1280, 20.24, 0.01);
  ASSERT_TRUE(job.IsOpen(Condition::kNormalizerDrift));
  EXPECT_EQ(job.FindOpen(Condition::kNormalizerDrift)->severity, state::Severity::kWarning);
}

TEST(NormalizerDrift, AwayFromZeroOnEitherSideAndNeverTowardsIt) {
  JudgeScript below;
  Drift(below, 1024, -5, -0.01, 1e-4);
  EXPECT_TRUE(below.IsOpen(Condition::kNormalizerDrift));
  JudgeScript towards;
  Drift(towards, 1024, 20, -0.01, 1e-4);
  EXPECT_EQ(towards.Opened(Condition::kNormalizerDrift), 0u);
}

TEST(NormalizerDrift, IsOverOnceLogZStandsStill) {
  JudgeScript job;
  Drift(job, 1024, 0.5, 0.01, 1e-4);
  ASSERT_TRUE(job.IsOpen(Condition::kNormalizerDrift));
  Drift(job, 512, 10.7, 0, 1e-4);
  EXPECT_FALSE(job.IsOpen(Condition::kNormalizerDrift));
  EXPECT_EQ(job.Opened(Condition::kNormalizerDrift), 1u);
}

TEST(NormalizerDrift, NoiseAndASmallWalkAreNone) {
  JudgeScript job;
  Drift(job, 20'000, 3, 0, 1e-4, 1.0);
  Drift(job, 1024, 3, 0.001, 1e-4);  // a nat in a thousand steps: below the floor over 512
  EXPECT_EQ(job.OpenedInAll(), 0u);
}

}  // namespace
}  // namespace lossgauge::testing
