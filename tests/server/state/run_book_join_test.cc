// Which ranks a step waits for, and which steps are believed.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

TEST_F(RunBookTest, AStepIsJoinedAsSoonAsAllRanksHaveDeliveredIt) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance();
  EXPECT_TRUE(Steps().empty());
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
  EXPECT_EQ(Steps()[0].ranks, 2u);
  EXPECT_EQ(Steps()[0].sequence, 1u);
}

TEST_F(RunBookTest, AStepLeavesWithoutAMissingRankAfterTheTimeout) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance(1.99);
  EXPECT_TRUE(Steps().empty());
  Advance(0.02);
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_FALSE(Steps()[0].complete);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
  Step(b, 0);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Snap()->self.late_records, 1u);
  EXPECT_EQ(Run()->ranks[1].totals.steps, 1u) << "late, but its totals count";
}

TEST_F(RunBookTest, ARankThatWentPastAStepIsNotWaitedFor) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Step(a, 1);
  Step(b, 1);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1"}));
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
  EXPECT_TRUE(Steps()[1].complete);
}

TEST_F(RunBookTest, ADeadAndDrainedRankIsNotWaitedForButMissed) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Lose(b);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(RunBookTest, StepsLeaveInRisingOrder) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 5; ++step) Step(a, step);
  for (int step = 0; step < 5; ++step) Step(b, step);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1", "1/2", "1/3", "1/4"}));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(Steps()[i].sequence, i + 1);
}

TEST_F(RunBookTest, WhileTheWorldMayStillAppearNobodyIsCountedAbsent) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance(0.5);
  EXPECT_TRUE(Steps().empty());
  Add(b);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].ranks, 2u);
}

TEST_F(RunBookTest, ANodeThatSeesAPartOfTheWorldDoesNotWaitForTheRestForEver) {
  Rank a("run", "1", 0, 16, 1), b("run", "1", 1, 16, 2);
  Add(a);
  Add(b);
  Advance(2.1);
  Step(a, 0);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete) << "complete as far as this node goes";
}

TEST_F(RunBookTest, PipelineRanksWithoutALossAreNotExpected) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  const_cast<ProducerInfo*>(b.info.get())->layout.has_loss = 0;
  Add(a);
  Add(b);
  Step(a, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
}

TEST_F(RunBookTest, ADuplicateIsCountedAndChangesNothing) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 3);
  Advance();
  Step(a, 3);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Snap()->self.duplicate_records, 1u);
  EXPECT_EQ(Run()->ranks[0].totals.steps, 2u) << "the producer's own totals say that it did the work";
}

// One record with step 1e9 must not hide the steps that follow.
TEST_F(RunBookTest, AnAbsurdJumpIsFlaggedAndNotAdopted) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 212);
  Step(a, 1'000'000'000);
  Step(a, 213);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/212", "1/213"}));
  EXPECT_EQ(Snap()->self.absurd_steps, 1u);
  EXPECT_EQ(Run()->ranks[0].totals.steps, 3u);
}

TEST_F(RunBookTest, AJobThatReallyWentThereIsFollowed) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 1);
  for (int i = 0; i < 5; ++i) Step(a, 1'000'000'000 + i);
  Advance();
  EXPECT_EQ(Snap()->self.absurd_steps, 2u);
  EXPECT_EQ(Run()->last_step->step, 1'000'000'004);
}

TEST_F(RunBookTest, MemoryOfWaitingRecordsIsBounded) {
  options_.run.join.max_pending = 50;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 200; ++step) Step(a, step);
  Advance();
  EXPECT_EQ(Steps().size(), 150u);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(RunBookTest, EvaluationBlocksNeverPolluteTheTrainingStep) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  RankSample eval = a.Step(1, now_, 1000);
  eval.record.block = 1;
  book_->OnSample(eval);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Run()->totals.finite_tokens, 10u);
  EXPECT_EQ(Run()->totals.records_read, 2u);
}

TEST_F(RunBookTest, StepSecondsAreAbsentAcrossAGap) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Step(a, 1);
  Step(a, 5);
  Step(a, 6);
  Advance();
  EXPECT_FALSE(Steps()[0].step_seconds);
  EXPECT_DOUBLE_EQ(*Steps()[1].step_seconds, 0.25);
  EXPECT_FALSE(Steps()[2].step_seconds);
  EXPECT_DOUBLE_EQ(*Steps()[3].step_seconds, 0.25);
}

TEST_F(RunBookTest, AnAbsurdFirstRecordDoesNotMakeEveryRealStepLate) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 1'000'000'000);
  Advance();
  for (int step = 0; step < 5; ++step) Step(a, step);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1", "1/2", "1/3", "1/4"}));
  EXPECT_EQ(Snap()->self.absurd_steps, 1u);
  EXPECT_EQ(Snap()->self.late_records, 0u);
}

TEST_F(RunBookTest, AJobThatSaysThatItResumesFarOutIsBelieved) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  book_->OnEvent(a.Event(LG_EVENT_RESUME, 5'000'000, now_));
  Step(a, 5'000'001);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1/5000001"});
}

}  // namespace
}  // namespace lossgauge::state
