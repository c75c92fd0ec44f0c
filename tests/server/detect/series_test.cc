// Detectors of one series each: level_shift, loss_collapse, rank_missing, rank_outlier, repeated_batch, slowdown, factors; and their causes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/robust_baseline.h"
#include "server/detect/sorted_window.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

TEST(SortedWindow, GivesMedianAndMadOfTheLastValuesOnly) {
  detect::SortedWindow<5> window;
  for (const double value : {100.0, 200.0, 1.0, 9.0, 3.0, 5.0, 4.0}) window.Add(value);
  EXPECT_DOUBLE_EQ(window.Median(), 4);                    // 1 3 4 5 9
  EXPECT_DOUBLE_EQ(window.MedianAbsoluteDeviation(), 1);   // 0 1 1 3 5
  EXPECT_DOUBLE_EQ(window.Recent(0), 4);
  EXPECT_DOUBLE_EQ(window.Recent(4), 1);
  detect::SortedWindow<4> even;
  for (const double value : {1.0, 2.0, 4.0, 8.0}) even.Add(value);
  EXPECT_DOUBLE_EQ(even.Median(), 3);
  EXPECT_DOUBLE_EQ(even.MedianAbsoluteDeviation(), 1.5);  // 1 1 2 5
}

TEST(SortedWindow, MadIsThatOfASort) {
  detect::SortedWindow<37> window;
  std::vector<double> values;
  Noise noise(5, 1);
  for (int i = 0; i < 400; ++i) {
    const double value = i % 5 == 0 ? i % 3 : static_cast<double>(static_cast<float>(noise.Next()));  // ties, too
    window.Add(value);
    values.push_back(value);
    if (values.size() > 37) values.erase(values.begin());
    std::vector<double> distances;
    for (const double one : values) distances.push_back(std::fabs(one - window.Median()));
    std::sort(distances.begin(), distances.end());
    const std::size_t n = distances.size();
    ASSERT_DOUBLE_EQ(window.MedianAbsoluteDeviation(), n % 2 == 1 ? distances[n / 2] : 0.5 * (distances[n / 2 - 1] + distances[n / 2])) << i;
  }
}

TEST(RobustBaseline, FollowsASteepDescentWithoutTakingItForNoise) {
  detect::RobustBaseline baseline;
  for (int i = 0; i < 100; ++i) baseline.Accept(11 - 0.05 * i);
  EXPECT_NEAR(baseline.Center(), 11 - 0.05 * 100, 1e-6);
  EXPECT_LT(baseline.Scale(), 1e-6);
}

TEST(RobustBaseline, MeasuresTheNoise) {
  detect::RobustBaseline baseline;
  Noise noise(3, 0.04);
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    baseline.Accept(2 + noise.Next());
    if (i >= 200) sum += baseline.Scale();
  }
  EXPECT_NEAR(sum / 800, 0.0415, 0.004) << "the noise and the prediction's own error";
}

TEST(LevelShift, TwoDeviationsAreFoundSoonAndTheCleanPartIsQuiet) {
  int late = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    JudgeScript job;
    Noise noise(seed, 0.02);
    for (int i = 0; i < 600; ++i) job.Loss(2.21 + noise.Next());
    ASSERT_EQ(job.OpenedInAll(), 0u) << seed;
    int found = -1;
    for (int i = 0; i < 60 && found < 0; ++i) {
      job.Loss(2.25 + noise.Next());
      if (job.IsOpen(Condition::kLevelShift)) found = i + 1;
    }
    ASSERT_GT(found, 0) << seed;
    late += found > 15 ? 1 : 0;
  }
  EXPECT_EQ(late, 0) << "of 40 seeds; the median is 10 steps";
}

// observer A4: one deviation in the median seed, and neither is lost again while it lasts.
TEST(LevelShift, OneDeviationIsFoundInTheMedianSeedWithinThirtySteps) {
  std::vector<int> after;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    JudgeScript job;
    Noise noise(seed, 0.02);
    for (int i = 0; i < 600; ++i) job.Loss(2.21 + noise.Next());
    ASSERT_EQ(job.OpenedInAll(), 0u) << seed;
    int found = 1000;
    for (int i = 0; i < 200; ++i) {
      job.Loss(2.23 + noise.Next());
      if (found == 1000 && job.IsOpen(Condition::kLevelShift)) found = i + 1;
    }
    after.push_back(found);
    EXPECT_EQ(found < 1000, job.IsOpen(Condition::kLevelShift)) << "seed " << seed << ": a shift that stays stays open";
    EXPECT_LE(job.OpenedInAll(), 1u) << seed;
  }
  std::sort(after.begin(), after.end());
  EXPECT_LE(after[20], 30);
  EXPECT_LT(after[30], 200) << "three of four are found at all";
}

