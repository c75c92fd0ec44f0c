// The verdict over restarts of the job: the same failure again, no progress, steps that go back, and where to resume from.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/detect/judge_fixture.h"
#include "tests/server/detect/verdict_checks.h"

namespace lossgauge::testing {
namespace {

using state::LivenessReport;
using state::ProducerState;

void Crash(std::uint32_t, LivenessReport& report) { report.producer_state = ProducerState::kLost; }

TEST(Verdict, TheSameFailureAtTheSameStepAfterARestartHalts) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Look(Crash);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
  job.judge->OnAction({Action::kRestart, "scheduler", "", "1", job.now_ns});
  EXPECT_NE(job.Verdict().reason.find("'scheduler' reported a restart"), std::string::npos);
  job.NewAttempt("2", 150);
  job.Steps(50, 2.2);
  job.Look(Crash);
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kHalt);
  EXPECT_EQ(Code(verdict), "repeated_failure");
  ExpectComplete(verdict);
}

TEST(Verdict, TheSameFailureIsKnownThoughTheLastStepsAreReadAfterIt) {
  const auto crash_at_199 = [](std::uint32_t rank, LivenessReport& report) {
    Crash(rank, report);
    report.published_step = 199;
  };
  for (const int read : {0, 20, 50}) {
    JudgeScript job;
    job.Steps(read, 2.2);
    job.Look(crash_at_199);
    job.Steps(200 - read, 2.2);
    job.Look(crash_at_199);
    EXPECT_EQ(job.Verdict().action, Action::kRestart) << job.Verdict().reason;
    job.NewAttempt("2", 150);
    job.Steps(50, 2.2);
    job.Look(crash_at_199);
    EXPECT_EQ(Code(job.Verdict()), "repeated_failure") << read << " steps were read before the first loss was seen: " << job.Verdict().reason;
  }
}

TEST(Verdict, AStepThatALostProducerCannotHaveReachedIsNotBelieved) {
  for (const std::int64_t step : {std::int64_t{-7}, INT64_MIN, INT64_MAX}) {
    JudgeScript job;
    job.Steps(200, 2.2);
    job.Look([step](std::uint32_t rank, LivenessReport& report) {
      Crash(rank, report);
      report.published_step = step;
    });
    EXPECT_EQ(job.FindOpen(Condition::kProducerLost)->onset_step, 199);
    job.Restart();
    EXPECT_EQ(job.Verdict().action, Action::kRestart);
  }
}

TEST(Verdict, AnotherFailureFurtherOnIsAnotherRestart) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Look(Crash);
  job.NewAttempt("2", 150);
  job.Steps(150, 2.2);
  job.Look(Crash);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
}

TEST(Verdict, ThreeAttemptsWithoutProgressHalt) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Look(Crash);
  int attempt = 1;
  for (const int steps : {20, 40}) {  // each dies earlier than the first, at different steps
    job.NewAttempt(std::to_string(++attempt), 100);
    job.Steps(steps, 2.2);
    job.Look(Crash);
    EXPECT_EQ(job.Verdict().action, Action::kRestart);
  }
  job.NewAttempt("4", 100);
  job.Steps(60, 2.2);
  job.Look(Crash);
  EXPECT_EQ(job.Verdict().action, Action::kHalt);
  EXPECT_EQ(Code(job.Verdict()), "no_progress");
}

// E1: the judge's side of a resume.
TEST(Verdict, AResumeThatGoesBackInStepsIsNoSpikeAndNotBlind) {
  JudgeScript job;
  job.Steps(213, 2.2);
  job.NewAttempt("2", 201);
  job.Steps(1, 2.3);  // a little above: another batch
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << job.Verdict().reason;
  EXPECT_EQ(job.Verdict().attempt, "2");
  job.Steps(2, 4.5);
  EXPECT_TRUE(job.IsOpen(Condition::kLossSpike)) << "the baseline of the attempt before still stands";
}

