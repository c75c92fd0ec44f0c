#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

std::uint64_t LossFlags(const JudgeScript& job) {
  return job.Opened(Condition::kLossSpike) + job.Opened(Condition::kBlip) + job.Opened(Condition::kDivergence) +
         job.Opened(Condition::kLevelShift) + job.Opened(Condition::kGradExplosion);
}

std::string Described(const JudgeScript& job) {
  std::string text;
  for (const state::Incident& incident : job.judge->Incidents()) text += "\n" + incident.summary;
  return text;
}

// A2: one bad value neither blinds nor jams the detector.
TEST(LossEpisode, ANanBeforeASpikeHidesNothingAndFlagsNothing) {
  for (const bool inf_grad : {false, true}) {
    JudgeScript job;
    job.Steps(400, 2.2);
    ASSERT_EQ(job.OpenedInAll(), 0u);
    if (inf_grad) {
      job.Step({.loss = 2.2, .grad_norm = std::numeric_limits<double>::infinity()});
    } else {
      job.Step({.grad_norm = 0.24, .nonfinite_rows = 1024});
    }
    EXPECT_TRUE(job.IsOpen(Condition::kNonfinite)) << "at its own step";
    job.Steps(20, 2.2);
    EXPECT_EQ(LossFlags(job), 0u);
    job.Steps(1, 5.1);
    EXPECT_TRUE(job.IsOpen(Condition::kBlip) || job.IsOpen(Condition::kLossSpike)) << "first of the ten";
    job.Steps(9, 5.1);
    EXPECT_TRUE(job.IsOpen(Condition::kLossSpike));
    job.Steps(40, 2.2);
    EXPECT_FALSE(job.IsOpen(Condition::kLossSpike));
    const std::uint64_t before = LossFlags(job);
    EXPECT_EQ(before, 1u);
    job.Steps(360, 2.2);
    EXPECT_EQ(LossFlags(job), before) << "0 flags in the last 400";
    EXPECT_EQ(job.Opened(Condition::kNonfinite), 1u);
  }
}

// A3: the best documented public spike.
TEST(LossEpisode, TheBloomSpikeIsWatchedAtItsSecondValueAndNamedAtItsThird) {
  JudgeScript job;
  job.Steps(400, 2.2);
  ASSERT_EQ(job.OpenedInAll(), 0u);
  job.Look();
  for (int i = 0; i < 9; ++i) {
    job.Step({.loss = kBloomLoss[i], .grad_norm = kBloomGradNorm[i]});
    if (i == 1) {
      EXPECT_EQ(job.Verdict().action, Action::kWatch);
      EXPECT_TRUE(job.IsOpen(Condition::kGradExplosion));
    }
    if (i == 2) {
      EXPECT_TRUE(job.IsOpen(Condition::kLossSpike, "optimizer")) << "the gradient norm led";
    }
    EXPECT_NE(job.Verdict().action, Action::kRestart);
    EXPECT_NE(job.Verdict().action, Action::kHalt);
  }
  const state::Incident spike = *job.FindOpen(Condition::kLossSpike);
  EXPECT_EQ(spike.onset_step, 402);
  EXPECT_EQ(spike.peak_step, 405);
  int clean = 0;
  while (job.IsOpen(Condition::kLossSpike) && clean < 60) {
    job.Steps(1, 2.2);
    ++clean;
    EXPECT_NE(job.Verdict().action, Action::kRestart);
  }
  EXPECT_GE(clean, 25);
  EXPECT_LE(clean, 35);
  job.Steps(40, 2.2);
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << job.Verdict().reason;
  EXPECT_EQ(job.Opened(Condition::kLossSpike), 1u);
}

TEST(LossEpisode, ASpikeInASteepInitialDescentIsSeen) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    JudgeScript job;
    Noise noise(seed, 0.03);
    const auto descent = [](int step) { return 3.5 + 7.5 * std::exp(-step / 60.0); };
    for (int step = 0; step < 150; ++step) job.Loss(descent(step) + noise.Next());
    EXPECT_EQ(LossFlags(job), 0u) << "seed " << seed;
    job.Loss(descent(150) + 1 + noise.Next());
    EXPECT_TRUE(job.IsOpen(Condition::kBlip) || job.IsOpen(Condition::kLossSpike)) << "seed " << seed;
    for (int step = 151; step < 400; ++step) job.Loss(descent(step) + noise.Next());
    EXPECT_EQ(LossFlags(job), 1u) << "seed " << seed;
  }
}

