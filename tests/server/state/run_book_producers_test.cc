// Which producers and runs are taken, and when they go again.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

// A second live producer of the same rank is refused; a dead one is succeeded.
TEST_F(RunBookTest, ASecondLiveProducerOfARankIsRefused) {
  Rank a("run", "1", 0, 1, 1), b("run", "1", 0, 1, 2);
  EXPECT_TRUE(Add(a));
  EXPECT_FALSE(Add(b));
  EXPECT_FALSE(Add(b));
  EXPECT_EQ(Snap()->self.runs_refused.at("duplicate_rank"), 1u);
  EXPECT_EQ(Run()->ranks.size(), 1u);
  Lose(a);
  Advance();
  EXPECT_TRUE(Add(b));
  Step(b, 0);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
}

TEST_F(RunBookTest, ARankWithAnotherWorldIsRefused) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 3, 2);
  EXPECT_TRUE(Add(a));
  EXPECT_FALSE(Add(b));
  EXPECT_EQ(Snap()->self.runs_refused.at("layout_mismatch"), 1u);
}

// Runs are bounded; ended and dead ones make room, living ones never do.
TEST_F(RunBookTest, RunsAreBoundedAndExcessIsCounted) {
  options_.max_runs = 3;
  MakeBook();
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint64_t i = 0; i < 10; ++i) {
    ranks.push_back(std::make_unique<Rank>("run" + std::to_string(i), "1", 0, 1, i + 1));
    EXPECT_EQ(Add(*ranks.back()), i < 3);
  }
  EXPECT_EQ(Snap()->runs.size(), 3u);
  EXPECT_EQ(Snap()->self.runs_refused.at("max_runs"), 7u);
  End(*ranks[1]);
  Advance();
  EXPECT_TRUE(Add(*ranks[5]));
  EXPECT_EQ(FindRun(*Snap(), "run1"), nullptr);
  EXPECT_NE(FindRun(*Snap(), "run0"), nullptr);
}

TEST_F(RunBookTest, AThousandRestartsUnderNewNamesKeepTheBookSmall) {
  options_.max_runs = 8;
  MakeBook();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Rank rank("run" + std::to_string(i), "1", 0, 1, i + 1);
    ASSERT_TRUE(Add(rank)) << i;
    Step(rank, 0);
    Advance();
    Lose(rank);
    Advance();
    if (i % 50 == 0) Commit();
  }
  EXPECT_EQ(Snap()->runs.size(), 8u);
  EXPECT_EQ(Snap()->self.runs_refused.size(), 0u);
}

// An ended run is marked at once, dropped after its linger, kept in the store.
TEST_F(RunBookTest, AnEndedRunIsMarkedAtOnceAndDroppedAfterItsLinger) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  End(a);
  Advance();
  EXPECT_TRUE(Run()->ended);
  EXPECT_FALSE(Run()->failed);
  EXPECT_EQ(Run()->phase, "ended");
  EXPECT_EQ(Run()->attempts[0].state, "ended");
  EXPECT_EQ(judges_.told("run")->calls, (std::vector<std::string>{"step 1/0", "event 6"})) << "the end comes after the last step";
  Advance(299);
  EXPECT_NE(Run(), nullptr);
  Advance(2);
  EXPECT_EQ(Run(), nullptr);
  Commit();
  EXPECT_TRUE(book_->FindCursor(a.info->segment).ended);
  const auto steps = store_->reader()->ReadSteps({.run = "run"});
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(steps->size(), 1u);
}

TEST_F(RunBookTest, AJobThatDeclaresItsFailureIsFailed) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  End(a, LG_CLOSE_FAILED);
  Advance();
  EXPECT_TRUE(Run()->ended);
  EXPECT_TRUE(Run()->failed);
  EXPECT_EQ(Run()->attempts[0].state, "failed");
}

TEST_F(RunBookTest, ARunThatComesBackAfterItWasDroppedGoesOnCounting) {
  Rank a("run", "1", 0, 1, 1, 100);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  End(a);
  Advance();
  Advance(400);
  Commit();
  ASSERT_EQ(Run(), nullptr);
  Rank b("run", "2", 0, 1, 2, 200);
  Add(b);
  Step(b, 10);
  Advance();
  EXPECT_EQ(Run()->totals.steps, 11u);
  EXPECT_EQ(Run()->last_step->sequence, 11u);
  EXPECT_EQ(Run()->attempts.size(), 2u);
}

TEST_F(RunBookTest, ARunThatDiedIsDroppedMuchLater) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Lose(a);
  Advance();
  EXPECT_FALSE(Run()->ended);
  Advance(3500);
  EXPECT_NE(Run(), nullptr);
  Advance(200);
  EXPECT_EQ(Run(), nullptr);
}

TEST_F(RunBookTest, AnUnreadableDirectoryConcernsOnlyTheRunsInIt) {
  Rank a("run", "1", 0, 1, 1), b("other", "1", 0, 1, 2);
  Add(a);
  Add(b);
  now_ += kSecond;
  book_->Advance(now_, [&](const ProducerInfo& producer) { return producer.run != "other"; });
  EXPECT_TRUE(judges_.told("run")->presences.back().source_reachable);
  EXPECT_FALSE(judges_.told("other")->presences.back().source_reachable);
}

TEST_F(RunBookTest, GoneSegmentsOfARankThatHasANewerOneAreLetGo) {
  for (std::uint64_t i = 1; i <= 20; ++i) {
    Rank rank("run", "1", 0, 1, i);
    Add(rank);
    Step(rank, static_cast<std::int64_t>(i));
    Advance();
    Lose(rank);
    book_->OnProducerGone(rank.info->segment, now_);
  }
  Advance();
  EXPECT_EQ(Steps().size(), 20u);
  EXPECT_EQ(Run()->attempts.size(), 1u);
  EXPECT_EQ(book_->SlotCount("run"), 1u);
}

}  // namespace
}  // namespace lossgauge::state
