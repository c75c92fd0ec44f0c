#include "server/api/step_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/server/api/fake_state.h"

namespace lossgauge::api {
namespace {

using testing::FakeHistory;
using testing::kNow;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeStep;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StepWatchTest : public ::testing::Test {
 protected:
  // The snapshot holds first to last; history holds history_first to history_last.
  void Given(std::uint64_t first, std::uint64_t last) { snapshot_ = MakeSnapshot(1, {MakeRun("run", first, last)}); }
  void HistoryHolds(std::uint64_t first, std::uint64_t last) {
    history_->steps.clear();
    for (std::uint64_t s = first; s <= last; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  }
  absl::StatusOr<StepWatch> Watch(std::optional<std::uint64_t> after) {
    v1::WatchStepsRequest request;
    request.set_run("run");
    if (after) request.set_after_sequence(*after);
    return StepWatch::Create(*snapshot_, request, history_);
  }
  // Sequences of the next message; skipped_ is set. Empty: nothing to send.
  std::vector<std::uint64_t> Next(StepWatch& watch) {
    v1::WatchStepsResponse message;
    const absl::StatusOr<bool> some = watch.Next(*snapshot_, kNow, &message);
    EXPECT_TRUE(some.ok()) << some.status();
    skipped_ = message.skipped();
    std::vector<std::uint64_t> sequences;
    for (const v1::Step& step : message.steps()) sequences.push_back(step.sequence());
    EXPECT_EQ(*some, !sequences.empty() || skipped_ > 0);
    return sequences;
  }

  std::shared_ptr<state::Snapshot> snapshot_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  std::uint64_t skipped_ = 0;
};

TEST_F(StepWatchTest, WithoutASequenceOnlyNewStepsCome) {
  Given(1, 6);
  StepWatch watch = *Watch({});
  EXPECT_THAT(Next(watch), ElementsAre());
  Given(1, 8);
  EXPECT_THAT(Next(watch), ElementsAre(7, 8));
  EXPECT_THAT(Next(watch), ElementsAre());
}

TEST_F(StepWatchTest, ASequenceGoesOnBehindItself) {
  Given(1, 6);
  StepWatch watch = *Watch(4);
  EXPECT_THAT(Next(watch), ElementsAre(5, 6));
  EXPECT_EQ(skipped_, 0u);
  EXPECT_EQ(history_->reads, 0);
}

TEST_F(StepWatchTest, OldStepsComeFromHistoryAndThenFromTheSnapshotWithoutDoublesOrHoles) {
  Given(5, 8);
  HistoryHolds(1, 7);
  StepWatch watch = *Watch(2);
  EXPECT_TRUE(watch.NeedsHistory(*snapshot_));
  EXPECT_THAT(Next(watch), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_EQ(skipped_, 0u);
  EXPECT_FALSE(watch.NeedsHistory(*snapshot_));
}

TEST_F(StepWatchTest, HistoryThatIsAheadOfTheSnapshotChangesNothing) {
  Given(5, 8);
  HistoryHolds(1, 10);
  StepWatch watch = *Watch(2);
  EXPECT_THAT(Next(watch), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_THAT(Next(watch), ElementsAre());
  Given(5, 10);
  EXPECT_THAT(Next(watch), ElementsAre(9, 10));
}

TEST_F(StepWatchTest, ZeroMeansFromTheOldestKeptAndNothingCountsAsSkipped) {
  Given(9, 10);
  HistoryHolds(7, 10);
  StepWatch watch = *Watch(0);
  EXPECT_THAT(Next(watch), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(skipped_, 0u);
}

TEST_F(StepWatchTest, WhatIsNoLongerKeptIsSaidToBeSkipped) {
  Given(9, 10);
  HistoryHolds(7, 10);
  StepWatch watch = *Watch(3);
  EXPECT_THAT(Next(watch), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(skipped_, 3u);
}

TEST_F(StepWatchTest, ASlowReaderIsToldHowMuchItMissed) {
  Given(1, 4);
  StepWatch watch = *Watch({});
  Given(101, 104);  // it did not read for a hundred steps, and history holds nothing
  EXPECT_THAT(Next(watch), ElementsAre(101, 102, 103, 104));
  EXPECT_EQ(skipped_, 96u);
}

TEST_F(StepWatchTest, AHoleInHistoryIsReportedWhereItIs) {
  Given(9, 10);
  HistoryHolds(1, 2);
  history_->steps.push_back(MakeStep(6, 5, 2));
  StepWatch watch = *Watch(0);
  EXPECT_THAT(Next(watch), ElementsAre(1, 2));
  EXPECT_THAT(Next(watch), ElementsAre(6));
  EXPECT_EQ(skipped_, 3u);
  EXPECT_THAT(Next(watch), ElementsAre(9, 10));
  EXPECT_EQ(skipped_, 2u);
}

TEST_F(StepWatchTest, IfNothingOfItIsKeptTheMessageHoldsOnlyTheNumber) {
  snapshot_ = MakeSnapshot(1, {MakeRun("run", 1, 0)});
  auto run = MakeRun("run", 1, 0);
  run->next_sequence = 21;
  snapshot_->runs = {run};
  StepWatch watch = *Watch(5);
  EXPECT_THAT(Next(watch), ElementsAre());
  EXPECT_EQ(skipped_, 15u);
  EXPECT_THAT(Next(watch), ElementsAre());
  EXPECT_EQ(skipped_, 0u);
}

TEST_F(StepWatchTest, ASequenceNotReachedYetIsRefusedInsteadOfWaitingForEver) {
  Given(1, 6);
  const auto watch = Watch(7);
  EXPECT_EQ(watch.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(watch.status().message()), HasSubstr("after_sequence: 7"));
  EXPECT_TRUE(Watch(6).ok());
}

TEST_F(StepWatchTest, MessagesAreBounded) {
  Given(1, 2000);
  StepWatch watch = *Watch(0);
  std::uint64_t expected = 1;
  int messages = 0;
  while (true) {
    const std::vector<std::uint64_t> sequences = Next(watch);
    if (sequences.empty()) break;
    EXPECT_LE(sequences.size(), 256u);
    for (const std::uint64_t sequence : sequences) EXPECT_EQ(sequence, expected++);
    ++messages;
  }
  EXPECT_EQ(expected, 2001u);
  EXPECT_EQ(messages, 8);
}

TEST_F(StepWatchTest, AStepOfManyRanksFillsAMessageOfItsOwn) {
  auto run = MakeRun("run", 1, 0);
  auto chunk = std::make_shared<state::StepChunk>();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    state::StepSummary step = MakeStep(s, static_cast<std::int64_t>(s), 2);
    for (std::uint32_t rank = 0; rank < 60'000; ++rank) step.rank_steps.push_back({rank, 2.0, 1.0, 3.0, 1000, 0, 0});
    chunk->push_back(std::make_shared<const state::StepSummary>(step));
  }
  run->recent_steps = {chunk};
  run->next_sequence = 5;
  snapshot_ = MakeSnapshot(1, {run});
  v1::WatchStepsRequest request;
  request.set_run("run");
  request.set_after_sequence(0);
  request.set_include_ranks(true);
  StepWatch watch = *StepWatch::Create(*snapshot_, request, history_);
  EXPECT_THAT(Next(watch), ElementsAre(1));
  EXPECT_THAT(Next(watch), ElementsAre(2));
}

TEST_F(StepWatchTest, EndsWhenTheRunIsNoLongerKept) {
  Given(1, 6);
  StepWatch watch = *Watch({});
  v1::WatchStepsResponse message;
  EXPECT_EQ(watch.Next(*MakeSnapshot(2, {}), kNow, &message).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StepWatchTest, AnErrorOfHistoryIsPassedOn) {
  Given(5, 8);
  StepWatch watch = *Watch(2);
  history_->error = absl::UnavailableError("disk gone");
  v1::WatchStepsResponse message;
  EXPECT_EQ(watch.Next(*snapshot_, kNow, &message).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lossgauge::api
