// Which steps are sent, with which time, and that none is sent twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/server/export/step_shipper_fixture.h"

namespace lossgauge::export_ {
namespace {

using state::ShipDrop;
using state::ShipResult;
using testing::kNow;
using testing::kSecond;
using ::testing::ElementsAre;

TEST_F(StepShipperTest, EachStepIsSentOnceAtItsOwnTime) {
  Steps("r", 1, 3);
  Show("r");
  Drain();
  Steps("r", 4, 5);
  Show("r");
  Drain();
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(sink_.taken["r"][0].timestamp_ms, all_["r"][0]->publish_time_ns / 1'000'000);
  EXPECT_EQ(counters_.sent_steps, 5u);
  EXPECT_EQ(counters_.pending_steps, 0u);
}

TEST_F(StepShipperTest, ARestartSendsNothingTwice) {
  Steps("r", 1, 3);
  Show("r");
  Drain();
  Restart();
  Drain();
  Steps("r", 4, 4);
  Show("r");
  Drain();
  EXPECT_EQ(sink_.seen.size(), 4u);
}

TEST_F(StepShipperTest, AfterADeathWithoutAnAnswerExactlyTheSameIsSentAgainAndNothingNewWithIt) {
  Steps("r", 1, 3);
  Show("r");
  sink_.answers.push_back(Answer(ShipResult::kUnreachable));
  Drain();
  const auto first = sink_.seen;
  ASSERT_EQ(first.size(), 3u);
  now_ns_ += 10 * kSecond;
  Steps("r", 4, 6);
  Show("r");
  Restart();
  sink_.seen.clear();
  shipper_->RunRound();
  EXPECT_EQ(sink_.seen, first);
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(StepShipperTest, WhatTheSnapshotHasLetGoComesFromHistory) {
  options_.backlog.max_steps = 7;
  Restart();
  Steps("r", 1, 100);
  Show("r", 90);
  Drain();
  ASSERT_EQ(Taken("r").size(), 100u);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(Taken("r")[i], i + 1);
  for (const std::size_t size : sink_.last_sizes) EXPECT_LE(size, 7u);
}

TEST_F(StepShipperTest, ARunThatLeftThePagesIsSentToItsEndAlsoAfterARestart) {
  options_.backlog.max_steps = 2;
  Restart();
  Steps("r", 1, 9);
  Show("r");
  shipper_->RunRound();
  shown_.clear();
  Publish();
  shipper_->RunRound();
  Restart();
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(StepShipperTest, StepsThatNobodyHasAreCountedAndPassed) {
  Steps("r", 1, 20);
  history_->gone = {3, 4, 11};
  Show("r", 15);
  Drain();
  EXPECT_EQ(Taken("r").size(), 17u);
  EXPECT_EQ(counters_.Dropped(ShipDrop::kMissing), 3u);
}

TEST_F(StepShipperTest, HistoryFromBeforeItWasSwitchedOnIsNotDroppedButLeftOut) {
  Steps("r", 1, 5000);  // 83 minutes, of which receivers take 60
  Show("r", 4990);
  Drain();
  EXPECT_EQ(Taken("r").front(), 1400u);
  EXPECT_EQ(Taken("r").back(), 5000u);
  EXPECT_EQ(counters_.Dropped(ShipDrop::kTooOld), 0u);
}

TEST_F(StepShipperTest, TimestampsOfARunRiseStrictlyAndNoneIsLaterThanNow) {
  Steps("r", 1, 50, 0);  // a ring that was drained at once
  Show("r");
  Drain();
  EXPECT_LT(Taken("r").size(), 50u);  // the others' milliseconds have not come yet
  now_ns_ += kSecond;
  Drain();
  ASSERT_EQ(Taken("r").size(), 50u);
  for (std::size_t i = 1; i < 50; ++i) EXPECT_GT(sink_.taken["r"][i].timestamp_ms, sink_.taken["r"][i - 1].timestamp_ms);
  EXPECT_GT(counters_.moved_timestamps, 0u);
}

TEST_F(StepShipperTest, AProducersClockIsBelievedWithinReasonOnly) {
  bool moved = false;
  state::StepSummary step;
  step.receive_time_ns = kNow;
  const std::int64_t hour = 3600 * kSecond;
  const auto at = [&](state::TimeNs said, std::int64_t last_ms = 0, state::TimeNs now = kNow) {
    step.publish_time_ns = said;
    return TimestampMs(step, last_ms, hour, now, &moved);
  };
  EXPECT_EQ(at(kNow - 5 * kSecond), kNow / 1'000'000 - 5000);
  EXPECT_FALSE(moved);
  EXPECT_EQ(at(kNow + hour), kNow / 1'000'000);  // in the future
  EXPECT_TRUE(moved);
  EXPECT_EQ(at(0), kNow / 1'000'000);
  EXPECT_EQ(at(kNow - 2 * hour), kNow / 1'000'000);
  EXPECT_EQ(at(INT64_MIN / 2), kNow / 1'000'000);
  EXPECT_EQ(at(kNow, kNow / 1'000'000), kNow / 1'000'000 + 1);
  EXPECT_EQ(at(kNow, 0, kNow - hour), (kNow - hour) / 1'000'000);  // the wall clock was set back
}

TEST_F(StepShipperTest, AStateThatWasLostIsSentFromWhereItBeginsAnew) {
  Steps("r", 1, 5);
  Show("r");
  Drain();
  all_["r"].clear();
  now_ns_ += 60 * kSecond;
  Steps("r", 1, 2);
  Show("r");
  Drain();
  EXPECT_EQ(sink_.taken["r"].size(), 7u);
}

TEST_F(StepShipperTest, ForgottenRunsThatComeBackSendNothingTwice) {
  Steps("r", 1, 5);
  Show("r");
  Drain();
  shown_.clear();
  Publish();
  now_ns_ += 3 * 3600 * kSecond;
  Drain();  // forgotten
  Steps("r", 6, 7);
  Show("r");
  Drain();
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST_F(StepShipperTest, ItsThreadSendsAndEnds) {
  options_.round_ns = 1'000'000;
  Restart();
  Steps("r", 1, 3);
  Show("r");
  shipper_->Start();
  for (int i = 0; i < 3000 && counters_.sent_steps < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  shipper_->Stop(kSecond);
  EXPECT_THAT(Taken("r"), ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace lossgauge::export_
