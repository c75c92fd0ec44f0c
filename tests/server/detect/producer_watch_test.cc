#include <gtest/gtest.h>

#include "server/detect/stall_locator.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

using state::LivenessReport;
using state::ProducerState;

JudgeScript Training(std::uint32_t ranks = 1) {
  JudgeScript job(detect::DefaultPolicies().defaults, ranks);
  job.Steps(100, 2.2);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << job.Verdict().reason;
  return job;
}

void Lost(std::uint32_t rank, LivenessReport& report) {
  if (rank == 0) report.producer_state = ProducerState::kLost;
}

TEST(ProducerLost, AsksForARestartAndHidesMissingRanksAndStall) {
  JudgeScript job = Training(2);
  job.Checkpoint(80, "/ckpt/80");
  job.Step({.loss = 2.2, .missing_ranks = {0}});
  job.Look(Lost);
  ASSERT_TRUE(job.IsOpen(Condition::kProducerLost));
  ASSERT_TRUE(job.IsOpen(Condition::kRankMissing));
  const std::string root = job.FindOpen(Condition::kProducerLost)->id;
  EXPECT_EQ(job.FindOpen(Condition::kRankMissing)->hidden_by, root);
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kRestart);
  EXPECT_EQ(verdict.reason_codes, std::vector<std::string>{"producer_lost"});
  EXPECT_EQ(verdict.rank_at_fault, 0u);
  EXPECT_EQ(verdict.last_good_step, 100);
  EXPECT_EQ(verdict.resume_point->step, 80);
  EXPECT_FALSE(verdict.skip) << "the data are not to blame";
  job.WaitLooking(700, Lost);
  EXPECT_EQ(job.FindOpen(Condition::kStall)->hidden_by, root);
}

TEST(ProducerLost, IsOverOnceANewAttemptRuns) {
  JudgeScript job = Training();
  job.Look(Lost);
  ASSERT_TRUE(job.IsOpen(Condition::kProducerLost));
  job.NewAttempt("2", 80);
  job.Look();
  EXPECT_FALSE(job.IsOpen(Condition::kProducerLost));
  job.Steps(1, 2.2);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << job.Verdict().reason;
}

