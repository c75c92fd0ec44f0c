// An attempt that goes back in its steps is compared with those before, as far as memory and history reach.
#include <gtest/gtest.h>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

TEST_F(RunBookTest, AnAttemptIsComparedWithTheOneBeforeOverTheStepsThatBothWentThrough) {
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 212; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  EXPECT_FALSE(Run()->attempts[0].comparison);
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 201; step <= 205; ++step) Step(second, step);
  Advance();
  Commit();
  Restart();  // neither what was found nor what it is compared with is lost
  Add(second);
  for (int step = 206; step <= 220; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->with_attempt, "1");
  EXPECT_EQ(comparison->first_step, 201);
  EXPECT_EQ(comparison->last_step, 212);
  EXPECT_EQ(comparison->steps, 12u);
  EXPECT_EQ(comparison->loss, LossMatch::kEqual);
}

// What memory let go of is read from the history; and what a restart forgot, from both.
TEST_F(RunBookTest, AResumeFromFurtherBackThanMemoryIsComparedWithTheHistoryAlsoOverARestart) {
  options_.max_recent_steps = 128;
  MakeBook();
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 999; ++step) Step(first, step);
  Advance();
  Commit();
  Lose(first);
  Advance();
  Snap();  // lets go of old steps
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 500; step <= 510; ++step) Step(second, step);
  Advance();
  Commit();
  Restart();
  Add(second);
  for (int step = 511; step <= 1100; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->with_attempt, "1");
  EXPECT_EQ(comparison->first_step, 500);
  EXPECT_EQ(comparison->last_step, 999);
  EXPECT_EQ(comparison->steps, 500u);
  EXPECT_EQ(comparison->not_compared, 0u) << Describe(*comparison);
  EXPECT_EQ(comparison->loss, LossMatch::kEqual);
}

TEST_F(RunBookTest, WhatIsNeitherInMemoryNorInTheHistoryIsSaidNotToBeCompared) {
  options_.max_recent_steps = 128;
  MakeBook();
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 999; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  Snap();
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 500; step <= 510; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->loss, LossMatch::kUnknown);
  EXPECT_EQ(comparison->not_compared, 11u);
  EXPECT_EQ(Describe(*comparison), "steps 500 to 510 could not be compared with attempt '1' (no longer kept step by step, or without a finite loss)");
}

}  // namespace
}  // namespace lossgauge::state