// What a person or a program is told must not flicker: one spike with its echo, on ranks of which each in turn has the largest logit.
TEST(LossEpisode, OneSpikeChangesTheVerdictAFewTimesOnly) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  Noise logits(3, 0.02);
  state::Verdict before;
  std::vector<std::string> changes;
  const auto step = [&](double loss, double grad_norm, double logit) {
    job.Step({.loss = loss + 0.02 * job.noise.Next(), .grad_norm = grad_norm * std::exp(0.08 * job.noise.Next()), .edit = [&](std::uint32_t rank, lg_step_record& record) {
                record.max_abs_logit = logit * std::exp(logits.Next()) * (1 + 1e-3 * rank);
              }});
    job.Look();
    const state::Verdict now = job.Verdict();
    if (state::DiffersInSubstance(before, now)) {
      changes.push_back(std::to_string(job.next_step - 1) + " " + std::string(state::ActionName(now.action)));
      for (const auto& code : now.reason_codes) changes.back() += " " + code;
      if (now.rank_at_fault) changes.back() += " rank " + std::to_string(*now.rank_at_fault);
    }
    before = now;
  };
  for (int i = 0; i < 300; ++i) step(2.2, 0.24, 20);
  changes.clear();
  const double echo[] = {5.1, 4.5, 3.6, 3.0, 2.7, 2.9, 2.5, 2.6, 2.4, 2.45, 2.3, 2.35};
  for (int i = 0; i < 12; ++i) step(echo[i], i < 8 ? 4 - 0.4 * i : 0.3, i < 6 ? 45 - 3 * i : 20);
  for (int i = 0; i < 275; ++i) step(2.2, 0.24, 20);
  for (int i = 0; i < 30; ++i) step(2.2, 0.24, 45);  // high logits alone
  for (int i = 0; i < 30; ++i) step(2.2, 0.24, 20);
  std::string text;
  for (const std::string& change : changes) text += "\n  " + change;
  EXPECT_LE(changes.size(), 6u) << text;
}

TEST(LossEpisode, AHundredThousandCleanCorrelatedStepsRaiseNothing) {
  std::uint64_t seed = 3;
  for (const double sd : {0.0006, 0.037, 0.44}) {
    JudgeScript job;
    job.step_ns = kSecond / 10;
    Noise loss(seed, sd, 0.3);
    Noise grad(seed++ + 100, 0.15, 0.3);
    for (int i = 0; i < 100'000; ++i) job.Step({.loss = 2.2 + loss.Next(), .grad_norm = 0.24 * std::exp(grad.Next())});
    EXPECT_EQ(job.OpenedInAll(), 0u) << "sd " << sd << Described(job);
    EXPECT_EQ(job.Verdict().action, Action::kContinue);
  }
}

TEST(LossEpisode, ASingleHighPointIsABlipAndTheVerdictStaysContinue) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Look();
  job.Steps(1, 3.4);
  EXPECT_TRUE(job.IsOpen(Condition::kBlip));
  EXPECT_EQ(job.Verdict().action, Action::kContinue);
  job.Steps(10, 2.2);
  EXPECT_FALSE(job.IsOpen(Condition::kBlip));
  EXPECT_EQ(job.Opened(Condition::kBlip), 1u);
  EXPECT_EQ(job.Opened(Condition::kLossSpike), 0u);
}

TEST(LossEpisode, WhereOddBatchesAreUsualTwoInARowAreChanceAndThreeAreASpike) {
  JudgeScript job;
  job.Steps(200, 2.2);
  for (int i = 0; i < 3; ++i) {
    job.Loss(3.0);
    job.Steps(40, 2.2);
  }
  ASSERT_EQ(job.Opened(Condition::kBlip), 3u);
  job.Loss(3.0);
  job.Loss(3.1);
  job.Steps(40, 2.2);
  EXPECT_EQ(job.Opened(Condition::kLossSpike), 0u);
  EXPECT_EQ(job.Opened(Condition::kBlip), 4u);
  job.Loss(3.0);
  job.Loss(3.1);
  EXPECT_FALSE(job.IsOpen(Condition::kLossSpike));
  job.Loss(2.8);
  EXPECT_TRUE(job.IsOpen(Condition::kLossSpike));
  job.Steps(600, 2.2);  // long ago: two in a row are a spike again
  job.Loss(3.0);
  job.Loss(3.1);
  EXPECT_TRUE(job.IsOpen(Condition::kLossSpike));
}

