// The verdict of each situation, and that no silence is ever called healthy.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/detect/judge_fixture.h"
#include "tests/server/detect/verdict_checks.h"

namespace lossgauge::testing {
namespace {

using state::LivenessReport;
using state::ProducerState;

TEST(Verdict, NothingSeenIsUnknownNoData) {
  JudgeScript job;
  EXPECT_EQ(job.Verdict().action, Action::kUnknown);
  EXPECT_EQ(Code(job.Verdict()), "no_data");
  job.Look();  // the ring is there, and empty
  EXPECT_EQ(job.Verdict().action, Action::kUnknown);
  EXPECT_EQ(Code(job.Verdict()), "no_data");
  ExpectComplete(job.Verdict());
}

TEST(Verdict, ASidecarJustStartedIsUnknownWarmingUntilTheBaselineStands) {
  JudgeScript job;
  job.Steps(31, 2.2);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kUnknown);
  EXPECT_EQ(Code(job.Verdict()), "warming");
  ExpectComplete(job.Verdict());
  job.Steps(1, 2.2);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  ExpectComplete(job.Verdict());
}

TEST(Verdict, AWarmingRunThatIsBrokenIsWatchedNotUnknown) {
  JudgeScript job;
  job.Steps(3, 2.2);
  job.Look();
  job.Step({.nonfinite_rows = 4});
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
}

TEST(Verdict, AnHourAfterTheLastWordIsUnknownStale) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Look();
  job.Wait(59);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  job.Wait(3541);
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kUnknown);
  EXPECT_EQ(Code(verdict), "stale");
  EXPECT_TRUE(verdict.since_ns);
  ExpectComplete(verdict);
}

TEST(Verdict, SilenceIsNeverContinue) {
  JudgeScript job;
  job.Steps(100, 2.2);
  for (int i = 0; i < 1000; ++i) {
    job.Wait(7);
    if (i % 3 == 0) job.Look();
    if (job.now_ns - 1'700'000'100 * kSecond > 60 * kSecond) {
      ASSERT_NE(job.Verdict().action, Action::kContinue) << i;
    }
  }
}

TEST(Verdict, AnUnreadableSourceIsUnknownAndClosesNothing) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Look();
  job.presence.source_reachable = false;
  job.presence.now_ns = job.now_ns;
  job.judge->OnPresence(job.presence);
  EXPECT_EQ(job.Verdict().action, Action::kUnknown);
  EXPECT_EQ(Code(job.Verdict()), "unreachable");
  job.presence.source_reachable = true;
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

// Of a job some nodes may be silent while the others are well: whatever those say, it is not all.
TEST(Verdict, AJobOfWhichAPartIsNotHeardIsNeverContinued) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Steps(200, 2.2);
  job.Look();
  ASSERT_EQ(job.Verdict().action, Action::kContinue);
  job.presence.unreachable_ranks = 2;
  job.presence.first_unreachable_rank = 2;
  job.judge->OnPresence(job.presence);
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kWatch);
  EXPECT_EQ(Code(verdict), "unreachable");
  EXPECT_NE(verdict.reason.find("2 ranks, the first of them rank 2"), std::string::npos) << verdict.reason;
  for (auto& report : job.presence.producers) {
    report.producer_state = state::ProducerState::kEnded;
    report.closed = LG_CLOSE_FINISHED;
  }
  job.judge->OnPresence(job.presence);
  EXPECT_NE(Code(job.Verdict()), "ended") << "the others may go on";
  job.presence.unreachable_ranks = 0;
  job.judge->OnPresence(job.presence);
  EXPECT_EQ(Code(job.Verdict()), "ended");
}

TEST(Verdict, AMissingRankIsWatchedAsIncomplete) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Steps(100, 2.2);
  job.Look();
  job.Step({.loss = 2.2, .missing_ranks = {3}});
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kWatch);
  EXPECT_EQ(Code(verdict), "rank_missing");
  EXPECT_NE(verdict.reason.find("incomplete"), std::string::npos);
  EXPECT_EQ(verdict.rank_at_fault, 3u);
  ExpectComplete(verdict);
  job.Steps(3, 2.2);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

TEST(Verdict, ANanBurstOfOneStepIsWatchedAndPasses) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Look();
  job.Step({.nonfinite_rows = 1024});
  for (int i = 0; i < 29; ++i) {
    job.Steps(1, 2.2);
    EXPECT_EQ(job.Verdict().action, Action::kWatch);
  }
  job.Steps(1, 2.2);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

TEST(Verdict, AnOverflowNowAndThenHidesNoDivergence) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Checkpoint(150, "/ckpt/150");
  job.Look();
  for (int i = 0; i < 130; ++i) {
    if (i % 10 == 0) {
      job.Step({.loss = 9, .edit = [](std::uint32_t, lg_step_record& record) { record.nonfinite_grad_rows = 3; }});
    } else {
      job.Steps(1, 9);
    }
  }
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kRestart) << verdict.reason;
  EXPECT_EQ(Code(verdict), "divergence");
}