// observer A4: what a rolling baseline absorbs after two flags.
TEST(LevelShift, AStepOfAFewTenthsForFiveHundredStepsIsOneEventThatStaysOpen) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    JudgeScript job;
    Noise noise(seed, 0.02);
    for (int i = 0; i < 400; ++i) job.Loss(2.21 + noise.Next());
    ASSERT_EQ(job.OpenedInAll(), 0u);
    for (int i = 0; i < 500; ++i) job.Loss(2.36 + noise.Next());
    EXPECT_TRUE(job.IsOpen(Condition::kLevelShift)) << seed;
    EXPECT_EQ(job.Opened(Condition::kLevelShift), 1u) << seed;
    EXPECT_EQ(job.Opened(Condition::kDivergence), 0u) << seed;
    for (int i = 0; i < 60; ++i) job.Loss(2.21 + noise.Next());
    EXPECT_FALSE(job.IsOpen(Condition::kLevelShift)) << seed;
  }
}

TEST(LevelShift, TwentyThousandCleanStepsAreNone) {
  JudgeScript job;
  Noise noise(5, 0.02);
  for (int i = 0; i < 20'000; ++i) job.Loss(2.21 + noise.Next());
  EXPECT_EQ(job.OpenedInAll(), 0u);
}

TEST(LevelShift, StaysOneOpenEventUntilTheLossIsBack) {
  JudgeScript job;
  job.Steps(400, 2.21);
  job.Steps(500, 2.31);
  ASSERT_TRUE(job.IsOpen(Condition::kLevelShift));
  EXPECT_EQ(job.Opened(Condition::kLevelShift), 1u);
  EXPECT_NEAR(static_cast<double>(job.FindOpen(Condition::kLevelShift)->onset_step), 400, 5);
  job.Steps(60, 2.21);
  EXPECT_FALSE(job.IsOpen(Condition::kLevelShift));
  EXPECT_EQ(job.Opened(Condition::kLevelShift), 1u);
}

TEST(LevelShift, AcknowledgingItMakesItsLevelTheNormalOne) {
  JudgeScript job;
  job.Steps(400, 2.21);
  job.Steps(100, 2.31);
  ASSERT_TRUE(job.judge->Acknowledge(job.FindOpen(Condition::kLevelShift)->id, {"ann", "new data", job.now_ns}));
  EXPECT_FALSE(job.IsOpen(Condition::kLevelShift));
  job.Steps(300, 2.31);
  EXPECT_FALSE(job.IsOpen(Condition::kLevelShift));
}

TEST(LevelShift, ASmallOneIsInfoAndTheVerdictStaysContinue) {
  JudgeScript job;
  job.Steps(400, 2.21);
  job.Steps(60, 2.26);
  job.Look();
  ASSERT_TRUE(job.IsOpen(Condition::kLevelShift));
  EXPECT_EQ(job.FindOpen(Condition::kLevelShift)->severity, state::Severity::kInfo);
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
}

TEST(LevelShift, ADriftThatNeverJumpsIsADivergenceAndARestartOnceItStays) {
  JudgeScript job;
  job.Steps(400, 2.21);
  job.Look();
  const auto climb = [&job](int steps) {
    for (int i = 0; i < steps; ++i) job.Loss(2.21 + 0.005 * static_cast<double>(job.next_step - 400) + 0.02 * job.noise.Next());
  };
  climb(60);
  ASSERT_TRUE(job.IsOpen(Condition::kLevelShift));
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  climb(200);  // +1.3 nats, a hundredth of the noise's bar a step
  EXPECT_FALSE(job.IsOpen(Condition::kLevelShift));
  const auto drift = job.FindOpen(Condition::kDivergence);
  ASSERT_TRUE(drift);
  EXPECT_EQ(drift->severity, state::Severity::kCritical);
  EXPECT_NEAR(static_cast<double>(drift->onset_step), 400, 20);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
}

TEST(LevelShift, HalfANatIsNoRestartBeforeItStayedAHundredSteps) {
  JudgeScript job;
  job.Steps(400, 2.21);
  job.Look();
  for (int i = 0; i < 80; ++i) job.Loss(2.21 + std::min(0.6, 0.01 * i) + 0.02 * job.noise.Next());
  ASSERT_TRUE(job.IsOpen(Condition::kLevelShift));
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.Steps(60, 2.21);  // and it came back
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  EXPECT_EQ(job.Opened(Condition::kDivergence), 0u);
}

TEST(LevelShift, ADriftRightBehindTheSteepDescentIsSeen) {
  JudgeScript job;
  for (int i = 0; i < 90; ++i) job.Loss(2.5 + 6 * std::exp(-i / 25.0) + 0.02 * job.noise.Next());
  const std::int64_t onset = job.next_step;
  const double bottom = 2.5 + 6 * std::exp(-90 / 25.0);
  for (int i = 0; i < 230; ++i) job.Loss(bottom + std::min(2.0, 0.02 * i) + 0.02 * job.noise.Next());
  job.Look();
  const auto drift = job.FindOpen(Condition::kDivergence);
  ASSERT_TRUE(drift);
  EXPECT_NEAR(static_cast<double>(drift->onset_step), static_cast<double>(onset), 20);
  EXPECT_EQ(job.Verdict().action, Action::kRestart);
}

TEST(LevelShift, OneDigitMoreInALogOfFewDigitsIsNone) {
  JudgeScript job;
  for (int i = 0; i < 400; ++i) job.Loss(i % 9 == 0 ? 2.3 : 2.2);  // more than half of the values are the median
  for (int i = 0; i < 200; ++i) job.Loss(i % 4 == 0 ? 2.3 : 2.2);
  EXPECT_EQ(job.Opened(Condition::kLevelShift), 0u);
  for (int i = 0; i < 60; ++i) job.Loss(i % 4 == 0 ? 2.5 : 2.4);
  EXPECT_EQ(job.Opened(Condition::kLevelShift) + job.Opened(Condition::kLossSpike), 1u);
}

TEST(GradExplosion, ANormThatWasHighForNothingIsBelievedAgainOnlyBeyondThat) {
  JudgeScript job;
  const auto one = [&job](double norm) {
    job.Step({.loss = 2.2 + 0.02 * job.noise.Next(), .grad_norm = norm});
    job.Steps(40, 2.2);
  };
  job.Steps(300, 2.2);
  one(1.5);
  EXPECT_EQ(job.Opened(Condition::kGradExplosion), 1u);
  one(1.6);
  EXPECT_EQ(job.Opened(Condition::kGradExplosion), 1u);
  one(3.5);  // 14 times the usual: whatever was before
  EXPECT_EQ(job.Opened(Condition::kGradExplosion), 2u);
  job.Steps(1100, 2.2);
  one(1.5);
  EXPECT_EQ(job.Opened(Condition::kGradExplosion), 3u);
}

TEST(GradExplosion, ANormThatTheLossFollowedIsBelievedTheNextTime) {
  JudgeScript job;
  job.Steps(300, 2.2);
  for (std::uint64_t time = 1; time <= 2; ++time) {
    job.Step({.loss = 2.2, .grad_norm = 1.5});
    job.Step({.loss = 3.2, .grad_norm = 1.5});
    job.Step({.loss = 2.8, .grad_norm = 1.2});
    job.Steps(80, 2.2);
    EXPECT_EQ(job.Opened(Condition::kGradExplosion), time);
  }
}

TEST(LossCollapse, AFallOffACliffAsksForARestartAndASlowFitToZeroDoesNot) {
  JudgeScript cliff;
  cliff.Steps(200, 2.2);
  cliff.Look();
  cliff.Steps(4, 0.01, 0.001);
  EXPECT_FALSE(cliff.IsOpen(Condition::kLossCollapse));
  cliff.Steps(1, 0.01, 0.001);
  EXPECT_EQ(cliff.Verdict().action, Action::kRestart);
  EXPECT_EQ(cliff.Verdict().reason_codes[0], "loss_collapse");
  JudgeScript slow;
  for (int i = 0; i < 600; ++i) slow.Loss(2.5 * std::exp(-i / 80.0));
  EXPECT_FALSE(slow.IsOpen(Condition::kLossCollapse));
}

TEST(RankMissing, ClosesAfterThreeCompleteSteps) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Steps(10, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kRankMissing));
  job.Step({.loss = 2.2, .missing_ranks = {1, 3}});
  ASSERT_TRUE(job.IsOpen(Condition::kRankMissing));
  EXPECT_NE(job.FindOpen(Condition::kRankMissing)->summary.find("ranks 1, 3"), std::string::npos);
  EXPECT_FALSE(job.FindOpen(Condition::kRankMissing)->rank);
  job.Steps(2, 2.2);
  EXPECT_TRUE(job.IsOpen(Condition::kRankMissing));
  job.Steps(1, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kRankMissing));
}