TEST(LossEpisode, TheSecondHighPointMakesASpikeOfABlipUnderTheSameId) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Steps(1, 3.4);
  const std::string id = job.FindOpen(Condition::kBlip)->id;
  job.Steps(1, 3.4);
  ASSERT_TRUE(job.IsOpen(Condition::kLossSpike));
  EXPECT_EQ(job.FindOpen(Condition::kLossSpike)->id, id);
  EXPECT_EQ(job.Opened(Condition::kBlip), 0u);
  EXPECT_EQ(job.Opened(Condition::kLossSpike, "unexplained"), 1u);
}

TEST(LossEpisode, ALossThatStaysHighIsADivergenceWithTheLastGoodStep) {
  JudgeScript job;
  job.Steps(400, 2.2);
  job.Checkpoint(300, "/ckpt/300");
  job.Checkpoint(399, "/ckpt/399");
  job.Look();
  for (int i = 0; i < 500; ++i) {
    job.Steps(1, 5.1);
    if (i == 60) job.Checkpoint(460, "/ckpt/460");
    if (i > 0 && i < 90) {  // the first point alone might be a blip
      EXPECT_EQ(job.Verdict().action, Action::kWatch) << i;
    }
  }
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kRestart);
  EXPECT_EQ(verdict.reason_codes[0], "divergence");
  EXPECT_EQ(verdict.last_good_step, 399);
  ASSERT_TRUE(verdict.resume_point);
  EXPECT_EQ(verdict.resume_point->step, 399);
  EXPECT_EQ(verdict.resume_point->path, "/ckpt/399");
  ASSERT_TRUE(verdict.skip);
  EXPECT_EQ(verdict.skip->first, 400);
}

TEST(LossEpisode, ARiseThatNeverPausesIsADivergenceAfterThirtySteps) {
  JudgeScript job;
  job.Steps(300, 2.2);
  job.Look();
  int watched = -1;
  int restart = -1;
  for (int i = 0; i < 60; ++i) {
    job.Loss(2.2 + 0.15 * i);
    if (watched < 0 && job.IsOpen(Condition::kDivergence)) watched = i;
    if (restart < 0 && job.Verdict().action == Action::kRestart) restart = i;
  }
  EXPECT_GE(watched, 5);
  EXPECT_LE(watched, 20);
  EXPECT_GE(restart, 28);
  EXPECT_LE(restart, 40);
}

TEST(LossEpisode, ASmallShiftAfterASpikeIsALevelShiftAndNoRestart) {
  JudgeScript job;
  job.Steps(400, 2.2);
  job.Look();
  for (int i = 0; i < 200; ++i) {
    job.Steps(1, 2.5);
    EXPECT_NE(job.Verdict().action, Action::kRestart);
  }
  EXPECT_TRUE(job.IsOpen(Condition::kLevelShift));
  EXPECT_FALSE(job.IsOpen(Condition::kLossSpike));
}

TEST(LossEpisode, ValuesOfAnOpenSpikeStayOutOfTheBaseline) {
  JudgeScript job;
  job.Steps(200, 2.2);
  job.Steps(70, 4.0);
  job.Steps(35, 2.2);
  ASSERT_FALSE(job.IsOpen(Condition::kLossSpike));
  EXPECT_EQ(job.judge->Incidents().back().steps_to_recover, 70);
  job.Steps(1, 2.5);
  EXPECT_TRUE(job.IsOpen(Condition::kBlip)) << "the bar is where it was before the spike";
}

// A6-like: a loss that swings around the threshold is one incident.
TEST(LossEpisode, ALossThatSwingsAroundTheThresholdIsOneIncident) {
  JudgeScript job;
  job.Steps(300, 2.2);
  for (int i = 0; i < 40; ++i) {
    job.Steps(1, 2.8);
    job.Steps(2, 2.21);
  }
  job.Steps(60, 2.2);
  EXPECT_EQ(job.Opened(Condition::kLossSpike) + job.Opened(Condition::kBlip), 1u);
  EXPECT_FALSE(job.IsOpen(Condition::kLossSpike));
}

TEST(LossEpisode, ADropIsNoFaultAndTheNextSpikeIsMeasuredFromTheNewLevel) {
  JudgeScript job;
  job.Steps(300, 2.2);
  job.Steps(100, 1.6);  // the second epoch
  EXPECT_EQ(LossFlags(job), 0u);
  job.Steps(1, 2.0);
  EXPECT_TRUE(job.IsOpen(Condition::kBlip));
}

}  // namespace
}  // namespace lossgauge::testing
