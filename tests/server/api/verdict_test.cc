#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/convert_verdict.h"
#include "server/api/verdict_watch.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::api {
namespace {

using state::Action;
using testing::kNow;
using testing::kSecond;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeVerdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CurrentVerdict, HoldsWhileItsTermRuns) {
  const auto run = MakeRun("run", 1, 4);
  EXPECT_EQ(CurrentVerdict(*run, kNow).action, Action::kContinue);
  EXPECT_EQ(CurrentVerdict(*run, run->verdict.valid_until_ns - 1).action, Action::kContinue);
}

// Case E3: never "continue" without fresh data.
TEST(CurrentVerdict, IsUnknownOnceItsTermIsOver) {
  for (const Action action : {Action::kContinue, Action::kWatch, Action::kRestart, Action::kHalt, Action::kUnknown}) {
    auto run = MakeRun("run", 1, 4);
    run->verdict = MakeVerdict(action, "x");
    for (const std::int64_t late : {std::int64_t{0}, std::int64_t{1}, 3600 * kSecond}) {
      const state::TimeNs now = run->verdict.valid_until_ns + late;
      const state::Verdict verdict = CurrentVerdict(*run, now);
      EXPECT_EQ(verdict.action, Action::kUnknown);
      EXPECT_THAT(verdict.reason_codes, ElementsAre("stale"));
      EXPECT_THAT(verdict.reason, HasSubstr(std::string(state::ActionName(action))));
      EXPECT_EQ(verdict.since_ns, run->verdict.valid_until_ns);
      EXPECT_GT(verdict.valid_until_ns, now);
      EXPECT_EQ(verdict.last_step, 41);
      EXPECT_EQ(verdict.last_step_age_ns, kSecond / 2 + 30 * kSecond + late);
      EXPECT_FALSE(verdict.resume_point.has_value());
    }
  }
}

TEST(CurrentVerdict, IsUnknownBeforeTheFirstAndWithoutAStepBehindIt) {
  auto run = MakeRun("run");
  run->verdict = state::Verdict{};
  EXPECT_EQ(CurrentVerdict(*run, kNow).action, Action::kUnknown);
  EXPECT_THAT(CurrentVerdict(*run, kNow).reason_codes, ElementsAre("no_data"));
  run->verdict = MakeVerdict(Action::kContinue, "fresh");
  run->verdict.last_step.reset();
  EXPECT_EQ(CurrentVerdict(*run, kNow).action, Action::kUnknown);
  EXPECT_THAT(CurrentVerdict(*run, kNow).reason_codes, ElementsAre("no_data"));
}

class VerdictWatchTest : public ::testing::Test {
 protected:
  VerdictWatchTest() : run_(MakeRun("run", 1, 4)) { request_.set_run("run"); }
  VerdictWatch Watch() { return *VerdictWatch::Create(*Snapshot(), request_); }
  std::shared_ptr<state::Snapshot> Snapshot() { return MakeSnapshot(1, {run_}); }
  bool Next(VerdictWatch& watch, state::TimeNs now) {
    message_.Clear();
    return *watch.Next(*Snapshot(), now, &message_);
  }

  std::shared_ptr<state::RunSnapshot> run_;
  v1::WatchVerdictRequest request_;
  v1::Verdict message_;
};

TEST_F(VerdictWatchTest, GivesThePresentVerdictFirstThenOnlyChanges) {
  VerdictWatch watch = Watch();
  EXPECT_TRUE(Next(watch, kNow));
  EXPECT_EQ(message_.action(), v1::CONTINUE);
  EXPECT_EQ(message_.instance(), "instance-1");
  EXPECT_FALSE(Next(watch, kNow + kSecond));
  run_->verdict = MakeVerdict(Action::kRestart, "divergence", kNow + kSecond);
  EXPECT_TRUE(Next(watch, kNow + kSecond));
  EXPECT_EQ(message_.action(), v1::RESTART);
  EXPECT_FALSE(Next(watch, kNow + kSecond));
}

TEST_F(VerdictWatchTest, SpeaksEveryTenSecondsThoughTheVerdictHoldsForLonger) {
  run_->verdict = MakeVerdict(Action::kContinue, "fresh", kNow, 3600 * kSecond);
  VerdictWatch watch = Watch();
  EXPECT_TRUE(Next(watch, kNow));
  EXPECT_FALSE(Next(watch, kNow + 9 * kSecond));
  EXPECT_TRUE(Next(watch, kNow + 10 * kSecond));
  EXPECT_FALSE(Next(watch, kNow + 19 * kSecond));
  EXPECT_TRUE(Next(watch, kNow + 20 * kSecond));
}

TEST_F(VerdictWatchTest, RenewsAVerdictBeforeItsTermIsOver) {
  run_->verdict = MakeVerdict(Action::kContinue, "fresh", kNow, 8 * kSecond);
  VerdictWatch watch = Watch();
  EXPECT_TRUE(Next(watch, kNow));
  run_->verdict = MakeVerdict(Action::kContinue, "fresh", kNow + 3 * kSecond, 8 * kSecond);
  EXPECT_FALSE(Next(watch, kNow + 3 * kSecond));
  run_->verdict = MakeVerdict(Action::kContinue, "fresh", kNow + 5 * kSecond, 8 * kSecond);
  EXPECT_TRUE(Next(watch, kNow + 5 * kSecond));
}

TEST_F(VerdictWatchTest, SaysSoWhenNobodyRenewsTheVerdict) {
  VerdictWatch watch = Watch();
  EXPECT_TRUE(Next(watch, kNow));
  EXPECT_TRUE(Next(watch, kNow + 30 * kSecond));
  EXPECT_EQ(message_.action(), v1::UNKNOWN);
  EXPECT_EQ(message_.reason_codes(0), "stale");
  EXPECT_FALSE(Next(watch, kNow + 31 * kSecond));
}

TEST_F(VerdictWatchTest, EndsWhenTheRunIsNoLongerKept) {
  VerdictWatch watch = Watch();
  EXPECT_EQ(watch.Next(*MakeSnapshot(2, {}), kNow, &message_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lossgauge::api
