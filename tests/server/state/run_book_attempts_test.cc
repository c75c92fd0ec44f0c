// Attempts: which one is the newest, when a job that was started again makes a new one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

// Run to 212, resume from 200 in a new attempt.
TEST_F(RunBookTest, AResumedJobIsANewAttemptAndItsReplayIsKept) {
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 212; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  book_->OnEvent(second.Event(LG_EVENT_RESUME, 200, now_));
  for (int step = 201; step <= 220; ++step) Step(second, step);
  Advance();
  const auto run = Run();
  EXPECT_EQ(Steps().size(), 213u + 20u);
  ASSERT_EQ(run->attempts.size(), 2u);
  EXPECT_EQ(run->attempts[0].attempt, "1");
  EXPECT_EQ(run->attempts[0].state, "lost");
  EXPECT_EQ(run->attempts[0].last_step, 212);
  EXPECT_EQ(run->attempts[1].first_step, 201);
  EXPECT_EQ(run->attempts[1].resumed_after_step, 200);
  EXPECT_EQ(run->attempts[1].state, "running");
  EXPECT_EQ(run->last_step->step, 220);
  EXPECT_EQ(run->last_step->sequence, 233u);
  EXPECT_EQ(run->totals.steps, 233u) << "replayed steps are work done";
  EXPECT_EQ(Snap()->self.late_records, 0u);
}

// A wall clock that was set back must not make the job that runs look old.
TEST_F(RunBookTest, AnAttemptThatStartsAfterTheLastOneDiedIsNewerWhateverItsClockSays) {
  Rank first("run", "1", 0, 1, 1, 1000 * kSecond);
  Add(first);
  Step(first, 0);
  Advance();
  Lose(first);
  Advance(10);
  Rank second("run", "2", 0, 1, 2, 5 * kSecond);
  Add(second);
  Step(second, 0);
  Advance();
  EXPECT_EQ(Run()->attempts.back().attempt, "2");
  EXPECT_EQ(Run()->last_step->attempt, "2");
  Lose(second);
  Advance();
  EXPECT_EQ(Run()->attempts.back().attempt, "2");
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "2");
}

TEST_F(RunBookTest, TwoLiveAttemptsAreBothShownToTheJudge) {
  Rank a("run", "1", 0, 1, 1, 100), b("run", "2", 0, 1, 2, 200);
  Add(a);
  Add(b);
  Advance();
  const Presence& presence = judges_.told("run")->presences.back();
  EXPECT_EQ(presence.newest_attempt, "2");
  EXPECT_EQ(presence.producers.size(), 2u);
}

TEST_F(RunBookTest, OfAttemptsThatAreAllOverTheOneThatLivedLastIsJudged) {
  Rank a("run", "1", 0, 1, 1, 100), b("run", "2", 0, 1, 2, 200);
  Add(a);
  Add(b);
  Step(a, 0);
  Step(b, 0);
  Advance();
  End(b);  // ends while the older one goes on
  Advance();
  book_->OnLiveness(a.Look(ProducerState::kLive, now_));
  Advance();
  Lose(a);
  Advance();
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "1");
}

TEST_F(RunBookTest, AnAttemptThatIsOverBeforeItWasSeenAliveIsJudgedAfterOneThatWas) {
  Rank first("run", "1", 0, 1, 1, 100), second("run", "2", 0, 1, 2, 200);
  Add(first);
  Step(first, 0);
  book_->OnLiveness(first.Look(ProducerState::kLive, now_));
  Advance();
  Lose(first);
  Advance(10);
  book_->OnProducer(second.info);
  Step(second, 0);
  Lose(second);
  Advance();
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "2");
}

