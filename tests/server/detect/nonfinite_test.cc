#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A1, the counting side.
TEST(Nonfinite, OneNanStepAndOneInfStepAreCountedOnceEachAndNothingElse) {
  JudgeScript job;
  job.Look();
  job.Steps(20, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kNonfinite));
  job.Step({.nonfinite_rows = 1024});
  ASSERT_TRUE(job.IsOpen(Condition::kNonfinite));
  job.Steps(20, 2.2);
  EXPECT_EQ(job.FindOpen(Condition::kNonfinite)->last_step, 20) << "not the finite step behind it";
  job.Step({.loss = 2.2, .grad_norm = kInf});
  const state::Incident incident = *job.FindOpen(Condition::kNonfinite);
  double steps = 0;
  for (const auto& item : incident.evidence) steps = item.name == "steps" ? item.value : steps;
  EXPECT_EQ(steps, 2);
  job.Steps(29, 2.2);
  EXPECT_TRUE(job.IsOpen(Condition::kNonfinite));
  job.Steps(1, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kNonfinite)) << "resolved after 30 clean steps";
  EXPECT_EQ(job.OpenedInAll(), 1u);
}

TEST(Nonfinite, NeedsNoBaseline) {
  JudgeScript job;
  job.Step({.nonfinite_rows = 1});
  EXPECT_TRUE(job.IsOpen(Condition::kNonfinite));
}

TEST(Nonfinite, SeesWhatWasHandedOverAsWellAsWhatTheKernelCounted) {
  JudgeScript good;
  good.Step({.loss = 2, .grad_norm = 1, .reported_loss = 2});
  EXPECT_FALSE(good.IsOpen(Condition::kNonfinite));
  JudgeScript grad;
  grad.Step({.loss = 2, .grad_norm = kNan});
  EXPECT_TRUE(grad.IsOpen(Condition::kNonfinite));
  JudgeScript reported;
  reported.Step({.loss = 2, .reported_loss = kNan});
  EXPECT_TRUE(reported.IsOpen(Condition::kNonfinite));
  JudgeScript rows;
  rows.Step({.loss = 2, .edit = [](std::uint32_t, lg_step_record& record) { record.nonfinite_grad_rows = 3; }});
  EXPECT_TRUE(rows.IsOpen(Condition::kNonfinite));
  JudgeScript absent;  // the bit is off: the word means nothing
  absent.Step({.loss = 2, .edit = [](std::uint32_t, lg_step_record& record) { record.grad_norm = kNan; }});
  EXPECT_FALSE(absent.IsOpen(Condition::kNonfinite));
}

TEST(Nonfinite, PersistsAtTheFifthStepInARowAndNotAtTheFourth) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Checkpoint(90, "/ckpt/90");
  job.Look();
  for (int i = 0; i < 4; ++i) job.Step({.nonfinite_rows = 1024});
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.Step({.nonfinite_rows = 1024});
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kRestart);
  EXPECT_EQ(verdict.reason_codes[0], "nonfinite");
  EXPECT_EQ(verdict.last_good_step, 99);
  EXPECT_EQ(verdict.resume_point->step, 90);
  EXPECT_EQ(verdict.skip->first, 100);
  EXPECT_EQ(verdict.skip->last, 104);
}

TEST(Nonfinite, TheRanksOfATensorParallelGroupCountTheSameRowsOnce) {
  const auto rows = [](const StepValues& values) {
    JudgeScript job(detect::DefaultPolicies().defaults, 2, 4);
    job.Step(values);
    const state::Incident incident = *job.FindOpen(Condition::kNonfinite);
    return std::pair(incident.evidence[0].value, incident.evidence[1].value);
  };
  EXPECT_EQ(rows({.loss = 2, .nonfinite_rows = 3}), std::pair(6.0, 0.0)) << "three of each of two groups";
  EXPECT_EQ(rows({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) { record.nonfinite_grad_rows = rank == 2 ? 5 : 0; }}),
            std::pair(0.0, 5.0))
      << "seen in the shard of a rank that is not the group's first";
}

TEST(Nonfinite, NamesTheRankThatIsAlone) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Step({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) {
              if (rank == 2) record.nonfinite_rows = 1;
            }});
  EXPECT_EQ(job.FindOpen(Condition::kNonfinite)->rank, 2u);
}

}  // namespace
}  // namespace lossgauge::testing
