// The engine: points of a log through run book, detectors and policy, with the clock of the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "server/replay/joined_files.h"
#include "server/replay/replay.h"
#include "tests/replay/read_points.h"

namespace lossgauge::replay {
namespace {

std::string Log(int first, int last, double level, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 0.02);
  std::string text;
  for (int i = first; i <= last; ++i) absl::StrAppendFormat(&text, "step:%d loss:%.4f norm:%.3f\n", i, level + noise(random), 1 + 0.1 * noise(random));
  return text;
}

ReplayResult Judged(std::string_view text) {
  Replay replay("log", detect::DefaultPolicies());
  const auto source = MakeMemorySource(text);
  EXPECT_TRUE(ReadLog(source.get(), &replay).ok());
  return replay.Finish();
}

std::vector<state::Action> Actions(const ReplayResult& result) {
  std::vector<state::Action> actions;
  for (const VerdictChange& change : result.verdicts) {
    if (actions.empty() || actions.back() != change.verdict.action) actions.push_back(change.verdict.action);
  }
  return actions;
}

const IncidentLife* Find(const ReplayResult& result, state::Condition condition) {
  for (const IncidentLife& life : result.incidents) {
    if (life.incident.condition == condition) return &life;
  }
  return nullptr;
}

TEST(Replay, AQuietLogIsWarmingThenContinueThenEnded) {
  const ReplayResult result = Judged(Log(1, 300, 3));
  EXPECT_THAT(Actions(result), ::testing::ElementsAre(state::Action::kUnknown, state::Action::kContinue, state::Action::kUnknown));
  EXPECT_THAT(result.verdicts.back().verdict.reason_codes, ::testing::ElementsAre("ended"));
  EXPECT_EQ(result.worst, state::Action::kContinue);
  EXPECT_EQ(result.before_end.action, state::Action::kContinue);
  EXPECT_TRUE(result.incidents.empty());
}

TEST(Replay, ASpikeIsAnIncidentWithTheMomentsOfItsLife) {
  const ReplayResult result = Judged(Log(1, 400, 3) + Log(401, 410, 5) + Log(411, 600, 3, 2));
  const IncidentLife* spike = Find(result, state::Condition::kLossSpike);
  ASSERT_NE(spike, nullptr);
  EXPECT_EQ(spike->incident.onset_step, 401);
  ASSERT_TRUE(spike->warned && spike->resolved);
  EXPECT_GE(spike->warned->step, 401);
  EXPECT_LE(spike->warned->step, 403);
  EXPECT_EQ(spike->warned->line, static_cast<std::uint64_t>(spike->warned->step)) << "every line is a step";
  EXPECT_EQ(spike->warned->point + 1, spike->warned->line);
  EXPECT_GT(spike->resolved->step, 430);
  EXPECT_FALSE(spike->critical);
  EXPECT_EQ(result.worst, state::Action::kWatch);
}

TEST(Replay, NanToTheEndIsARestart) {
  std::string text = Log(1, 200, 3);
  for (int i = 201; i <= 230; ++i) absl::StrAppendFormat(&text, "step:%d loss:nan norm:nan\n", i);
  const ReplayResult result = Judged(text);
  EXPECT_EQ(result.worst, state::Action::kRestart);
  EXPECT_EQ(result.before_end.action, state::Action::kRestart);
  const IncidentLife* nan = Find(result, state::Condition::kNonfinite);
  ASSERT_NE(nan, nullptr);
  EXPECT_EQ(nan->first.step, 201);
}

TEST(Replay, ARunThatGoesBackIsAnotherAttemptAndNoIncident) {
  const ReplayResult result = Judged(Log(1, 200, 3) + Log(150, 400, 3, 2));
  EXPECT_TRUE(result.incidents.empty());
  EXPECT_EQ(result.verdicts.back().at.attempt, "2");
  EXPECT_EQ(result.worst, state::Action::kContinue);
}

TEST(Replay, TheSameLogGivesTheSameBits) {
  const std::string text = Log(1, 400, 3) + Log(401, 420, 6) + Log(421, 600, 3, 2);
  const auto flat = [](const ReplayResult& result) {
    std::string said;
    for (const VerdictChange& change : result.verdicts) {
      absl::StrAppendFormat(&said, "%d %s %d %d\n", change.at.step, change.verdict.reason, change.verdict.evaluated_at_ns, change.verdict.valid_until_ns);
    }
    for (const IncidentLife& life : result.incidents) {
      absl::StrAppendFormat(&said, "%s %s %d %d\n", life.incident.id, life.incident.summary, life.incident.onset_time_ns, life.incident.resolved_time_ns);
    }
    return said;
  };
  EXPECT_EQ(flat(Judged(text)), flat(Judged(text)));
}

TEST(Replay, TimesOfALogCountAndMissingOnesAreNoSlowdown) {
  // 0.5 s a step, then 5 s: told by the log.
  std::string slow;
  for (int i = 1; i <= 300; ++i) absl::StrAppendFormat(&slow, "step:%d loss:%.2f dt:%s\n", i, 3 + 0.01 * (i % 3), i <= 200 ? "500.0ms" : "5000.0ms");
  EXPECT_NE(Find(Judged(slow), state::Condition::kSlowdown), nullptr);
  EXPECT_EQ(Find(Judged(Log(1, 300, 3)), state::Condition::kSlowdown), nullptr);
}

TEST(Replay, ACheckpointInTheLogIsWhereToResume) {
  std::string text = "";
  for (int i = 1; i <= 150; ++i) {
    absl::StrAppendFormat(&text, " iteration %8d/    1000 | elapsed time per iteration (ms): 500.0 | lm loss: %s | grad norm: 1.0 | number of skipped iterations: 0 |\n", i,
                          i <= 120 ? absl::StrFormat("%.6E", 3 + 0.01 * (i % 3)) : "NAN");
    if (i == 100) text += "saving checkpoint at iteration     100 to /ckpt/run in torch format\n";
  }
  const ReplayResult result = Judged(text);
  ASSERT_EQ(result.before_end.action, state::Action::kRestart);
  ASSERT_TRUE(result.before_end.resume_point);
  EXPECT_EQ(result.before_end.resume_point->step, 100);
  EXPECT_EQ(result.before_end.resume_point->path, "/ckpt/run");
}

TEST(Replay, SkippedIterationsAreStepsWithoutALoss) {
  std::string text;
  for (int i = 1; i <= 120; ++i) {
    const bool skipped = i == 60 || i == 61;
    absl::StrAppendFormat(&text, " iteration %8d/    1000 | %sgrad norm: 1.0 | number of skipped iterations: %d | number of nan iterations: 0 |\n", i,
                          skipped ? "" : "lm loss: 3.0E+00 | ", skipped ? 1 : 0);
  }
  const ReplayResult result = Judged(text);
  EXPECT_EQ(result.worst, state::Action::kContinue);
  EXPECT_TRUE(result.incidents.empty());
}

TEST(Replay, ALossOfAnySizeIsHeld) {
  std::string text = Log(1, 100, 3);
  for (const char* loss : {"1e30", "-1e30", "1e300", "3.0", "0"}) absl::StrAppendFormat(&text, "step:%d loss:%s norm:1e300\n", 101 + static_cast<int>(loss[0]), loss);
  EXPECT_GT(Judged(text).verdicts.size(), 0u);
}

TEST(Replay, AbsurdTimesOfStepsDoNotOverflowTheClock) {
  // 100,000 days of steps behind one another are more nanoseconds than 64 bits hold.
  Replay replay("log", detect::DefaultPolicies());
  LogPoint point;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    point.index = i;
    point.line = i + 1;
    point.step = static_cast<std::int64_t>(i + 1);
    point.loss = 3 + 0.01 * static_cast<double>(i % 3);
    point.step_seconds = 86'400;
    replay.OnPoint(point);
  }
  const ReplayResult result = replay.Finish();
  state::TimeNs last = 0;
  for (const VerdictChange& change : result.verdicts) {
    EXPECT_GE(change.verdict.evaluated_at_ns, last);
    last = change.verdict.evaluated_at_ns;
  }
  EXPECT_GT(result.before_end.evaluated_at_ns, std::int64_t{4'600'000'000} * 1'000'000'000);
  EXPECT_LT(result.before_end.evaluated_at_ns, std::int64_t{5'000'000'000} * 1'000'000'000);
  EXPECT_EQ(result.worst, state::Action::kContinue);
  EXPECT_TRUE(result.incidents.empty());
}

TEST(Replay, AnAttemptThatALogComesBackToIsAnotherOne) {
  std::string text;
  for (const char* attempt : {"a", "b", "a"}) {
    for (int i = 1; i <= 120; ++i) absl::StrAppendFormat(&text, "{\"attempt\": \"%s\", \"step\": %d, \"loss\": %.2f}\n", attempt, i, 3 + 0.01 * (i % 3));
  }
  const ReplayResult result = Judged(text);
  std::vector<std::string> attempts;
  for (const VerdictChange& change : result.verdicts) {
    if (attempts.empty() || attempts.back() != change.at.attempt) attempts.push_back(change.at.attempt);
  }
  EXPECT_THAT(attempts, ::testing::ElementsAre("a", "b", "a#3"));
}

TEST(Replay, AttemptsBeyondTheMostAreNotJudgedAndTheirPointsCounted) {
  Replay replay("log", detect::DefaultPolicies());
  LogPoint point;
  point.loss = 3;
  for (std::uint32_t i = 1; i <= kMaxAttempts + 7; ++i) {
    point.attempt = i;
    point.step = 1;
    replay.OnPoint(point);
  }
  EXPECT_EQ(replay.Finish().points_left_out, 7u);
}

TEST(Replay, IncidentsThatAreLeftOutAreCountedOnce) {
  const std::string text = Log(1, 400, 3) + Log(401, 410, 5) + Log(411, 800, 3, 2) + Log(801, 810, 5) + Log(811, 1200, 3, 3) + Log(1201, 1210, 5) + Log(1211, 1500, 3, 4);
  const std::size_t all = Judged(text).incidents.size();
  ASSERT_GE(all, 3u);
  Replay replay("log", detect::DefaultPolicies(), 1);
  const auto source = MakeMemorySource(text);
  ASSERT_TRUE(ReadLog(source.get(), &replay).ok());
  const ReplayResult result = replay.Finish();
  EXPECT_EQ(result.incidents.size(), 1u);
  EXPECT_EQ(result.incidents_left_out, all - 1);
}

TEST(JoinedFiles, AFileThatGoesOnIsTheSameAttemptAndOneThatGoesBackAnother) {
  ReadPoints all;
  JoinedFiles joined(&all);
  for (const auto& [first, last] : {std::pair{1, 5}, std::pair{6, 9}, std::pair{4, 8}}) {
    joined.BeginFile();
    const std::string text = Log(first, last, 3);
    const auto source = MakeMemorySource(text);
    ASSERT_TRUE(ReadLog(source.get(), &joined).ok());
  }
  ASSERT_EQ(all.points.size(), 14u);
  EXPECT_EQ(all.points[8].attempt, 1u);
  EXPECT_EQ(all.points[9].attempt, 2u);
  for (std::size_t i = 0; i < all.points.size(); ++i) EXPECT_EQ(all.points[i].index, i);
}

}  // namespace
}  // namespace lossgauge::replay
