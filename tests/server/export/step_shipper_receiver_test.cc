// Receivers that refuse, fail, are busy or are gone, and a history that cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/export/step_shipper_fixture.h"

namespace lossgauge::export_ {
namespace {

using state::ShipDrop;
using state::ShipResult;
using testing::kSecond;
using ::testing::ElementsAre;

TEST_F(StepShipperTest, RefusedIsNeverTriedAgainAndCountedByItsReason) {
  Steps("r", 1, 3);
  Show("r");
  sink_.answers.push_back(Answer(ShipResult::kRefused, ShipDrop::kOutOfOrder));
  Drain();
  Steps("r", 4, 4);
  Show("r");
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(4));
  EXPECT_EQ(counters_.Dropped(ShipDrop::kOutOfOrder), 3u);
  EXPECT_EQ(sink_.sends, 2);
}

TEST_F(StepShipperTest, ARefusedRunHarmsNoOther) {
  Steps("a", 1, 2);
  Steps("b", 1, 2);
  Show("a");
  Show("b");
  sink_.answers_of["a"] = Answer(ShipResult::kRefused);
  Drain();
  EXPECT_THAT(Taken("b"), ElementsAre(1, 2));
  EXPECT_EQ(counters_.Dropped(ShipDrop::kRefused), 2u);
}

TEST_F(StepShipperTest, ABatchThatTheReceiverFailsOnIsTriedABoundedNumberOfTimesWhileOthersGoOn) {
  options_.max_tries = 3;
  Restart();
  Steps("a", 1, 2);
  Steps("b", 1, 2);
  Show("a");
  Show("b");
  sink_.answers_of["a"] = Answer(ShipResult::kFailed);
  for (int i = 0; i < 10; ++i) {
    Drain();
    now_ns_ += 10 * kSecond;
  }
  EXPECT_THAT(Taken("b"), ElementsAre(1, 2));
  EXPECT_EQ(counters_.Requests(ShipResult::kFailed), 3u);
  EXPECT_EQ(counters_.Dropped(ShipDrop::kServerError), 2u);
}

TEST_F(StepShipperTest, ABusyReceiverIsLeftAloneForAsLongAsItAsks) {
  Steps("r", 1, 2);
  Show("r");
  sink_.answers.push_back(Answer(ShipResult::kBusy, ShipDrop::kRefused, 60 * kSecond));
  Drain();
  now_ns_ += 59 * kSecond;
  Drain();
  EXPECT_EQ(sink_.sends, 1);
  now_ns_ += 2 * kSecond;
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2));
}

TEST_F(StepShipperTest, ARetryAfterOfAYearIsFiveMinutes) {
  Steps("r", 1, 2);
  Show("r");
  sink_.answers.push_back(Answer(ShipResult::kBusy, ShipDrop::kRefused, std::int64_t{365} * 86'400 * kSecond));
  Drain();
  now_ns_ += 301 * kSecond;
  Drain();
  EXPECT_EQ(sink_.sends, 2);
}

TEST_F(StepShipperTest, PausesGrowWhileNobodyAnswers) {
  Steps("r", 1, 2);
  Show("r");
  for (int i = 0; i < 1000; ++i) sink_.answers.push_back(Answer(ShipResult::kUnreachable));
  for (int i = 0; i < 600; ++i) {
    Drain();
    now_ns_ += kSecond / 2;
  }
  // 0.5 + 1 + 2 + 4 + 8 + 16 s, then every 30 s of 300 s.
  EXPECT_GE(sink_.sends, 14);
  EXPECT_LE(sink_.sends, 17);
}

TEST_F(StepShipperTest, AnOutageLosesNothingUntilStepsAreTooOld) {
  Steps("r", 1, 2);
  Show("r");
  for (int i = 0; i < 3; ++i) sink_.answers.push_back(Answer(ShipResult::kUnreachable));
  Drain();
  now_ns_ += 3000 * kSecond;
  Steps("r", 3, 5);
  Show("r");
  Drain();
  now_ns_ += 1000 * kSecond;  // the first two are now older than an hour
  Drain();
  now_ns_ += 100 * kSecond;
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(3, 4, 5));
  EXPECT_EQ(counters_.Dropped(ShipDrop::kTooOld), 2u);
}

TEST_F(StepShipperTest, TheOldestGoWhenTooManyWait) {
  options_.max_pending_steps = 10;
  Restart();
  sink_.answers.push_back(Answer(ShipResult::kUnreachable));
  Steps("r", 1, 2);
  Show("r");
  Drain();
  Steps("r", 3, 30);
  Show("r");
  now_ns_ += 60 * kSecond;
  Drain();
  EXPECT_EQ(Taken("r").size(), 10u);
  EXPECT_EQ(Taken("r").front(), 21u);
  EXPECT_EQ(counters_.Dropped(ShipDrop::kQueueFull), 20u);
}

TEST_F(StepShipperTest, AHistoryThatCannotBeReadIsTriedAgain) {
  Steps("r", 1, 20);
  history_->broken = true;
  Show("r", 15);
  Drain();
  history_->broken = false;
  now_ns_ += kSecond;
  Drain();
  EXPECT_EQ(Taken("r").size(), 20u);
}

}  // namespace
}  // namespace lossgauge::export_
