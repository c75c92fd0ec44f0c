// What is sent when, and what becomes of it: over a board, a history and a receiver made by hand.
#include "server/export/step_shipper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "tests/scratch_directory.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::export_ {
namespace {

using state::ShipDrop;
using state::ShipResult;
using testing::kNow;
using testing::kSecond;
using ::testing::ElementsAre;

// Takes everything unless told otherwise; knows every sample that it was ever given.
class FakeSink final : public StepSink {
 public:
  SinkAnswer Send(std::string_view run, const std::vector<TimedStep>& steps) override {
    ++sends;
    SinkAnswer answer;
    answer.result = ShipResult::kTaken;
    if (!answers.empty()) {
      answer = answers.front();
      answers.pop_front();
    }
    if (answers_of.count(std::string(run)) != 0) answer = answers_of[std::string(run)];
    last_sizes.push_back(steps.size());
    for (const TimedStep& timed : steps) {
      seen.emplace_back(std::string(run), timed.step->sequence, timed.timestamp_ms);
      if (answer.result == ShipResult::kTaken) taken[std::string(run)].push_back(timed);
    }
    answer.samples = steps.size();
    return answer;
  }
  void Cancel() override {}
  std::string name() const override { return "fake://"; }

  std::deque<SinkAnswer> answers;
  std::map<std::string, SinkAnswer> answers_of;
  std::map<std::string, std::vector<TimedStep>> taken;
  std::vector<std::tuple<std::string, std::uint64_t, std::int64_t>> seen;
  std::vector<std::size_t> last_sizes;
  int sends = 0;
};

SinkAnswer Answer(ShipResult result, ShipDrop reason = ShipDrop::kRefused, std::int64_t retry_after_ns = 0) {
  SinkAnswer answer;
  answer.result = result;
  answer.reason = reason;
  answer.retry_after_ns = retry_after_ns;
  answer.text = "as told";
  return answer;
}

class StepShipperTest : public ::testing::Test {
 protected:
  StepShipperTest() { Restart(); }

  void Restart() {
    shipper_.reset();
    auto cursors = ShipCursors::Open(directory_.path(), "sent.sqlite3");
    ASSERT_TRUE(cursors.ok()) << cursors.status();
    shipper_ = std::make_unique<StepShipper>(options_, board_, history_, &sink_, *std::move(cursors), &counters_, [this] { return now_ns_; });
    const absl::Status status = shipper_->Load();
    ASSERT_TRUE(status.ok()) << status;
  }
  // Steps `first` to `last` by sequence, one every `interval_ns` up to now, in history.
  void Steps(const std::string& run, std::uint64_t first, std::uint64_t last, std::int64_t interval_ns = kSecond) {
    for (std::uint64_t sequence = first; sequence <= last; ++sequence) {
      auto step = std::make_shared<state::StepSummary>();
      step->sequence = sequence;
      step->step = static_cast<std::int64_t>(sequence) - 1;
      step->receive_time_ns = now_ns_ - static_cast<std::int64_t>(last - sequence) * interval_ns;
      step->publish_time_ns = step->receive_time_ns - 2'000'000;
      step->loss_nats = 0.5 * static_cast<double>(sequence);
      all_[run].push_back(step);
    }
  }
  // A snapshot of them that holds those from `from` on.
  void Show(const std::string& run, std::uint64_t from = 1) {
    auto snapshot = std::make_shared<state::RunSnapshot>();
    snapshot->run = run;
    auto chunk = std::make_shared<state::StepChunk>();
    for (const auto& step : all_[run]) {
      if (step->sequence >= from) chunk->push_back(step);
    }
    if (!chunk->empty()) snapshot->recent_steps.push_back(chunk);
    snapshot->next_sequence = all_[run].empty() ? 1 : all_[run].back()->sequence + 1;
    shown_[run] = snapshot;
    Publish();
  }
  void Publish() {
    auto snapshot = std::make_shared<state::Snapshot>();
    snapshot->version = ++version_;
    for (const auto& [name, run] : shown_) snapshot->runs.push_back(run);
    board_.Publish(snapshot);
  }
  std::vector<std::uint64_t> Taken(const std::string& run) {
    std::vector<std::uint64_t> sequences;
    for (const TimedStep& timed : sink_.taken[run]) sequences.push_back(timed.step->sequence);
    return sequences;
  }
  void Drain() {
    while (shipper_->RunRound()) {
    }
  }

  // Only ReadSteps is asked.
  struct StepHistory final : public state::HistoryReader {
    explicit StepHistory(std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>>* all) : all_(all) {}
    absl::StatusOr<std::vector<state::StepSummary>> ReadSteps(const state::StepQuery& query) override {
      if (broken) return absl::UnavailableError("busy");
      std::vector<state::StepSummary> rows;
      auto& steps = (*all_)[query.run];
      if (query.newest_first) {
        if (!steps.empty()) rows.push_back(*steps.back());
        return rows;
      }
      for (const auto& step : steps) {
        if (step->sequence <= query.after_sequence || gone.count(step->sequence) != 0) continue;
        if (static_cast<int>(rows.size()) == query.limit) break;
        rows.push_back(*step);
      }
      return rows;
    }
    absl::StatusOr<std::vector<state::Incident>> ReadIncidents(const std::string&, bool, int, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::optional<state::Incident>> FindIncident(const std::string&, const std::string&) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::Verdict>> ReadVerdicts(const std::string&, int, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<state::EventPage> ReadEvents(const std::string&, std::int64_t, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::LedgerEntry>> ReadLedger(const std::string&) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::StoredRun>> ReadRuns(int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::optional<state::StoredRun>> FindRun(const std::string&) override { return absl::UnimplementedError(""); }
    std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>>* const all_;
    std::set<std::uint64_t> gone;
    bool broken = false;
  };

  ScratchDirectory directory_;
  ShipperOptions options_;
  state::TimeNs now_ns_ = kNow;
  state::SnapshotBoard board_;
  std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>> all_;
  std::map<std::string, std::shared_ptr<const state::RunSnapshot>> shown_;
  std::shared_ptr<StepHistory> history_ = std::make_shared<StepHistory>(&all_);
  std::uint64_t version_ = 0;
  state::ShipCounters counters_;
  FakeSink sink_;
  std::unique_ptr<StepShipper> shipper_;
};

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