TEST(Verdict, AStepOfAnOlderAttemptChangesNothing) {
  JudgeScript job;
  job.Steps(100, 2.2);
  const StepValues bad{.nonfinite_rows = 1024};
  const state::JoinedStep late = job.MakeStep(bad);
  job.Wait(1);
  job.NewAttempt("2", 50);
  job.Steps(5, 2.2);
  job.judge->OnStep(late);
  EXPECT_FALSE(job.IsOpen(Condition::kNonfinite));
  EXPECT_EQ(job.Verdict().attempt, "2");
}

TEST(Verdict, AFreshStartUnderTheSameNameWarmsUpAnew) {
  JudgeScript job;
  job.Steps(500, 2.2);
  job.NewAttempt("2", 0);
  job.Steps(10, 11);
  job.Look();
  EXPECT_EQ(Code(job.Verdict()), "warming");
  EXPECT_FALSE(job.IsOpen(Condition::kLossSpike));
}

TEST(Verdict, CheckpointsOfACourseThatWasLeftAreForgotten) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Checkpoint(100, "/ckpt/100");
  job.Checkpoint(180, "/ckpt/180");
  job.NewAttempt("2", 101);
  job.Steps(120, 2.2);
  job.Look(Crash);
  ASSERT_TRUE(job.Verdict().resume_point);
  EXPECT_EQ(job.Verdict().resume_point->step, 100);
}

// A job that goes on from a checkpoint saved while its loss was NaN carries the NaN with it, whatever the attempt is called.
TEST(Verdict, ACheckpointSavedInTheDamageIsNeverTheOneToResumeFrom) {
  JudgeScript job;
  job.Steps(70, 2.2);
  job.Checkpoint(59, "/ckpt/59");
  for (int i = 0; i < 100; ++i) job.Step({.nonfinite_rows = 1024});
  job.Checkpoint(159, "/ckpt/159");
  job.Look(Crash);
  ASSERT_TRUE(job.Verdict().resume_point);
  EXPECT_EQ(job.Verdict().resume_point->step, 59);
  std::int64_t next = 160;
  for (const char* attempt : {"2", "3"}) {
    job.NewAttempt(attempt, next);
    for (int i = 0; i < 60; ++i) job.Step({.nonfinite_rows = 1024});
    job.Checkpoint(next + 40, "/ckpt/later");
    job.Restart();
    job.Look(Crash);
    ASSERT_TRUE(job.Verdict().resume_point) << attempt;
    EXPECT_EQ(job.Verdict().resume_point->step, 59) << attempt;
    EXPECT_EQ(job.Verdict().last_good_step, 69) << attempt;
    next += 41;
  }
}

TEST(Verdict, ACleanEndInTheDamageLeavesTheLastGoodStepWhereItWas) {
  JudgeScript job;
  job.Steps(70, 2.2);
  for (int i = 0; i < 100; ++i) job.Step({.nonfinite_rows = 1024});
  job.Look([](std::uint32_t, state::LivenessReport& report) {
    report.producer_state = state::ProducerState::kEnded;
    report.closed = LG_CLOSE_FINISHED;
  });
  EXPECT_EQ(Code(job.Verdict()), "ended");
  EXPECT_EQ(job.Verdict().last_good_step, 69);
}

TEST(Verdict, DamageIsForgottenByAStartBeforeItAndByThirtyGoodSteps) {
  for (const std::int64_t start : {60, 160}) {
    JudgeScript job;
    job.Steps(70, 2.2);
    for (int i = 0; i < 100; ++i) job.Step({.nonfinite_rows = 1024});
    job.Look(Crash);
    job.NewAttempt("2", start);
    job.Steps(40, 2.2);
    EXPECT_EQ(job.Verdict().last_good_step, start + 39) << "from " << start;
  }
}

TEST(Verdict, AFreshStartIsNotMeasuredByTheLogitsOfALateStage) {
  JudgeScript job;
  const auto steps = [&job](int count, double from, double to) {
    for (int i = 0; i < count; ++i) job.Step({.loss = 2.2, .grad_norm = 0.2, .max_abs_logit = from + (to - from) * i / count});
  };
  steps(500, 20, 5);  // logits that settle
  job.NewAttempt("2", 0);
  steps(60, 20, 18);
  EXPECT_FALSE(job.IsOpen(Condition::kLogitBlowup));
}

}  // namespace
}  // namespace lossgauge::testing