StepValues WithOdd(std::uint32_t odd, double loss, std::uint64_t tokens = 1024) {
  return {.loss = 2.2, .edit = [=](std::uint32_t rank, lg_step_record& record) {
            if (rank != odd) return;
            record.unmasked_tokens = record.finite_tokens = record.target_hits = tokens;
            record.nll_sum = lg_fixed128_from_double(loss * static_cast<double>(tokens));
          }};
}

TEST(RankOutlier, NamesTheRankAtTheThirdStepOfFive) {
  JudgeScript job(detect::DefaultPolicies().defaults, 8);
  job.Steps(100, 2.2);
  job.Step(WithOdd(5, 4.0));
  job.Step(WithOdd(5, 4.0));
  EXPECT_FALSE(job.IsOpen(Condition::kRankOutlier));
  job.Step(WithOdd(5, 4.0));
  ASSERT_TRUE(job.IsOpen(Condition::kRankOutlier));
  EXPECT_EQ(job.FindOpen(Condition::kRankOutlier)->rank, 5u);
}

TEST(RankOutlier, AHandfulOfTokensMayHaveAnyLoss) {
  JudgeScript job(detect::DefaultPolicies().defaults, 8);
  job.Steps(100, 2.2);
  for (int i = 0; i < 10; ++i) job.Step(WithOdd(5, 9.0, 3));
  EXPECT_FALSE(job.IsOpen(Condition::kRankOutlier));
}