TEST(Verdict, AnOverflowNowAndThenHidesNoBrokenReduction) {
  JudgeScript job(detect::DefaultPolicies().defaults, 1, 2);
  job.Steps(100, 2.2);
  job.Look();
  for (int i = 0; i < 8; ++i) {
    job.Step({.loss = 2.2, .edit = [i](std::uint32_t rank, lg_step_record& record) {
                if (i == 0) record.nonfinite_grad_rows = 3;
                if (rank == 1) record.nll_sum.lo += 1;
              }});
  }
  EXPECT_EQ(job.Verdict().action, Action::kHalt) << job.Verdict().reason;
}

// The wall clock was set back between two lives of the sidecar: what was restored lies in the future.
TEST(Verdict, ATimeInTheFutureIsNeverFresh) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  job.Restart();
  job.Wait(-3600);
  EXPECT_EQ(job.Verdict().action, Action::kUnknown) << "before the first look";
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kUnknown) << "the processes are alive, but no step of now is known";
  EXPECT_EQ(Code(job.Verdict()), "stale");
  ExpectComplete(job.Verdict());
  job.Restart();
  EXPECT_EQ(job.Verdict().action, Action::kUnknown) << "and once more";
  job.Steps(1, 2.2);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  job.WaitLooking(100);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_EQ(Code(job.Verdict()), "stall");
}

TEST(Verdict, AStallIsSeenThoughTheClockWasSetBackBehindTheLastStep) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.WaitLooking(20, [](std::uint32_t, LivenessReport& report) { report.phase = LG_PHASE_EVALUATION; });
  job.Wait(-3600);
  job.WaitLooking(100);
  EXPECT_TRUE(job.IsOpen(Condition::kStall));
  job.WaitLooking(900);
  EXPECT_EQ(job.Verdict().action, Action::kRestart) << job.Verdict().reason;
}

TEST(Verdict, TheSameDeclaredFailureAtTheSameStepHaltsAndAnotherDoesNot) {
  const auto fail = [](std::uint32_t, LivenessReport& report) {
    report.producer_state = ProducerState::kEnded;
    report.closed = LG_CLOSE_FAILED;
  };
  for (const int steps : {50, 150}) {  // of the second attempt, which begins at step 150
    JudgeScript job;
    job.Steps(200, 2.2);
    job.Look(fail);
    EXPECT_EQ(job.Verdict().action, Action::kRestart);
    job.NewAttempt("2", 150);
    job.Steps(1, 2.2);
    job.Restart();
    job.Steps(steps - 1, 2.2);
    job.Look(fail);
    EXPECT_EQ(job.Verdict().action, steps == 50 ? Action::kHalt : Action::kRestart) << job.Verdict().reason;
    EXPECT_EQ(Code(job.Verdict()), steps == 50 ? "repeated_failure" : "failed");
  }
}

TEST(Verdict, ATenMinuteEvaluationIsWatched) {
  JudgeScript job;
  job.Steps(100, 2.2);
  double age = 0;
  for (; age < 600; age += 30) {
    job.Wait(30);
    job.Look([&](std::uint32_t, LivenessReport& report) {
      report.phase = LG_PHASE_EVALUATION;
      report.phase_age_ns = static_cast<std::int64_t>(age * 1e9);
    });
    EXPECT_EQ(job.Verdict().action, Action::kWatch);
    ExpectComplete(job.Verdict());
  }
}

TEST(Verdict, ACleanEndIsUnknownEndedAndADeclaredFailureARestart) {
  for (const bool failed : {false, true}) {
    JudgeScript job;
    job.Steps(100, 2.2);
    job.Checkpoint(50, "/ckpt/50");
    job.Look([&](std::uint32_t, LivenessReport& report) {
      report.producer_state = ProducerState::kEnded;
      report.closed = failed ? LG_CLOSE_FAILED : LG_CLOSE_FINISHED;
    });
    job.Wait(100);
    const state::Verdict verdict = job.Verdict();
    EXPECT_EQ(verdict.action, failed ? Action::kRestart : Action::kUnknown);
    EXPECT_EQ(Code(verdict), failed ? "failed" : "ended");
    ExpectComplete(verdict);
  }
}

TEST(Verdict, AModeSetByAPersonStandsAboveThePolicyAndOverARestart) {
  JudgeScript job;
  job.Steps(50, 2.2);
  job.judge->SetMode("shadow");
  EXPECT_EQ(job.Verdict().mode, "shadow");
  job.Restart();
  EXPECT_EQ(job.Verdict().mode, "shadow");
  EXPECT_EQ(job.Verdict().policy_version, job.policy.version) << "thresholds are what they were";
  job.judge->SetMode("");
  EXPECT_EQ(job.Verdict().mode, "advise");
}

TEST(Verdict, ShadowModeSaysSo) {
  detect::Policy policy = detect::DefaultPolicies().defaults;
  policy.mode = "shadow";
  JudgeScript job(policy);
  EXPECT_EQ(job.Verdict().mode, "shadow");
}

}  // namespace
}  // namespace lossgauge::testing