TEST(Frozen, IsWatched) {
  JudgeScript job = Training();
  job.Look([](std::uint32_t, LivenessReport& report) {
    report.producer_state = ProducerState::kFrozen;
    report.heartbeat_age_ns = 12 * kSecond;
  });
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_EQ(job.Verdict().reason_codes[0], "frozen");
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

TEST(Stall, IsQuietBeforeItsLimitWatchedAfterItAndARestartBeyondTheSecond) {
  JudgeScript job = Training();
  job.WaitLooking(59);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  job.WaitLooking(5);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_EQ(job.Verdict().reason_codes[0], "stall");
  EXPECT_NE(job.Verdict().escalates, "");
  job.WaitLooking(530);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.WaitLooking(20);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
  EXPECT_EQ(job.Verdict().reason_codes[0], "stall");
  job.Steps(1, 2.2);
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

TEST(Stall, TheLimitGrowsWithTheUsualStepTime) {
  JudgeScript job;
  job.step_ns = 100 * kSecond;
  job.Steps(100, 2.2);
  job.WaitLooking(480);
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << "5 x 100 s";
  job.WaitLooking(30);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.WaitLooking(1400);
  EXPECT_EQ(job.Verdict().action, Action::kWatch) << "20 x 100 s";
  job.WaitLooking(200);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
}

TEST(Stall, ADeclaredPhaseSuspendsItAndTheClockBeginsAtItsEnd) {
  JudgeScript job = Training();
  double age = 0;
  const auto checkpoint = [&](std::uint32_t, LivenessReport& report) {
    report.phase = LG_PHASE_CHECKPOINT;
    report.phase_age_ns = static_cast<std::int64_t>(age * 1e9);
  };
  for (; age <= 1800; age += 60) {
    job.Wait(60);
    job.Look(checkpoint);
    EXPECT_EQ(job.Verdict().action, Action::kWatch);
    EXPECT_EQ(job.Verdict().reason_codes[0], "phase");
  }
  job.Wait(5);
  job.Look();
  EXPECT_FALSE(job.IsOpen(Condition::kStall)) << "half an hour of checkpointing is no stall afterwards";
  job.WaitLooking(70);
  EXPECT_TRUE(job.IsOpen(Condition::kStall));
}

TEST(Stall, APhaseDoesNotSuspendNonfinite) {
  JudgeScript job = Training();
  job.Look([](std::uint32_t, LivenessReport& report) { report.phase = LG_PHASE_EVALUATION; });
  for (int i = 0; i < 5; ++i) job.Step({.nonfinite_rows = 1024});
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
}

TEST(NoFirstStep, IsNamedAfterHalfAnHour) {
  JudgeScript job;
  job.WaitLooking(1790);
  EXPECT_EQ(job.Verdict().action, Action::kUnknown);
  EXPECT_EQ(job.Verdict().reason_codes[0], "no_data");
  job.WaitLooking(20);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_EQ(job.Verdict().reason_codes[0], "no_first_step");
  job.Steps(1, 2.2);
  job.Look();
  EXPECT_FALSE(job.IsOpen(Condition::kNoFirstStep));
}

TEST(AttemptConflict, TwoLiveAttemptsAreNamedOnceTheOlderHadTimeToGo) {
  JudgeScript job = Training();
  LivenessReport older = job.presence.producers[0];
  job.NewAttempt("2", 90);
  job.Steps(1, 2.2);
  state::Presence both;
  const auto look_at_both = [&] {
    both.producers.clear();
    LivenessReport newest = older;
    newest.producer = job.Producer(0);
    newest.producer_state = ProducerState::kLive;
    both.producers = {newest, older};
    both.newest_attempt = "2";
    both.now_ns = job.now_ns;
    both.first_seen_ns = job.attempt_start_ns;
    job.judge->OnPresence(both);
  };
  look_at_both();
  EXPECT_FALSE(job.IsOpen(Condition::kAttemptConflict));
  job.Wait(3);
  look_at_both();
  ASSERT_TRUE(job.IsOpen(Condition::kAttemptConflict));
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  older.producer_state = ProducerState::kEnded;
  look_at_both();
  EXPECT_FALSE(job.IsOpen(Condition::kAttemptConflict));
}

TEST(RecordsLost, AreAnIncompleteRunUntilAMinuteWithoutMore) {
  JudgeScript job = Training();
  state::LossReport loss;
  loss.producer = job.Producer(0);
  loss.records = 17;
  loss.time_ns = job.now_ns;
  job.judge->OnLoss(loss);
  ASSERT_TRUE(job.IsOpen(Condition::kRecordsLost));
  EXPECT_NE(job.FindOpen(Condition::kRecordsLost)->summary.find("17"), std::string::npos);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  EXPECT_NE(job.Verdict().reason.find("Incomplete"), std::string::npos);
  job.presence.records_lost = 17;
  for (int i = 0; i < 65; ++i) {
    job.Steps(1, 2.2);
    job.Look();
  }
  EXPECT_FALSE(job.IsOpen(Condition::kRecordsLost));
  EXPECT_EQ(job.Opened(Condition::kRecordsLost), 1u) << "the run book's total says nothing new";
}

class Locate : public ::testing::Test {
 protected:
  // entered, enqueued, published of each rank.
  detect::StallLocation At(const std::vector<std::array<std::int64_t, 3>>& ranks) {
    JudgeScript job(detect::DefaultPolicies().defaults, static_cast<std::uint32_t>(ranks.size()));
    reports_.clear();
    std::vector<const LivenessReport*> pointers;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      LivenessReport report;
      report.producer = job.Producer(rank);
      report.entered_step = ranks[rank][0];
      report.enqueued_step = ranks[rank][1];
      report.published_step = ranks[rank][2];
      reports_.push_back(std::move(report));
    }
    for (const auto& report : reports_) pointers.push_back(&report);
    return detect::LocateStall(pointers);
  }
  std::vector<LivenessReport> reports_;
};

TEST_F(Locate, ARankThatNeverEnteredTheStepOfItsPeersIsTheHostAtFault) {
  const auto location = At({{8, 8, 7}, {8, 8, 7}, {7, 7, 7}, {8, 8, 7}});
  EXPECT_EQ(location.name, "host");
  EXPECT_EQ(location.rank, 2u);
  EXPECT_EQ(location.step, 8);
  EXPECT_NE(location.words.find("rank 2 never entered step 8"), std::string::npos) << location.words;
}
TEST_F(Locate, OneDeviceBehindItsHostIsThatDevice) {
  const auto location = At({{8, 8, 8}, {8, 8, 7}, {8, 8, 8}});
  EXPECT_EQ(location.name, "device");
  EXPECT_EQ(location.rank, 1u);
  EXPECT_EQ(location.step, 8);
}
TEST_F(Locate, AllDevicesBehindTheirHostsAreACollective) {
  EXPECT_EQ(At({{8, 8, 7}, {8, 8, 7}}).name, "collective");
  EXPECT_EQ(At({{8, 8, 7}}).name, "device") << "a single rank waits for nobody";
}
TEST_F(Locate, AllInsideAStepAreACollectiveToo) { EXPECT_EQ(At({{8, 7, 7}, {8, 7, 7}}).name, "collective"); }
TEST_F(Locate, NobodyEnteringTheNextStepIsTheHosts) {
  const auto location = At({{8, 8, 8}, {8, 8, 8}});
  EXPECT_EQ(location.name, "host");
  EXPECT_FALSE(location.rank);
  EXPECT_EQ(location.step, 9);
}
TEST_F(Locate, NothingPublishedYetIsUnknown) { EXPECT_EQ(At({{-1, -1, -1}}).name, "unknown"); }

}  // namespace
}  // namespace lossgauge::testing