TEST_F(RunBookTest, AJobStartedAgainUnderTheSameAttemptNameThatGoesBackIsANewAttempt) {
  Rank a("run", "1", 0, 2, 1, 100), b("run", "1", 1, 2, 2, 100);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Advance();
  Lose(a);
  Lose(b);
  Advance();
  Rank a2("run", "1", 0, 2, 3, 200), b2("run", "1", 1, 2, 4, 200);
  Add(a2);
  Add(b2);
  for (int step = 5; step < 8; ++step) {
    Step(a2, step);
    Step(b2, step);
  }
  Advance();
  ASSERT_EQ(Steps().size(), 13u);
  EXPECT_EQ(Steps()[10].attempt, "1#2");
  EXPECT_EQ(Steps()[10].step, 5);
  EXPECT_TRUE(Steps()[10].complete) << "both ranks' successors are of the new attempt";
  EXPECT_EQ(Snap()->self.late_records, 0u);
  const auto run = Run();
  ASSERT_EQ(run->attempts.size(), 2u);
  EXPECT_EQ(run->attempts[0].state, "lost");
  EXPECT_EQ(run->attempts[0].start_time_ns, 100);
  EXPECT_EQ(run->attempts[1].attempt, "1#2");
  EXPECT_EQ(run->attempts[1].state, "running");
  EXPECT_GT(run->attempts[1].start_time_ns, run->attempts[0].start_time_ns);
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "1#2");
  EXPECT_EQ(run->ranks[0].producer->attempt, "1#2");

  Commit();
  Restart();
  Add(a2);
  Add(b2);
  Step(a2, 8);
  Step(b2, 8);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/8"}) << "a restart of lossgauged keeps it";
  Lose(a2);
  Lose(b2);
  Rank a3("run", "1", 0, 2, 5, 300), b3("run", "1", 1, 2, 6, 300);
  Add(a3);
  Step(a3, 8);
  Add(b3);
  Step(b3, 8);
  Advance();
  EXPECT_EQ(StepNames().back(), "1#3/8");
  EXPECT_TRUE(Steps().back().complete);
}

TEST_F(RunBookTest, AResumeEventBeforeTheFirstStepBelongsToTheNewAttempt) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  Lose(a);
  Rank a2("run", "1", 0, 1, 2);
  Add(a2);
  book_->OnEvent(a2.Event(LG_EVENT_RESUME, 4, now_));
  Advance();
  ASSERT_EQ(Run()->attempts.size(), 2u);
  EXPECT_FALSE(Run()->attempts[0].resumed_after_step);
  EXPECT_EQ(Run()->attempts[1].resumed_after_step, 4);
}

TEST_F(RunBookTest, ASuccessorThatGoesOnStaysInItsAttempt) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  End(a);
  Rank a2("run", "1", 0, 1, 2);
  Add(a2);
  Step(a2, 10);
  Advance();
  EXPECT_EQ(StepNames().back(), "1/10");
  EXPECT_EQ(Run()->attempts.size(), 1u);
}

TEST_F(RunBookTest, ASuccessorThatARestartFindsBeforeItsFirstStepMayStillGoBack) {
  Rank a("run", "1", 0, 1, 1), a2("run", "1", 0, 1, 2);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  Lose(a);
  Add(a2);
  Advance();
  Commit();
  Restart();
  Add(a2);
  Step(a2, 3);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/3"});
}

TEST_F(RunBookTest, ASuccessorIsNotStuckBecauseAPeerWasNotYetKnownToBeDead) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Advance();
  Commit();
  Restart();  // what each rank had reached is not known any more
  Add(a);
  Add(b);
  Lose(a);
  Rank a2("run", "1", 0, 2, 3), b2("run", "1", 1, 2, 4);
  Add(a2);
  Step(a2, 5);
  Advance();
  Lose(b);
  Step(a2, 6);
  Add(b2);
  Step(b2, 6);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/6"});
}

TEST_F(RunBookTest, ARankThatIsOnlySlowMakesNoNewAttempt) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance(3);
  Advance();
  Commit();
  Restart();
  Add(a);
  Add(b);
  Step(b, 0);
  Advance();
  EXPECT_EQ(Run()->attempts.size(), 1u);
  EXPECT_EQ(Snap()->self.late_records, 1u);
}

}  // namespace
}  // namespace lossgauge::state