TEST(RepeatedBatch, IsNamedAtTheThirdTimeAndOverWithTheNextBatch) {
  JudgeScript job;
  job.Steps(40, 2.2);
  const StepValues same{.loss = 2.2, .edit = [](std::uint32_t, lg_step_record& record) { record.target_fingerprint = record.mask_fingerprint = 99; }};
  job.Step(same);
  job.Step(same);
  EXPECT_FALSE(job.IsOpen(Condition::kRepeatedBatch));
  job.Step(same);
  EXPECT_TRUE(job.IsOpen(Condition::kRepeatedBatch));
  job.Steps(1, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kRepeatedBatch));
}

TEST(RepeatedBatch, TheSameTargetsInAnotherOrderAreAnotherBatch) {
  JudgeScript job;
  std::uint64_t mask = 1;
  for (int i = 0; i < 10; ++i) {
    ++mask;
    job.Step({.loss = 2.2, .edit = [&](std::uint32_t, lg_step_record& record) {
                record.target_fingerprint = 99;
                record.mask_fingerprint = mask;
              }});
  }
  EXPECT_FALSE(job.IsOpen(Condition::kRepeatedBatch));
}

TEST(Slowdown, TwentySlowStepsAreNamedWithTheRankThatComesLast) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Steps(100, 2.2);
  job.step_ns = 3 * kSecond;
  const StepValues slow{.loss = 2.2, .edit = [](std::uint32_t rank, lg_step_record& record) {
                          if (rank == 2) record.boot_ns += kSecond;
                        }};
  for (int i = 0; i < 19; ++i) job.Step(slow);
  EXPECT_FALSE(job.IsOpen(Condition::kSlowdown));
  job.Step(slow);
  ASSERT_TRUE(job.IsOpen(Condition::kSlowdown));
  EXPECT_EQ(job.FindOpen(Condition::kSlowdown)->rank, 2u);
  job.step_ns = kSecond;
  job.Steps(20, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kSlowdown));
}

TEST(Slowdown, WhereEachRankIsLastInTurnNoneIsNamed) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.Steps(100, 2.2);
  job.step_ns = 3 * kSecond;
  for (int i = 0; i < 60; ++i) {
    job.Step({.loss = 2.2, .edit = [i](std::uint32_t rank, lg_step_record& record) {
                if (rank == static_cast<std::uint32_t>(i * 7 / 3) % 4) record.boot_ns += kSecond;
              }});
    if (const auto incident = job.FindOpen(Condition::kSlowdown)) {
      EXPECT_FALSE(incident->rank) << i;
    }
  }
  EXPECT_TRUE(job.IsOpen(Condition::kSlowdown));
}

TEST(Slowdown, MillisecondsOfJitterAreNone) {
  JudgeScript job;
  job.step_ns = kSecond / 1000;
  job.Steps(100, 2.2);
  job.step_ns = kSecond / 20;
  job.Steps(100, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kSlowdown));
}

class Cause : public ::testing::Test {
 protected:
  explicit Cause(std::uint32_t ranks = 4) : job(detect::DefaultPolicies().defaults, ranks) {
    for (int i = 0; i < 200; ++i) {
      job.Step({.loss = 2.2 + 0.02 * job.noise.Next(), .grad_norm = 0.24 * std::exp(0.05 * job.noise.Next()),
                .max_abs_logit = 20 * std::exp(0.02 * job.noise.Next()), .learning_rate = 1e-3});
    }
  }
  std::string Kind() const {
    const auto incident = job.FindOpen(Condition::kLossSpike);
    return incident ? incident->kind : "no spike";
  }
  JudgeScript job;
};

TEST_F(Cause, AJumpOfTheLargestLogitIsALogitBlowupAndItsPlaceIsNamed) {
  for (int i = 0; i < 2; ++i) job.Step({.loss = 4, .grad_norm = 0.24, .max_abs_logit = 80, .learning_rate = 1e-3});
  EXPECT_EQ(Kind(), "logit_blowup");
  EXPECT_TRUE(job.IsOpen(Condition::kLogitBlowup));
  const state::Incident incident = *job.FindOpen(Condition::kLossSpike);
  bool logit = false;
  bool row = false;
  for (const auto& item : incident.evidence) {
    logit = logit || (item.name == "worst_logit" && item.text == "rank 0, position 3, column 77");
    row = row || (item.name == "worst_row" && item.text == "rank 0, position 5, target 42");
  }
  EXPECT_TRUE(logit);
  EXPECT_TRUE(row);
}

TEST_F(Cause, TheWordsAreThoseOfThePeakWhileTheLossRecovers) {
  job.Step({.loss = 4.2, .grad_norm = 0.24, .max_abs_logit = 80, .learning_rate = 1e-3});
  job.Step({.loss = 4.1, .grad_norm = 0.24, .max_abs_logit = 20, .learning_rate = 1e-3});
  ASSERT_EQ(Kind(), "logit_blowup");
  for (int i = 0; i < 12; ++i) {
    const std::string summary = job.FindOpen(Condition::kLossSpike)->summary;
    EXPECT_NE(summary.find("max|z| jumped with it (80, 3.9"), std::string::npos) << summary;
    EXPECT_EQ(summary.find("; recovering") != std::string::npos, i > 0) << summary;
    job.Step({.loss = 2.2, .grad_norm = 0.24, .max_abs_logit = 20, .learning_rate = 1e-3});
  }
}

TEST_F(Cause, AJumpOfTheTokenCountIsTheData) {
  job.tokens = 300;
  for (int i = 0; i < 2; ++i) job.Step({.loss = 4, .grad_norm = 0.24, .max_abs_logit = 20, .learning_rate = 1e-3});
  EXPECT_EQ(Kind(), "data");
}

TEST_F(Cause, OneRankAloneIsTheRank) {
  for (int i = 0; i < 2; ++i) {
    StepValues values = WithOdd(3, 6.0);
    values.grad_norm = 0.24;
    values.max_abs_logit = 20;
    values.learning_rate = 1e-3;
    job.Step(values);
  }
  EXPECT_EQ(Kind(), "rank");
  EXPECT_EQ(job.FindOpen(Condition::kLossSpike)->rank, 3u);
}

TEST_F(Cause, AGradientNormThatRoseFirstIsTheOptimizer) {
  job.Step({.loss = 2.2, .grad_norm = 2.4, .max_abs_logit = 20, .learning_rate = 1e-3});
  job.Step({.loss = 4, .grad_norm = 2.4, .max_abs_logit = 20, .learning_rate = 1e-3});
  EXPECT_EQ(Kind(), "optimizer");
}

TEST_F(Cause, ALearningRateThatJumpedIsTheOptimizerThoughTheLogitsRoseWithIt) {
  job.Step({.loss = 2.2, .grad_norm = 0.24, .max_abs_logit = 20, .learning_rate = 1e-1});
  for (int i = 0; i < 2; ++i) job.Step({.loss = 9, .grad_norm = 50, .max_abs_logit = 200, .learning_rate = 1e-1});
  EXPECT_EQ(Kind(), "optimizer");
}

TEST_F(Cause, NothingElseIsUnexplained) {
  for (int i = 0; i < 2; ++i) job.Step({.loss = 4, .grad_norm = 0.24, .max_abs_logit = 20, .learning_rate = 1e-3});
  EXPECT_EQ(Kind(), "unexplained");
}

}  // namespace
}  // namespace lossgauge::testing
