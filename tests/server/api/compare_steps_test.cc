// Right values by hand: 97.5 % quantiles of Student's t from tables, sums small enough for a pencil.
#include "server/api/compare_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lossgauge::api {
namespace {

using ::testing::HasSubstr;

ComparedStep Step(std::int64_t step, std::optional<double> loss, std::uint64_t fingerprint = 7, std::uint64_t tokens = 100) {
  ComparedStep s;
  s.first_step = s.last_step = step;
  s.sequence = static_cast<std::uint64_t>(step) + 1;
  s.loss_nats = loss;
  s.target_fingerprint = fingerprint;
  s.unmasked_tokens = tokens;
  return s;
}

ComparedStep Row(std::int64_t first, std::int64_t last, double loss, std::uint64_t fingerprint, std::uint64_t tokens) {
  ComparedStep s = Step(last, loss, fingerprint, tokens);
  s.first_step = first;
  s.steps = static_cast<std::uint64_t>(last - first) + 1;
  return s;
}

// Steps from 0 on; the loss of a is 2, that of b 2 + difference.
std::pair<std::vector<ComparedStep>, std::vector<ComparedStep>> Runs(const std::vector<double>& differences) {
  std::pair<std::vector<ComparedStep>, std::vector<ComparedStep>> runs;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    runs.first.push_back(Step(static_cast<std::int64_t>(i), 2.0));
    runs.second.push_back(Step(static_cast<std::int64_t>(i), 2.0 + differences[i]));
  }
  return runs;
}

TEST(CompareSteps, TheBandOfEightDifferencesIsTheOneOfAPairedTTest) {
  // Mean 0.125; each lies 0.125 from it: s^2 = 8 * 0.015625 / 7, standard error sqrt(s^2 / 8) = 0.125 / sqrt(7) = 0.0472456;
  // t(0.975, 7) = 2.365: half width 0.1117358.
  const auto [a, b] = Runs({0, 0.25, 0, 0.25, 0, 0.25, 0, 0.25});
  const v1::Comparison c = CompareSteps(a, b);
  ASSERT_TRUE(c.comparable());
  EXPECT_EQ(c.compared(), 8u);
  EXPECT_EQ(c.matched_by(), "target_fingerprint");
  EXPECT_DOUBLE_EQ(c.loss().a(), 2.0);
  EXPECT_DOUBLE_EQ(c.loss().b(), 2.125);
  EXPECT_DOUBLE_EQ(c.loss().difference(), 0.125);
  EXPECT_NEAR(c.loss().low(), 0.125 - 0.1117358, 1e-6);
  EXPECT_NEAR(c.loss().high(), 0.125 + 0.1117358, 1e-6);
  EXPECT_EQ(c.batches_size(), 8);
  EXPECT_FALSE(c.correlated()) << "they alternate: the lag-1 coefficient is negative";
  // e^2 * (e^d - 1)
  EXPECT_NEAR(c.perplexity().a(), 7.389056, 1e-6);
  EXPECT_NEAR(c.perplexity().b(), 8.372897, 1e-6);
  EXPECT_NEAR(c.perplexity().difference(), 0.983841, 1e-6);
  EXPECT_NEAR(c.perplexity().high(), 7.389056 * (std::exp(0.2367358) - 1), 1e-5);
}

TEST(CompareSteps, FewerThanEightGiveAMeanWithoutABand) {
  const auto [a, b] = Runs({0.5, 0.25, 0.25});
  const v1::Comparison c = CompareSteps(a, b);
  EXPECT_TRUE(c.comparable());
  EXPECT_NEAR(c.loss().difference(), 1.0 / 3, 1e-12);
  EXPECT_FALSE(c.loss().has_low());
  EXPECT_FALSE(c.perplexity().has_high());
}

TEST(CompareSteps, TokensWeighTheMean) {
  // (100 * 0 + 300 * 0.4) / 400
  const v1::Comparison c = CompareSteps({Step(0, 2.0, 7, 100), Step(1, 2.0, 7, 300)}, {Step(0, 2.0, 7, 100), Step(1, 2.4, 7, 300)});
  EXPECT_NEAR(c.loss().difference(), 0.3, 1e-12);
}

TEST(CompareSteps, MeansOfStretchesAreUsedWhileNeighboursAgree) {
  // 64 steps in stretches of 16 equal differences. 32 batches come in eights and 16 in fours: lag-1 coefficients (28 - 3) / 32 and (12 - 3) / 16
  // lie above 1.645 / sqrt(32) = 0.29 and 1.645 / 4 = 0.41. 8 come in pairs: (4 - 3) / 8 lies below 1.645 / sqrt(8) = 0.58.
  std::vector<double> differences;
  for (int i = 0; i < 64; ++i) differences.push_back(i / 16 % 2 == 0 ? 0 : 0.25);
  const auto [a, b] = Runs(differences);
  const v1::Comparison c = CompareSteps(a, b);
  ASSERT_EQ(c.batches_size(), 8);
  EXPECT_FALSE(c.correlated());
  EXPECT_EQ(c.batches(2).first_step(), 16);
  EXPECT_EQ(c.batches(2).last_step(), 23);
  EXPECT_DOUBLE_EQ(c.batches(2).loss_b_nats(), 2.25);
  EXPECT_NEAR(c.loss().high(), 0.125 + 0.1117358, 1e-6) << "as if each stretch were one step";
}

TEST(CompareSteps, ADifferenceThatGrowsAllAlongIsCalledCorrelated) {
  std::vector<double> differences;
  for (int i = 0; i < 320; ++i) differences.push_back(0.001 * i);
  const auto [a, b] = Runs(differences);
  const v1::Comparison c = CompareSteps(a, b);
  EXPECT_EQ(c.batches_size(), 8);
  EXPECT_TRUE(c.correlated());
}

TEST(CompareSteps, IndependentDifferencesAreCoveredByTheirBandAboutAsOftenAsItSays) {
  // A linear congruential generator: the same everywhere. True difference 0.01, noise uniform over +-0.1.
  std::uint64_t state = 12345;
  int covered = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<double> differences;
    for (int i = 0; i < 320; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      differences.push_back(0.01 + 0.2 * (static_cast<double>(state >> 11) * 0x1p-53 - 0.5));
    }
    const auto [a, b] = Runs(differences);
    const v1::Comparison c = CompareSteps(a, b);
    covered += c.loss().low() <= 0.01 && 0.01 <= c.loss().high();
  }
  EXPECT_GE(covered, 400 * 0.92);
  EXPECT_LE(covered, 400 * 0.98);
}

TEST(CompareSteps, StepsWithOtherTargetsAreLeftOutAndTheFirstIsNamed) {
  const v1::Comparison c = CompareSteps({Step(0, 2.0), Step(1, 2.0, 8), Step(2, 2.0, 9)}, {Step(0, 2.5), Step(1, 9.0, 5), Step(2, 9.0, 4)});
  EXPECT_TRUE(c.comparable());
  EXPECT_EQ(c.compared(), 1u);
  EXPECT_EQ(c.differing(), 2u);
  EXPECT_EQ(c.first_differing_step(), 1);
  EXPECT_THAT(c.first_difference(), HasSubstr("100 tokens in both, but target_fingerprint 0000000000000008 in a, 0000000000000005 in b"));
  EXPECT_DOUBLE_EQ(c.loss().difference(), 0.5);
}

TEST(CompareSteps, WhereEveryTargetDiffersNothingIsComparedAndTheReasonSaysWhy) {
  ComparedStep other = Step(4, 2.0, 9, 90);
  other.complete = false;
  const v1::Comparison c = CompareSteps({Step(4, 2.0)}, {other});
  EXPECT_FALSE(c.comparable());
  EXPECT_FALSE(c.has_loss());
  EXPECT_EQ(c.batches_size(), 0);
  EXPECT_THAT(c.reason(), HasSubstr("not comparable: the targets differ in every step that both have, first at step 4"));
  EXPECT_THAT(c.reason(), HasSubstr("100 tokens in the loss in a, 90 in b; ranks are missing from it in b"));
}

TEST(CompareSteps, WithoutFingerprintsTheNumberOfTokensDecides) {
  const v1::Comparison c = CompareSteps({Step(0, 2.0, 0), Step(1, 2.0, 0)}, {Step(0, 2.5), Step(1, 2.5, 3, 99)});
  EXPECT_EQ(c.matched_by(), "unmasked_tokens");
  EXPECT_EQ(c.compared(), 1u);
  EXPECT_EQ(c.first_differing_step(), 1);
  EXPECT_EQ(CompareSteps({Step(0, 2.0, 0), Step(1, 2.0)}, {Step(0, 2.5), Step(1, 2.5)}).matched_by(), "both");
}

TEST(CompareSteps, LossesThatAreAbsentOrNotFiniteAreCountedAndInNoMean) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const v1::Comparison c = CompareSteps({Step(0, 2.0), Step(1, nan), Step(2, 2.0)}, {Step(0, std::nullopt), Step(1, 2.0), Step(2, 3.0)});
  EXPECT_EQ(c.without_loss(), 2u);
  EXPECT_DOUBLE_EQ(c.loss().difference(), 1.0);
  const v1::Comparison none = CompareSteps({Step(0, nan)}, {Step(0, 2.0)});
  EXPECT_FALSE(none.comparable());
  EXPECT_THAT(none.reason(), HasSubstr("no step that both have has a finite loss"));
}

TEST(CompareSteps, WithoutACommonStepTheReasonSaysWhichEachHas) {
  const v1::Comparison c = CompareSteps({Step(0, 2.0), Step(1, 2.0)}, {Step(5, 2.0)});
  EXPECT_EQ(c.only_in_a(), 2u);
  EXPECT_EQ(c.only_in_b(), 1u);
  EXPECT_THAT(c.reason(), HasSubstr("(steps of a: 0 to 1; of b: 5 to 5)"));
  EXPECT_THAT(CompareSteps({}, {Step(5, 2.0)}).reason(), HasSubstr("steps of a: none"));
}

TEST(CompareSteps, AStepThatWasTrainedTwiceCountsAsItsNewestPass) {
  ComparedStep again = Step(1, 3.0);
  again.sequence = 50;
  const v1::Comparison c = CompareSteps({Step(0, 2.0), Step(1, 9.0), Step(2, 2.0), again}, {Step(0, 2.0), Step(1, 3.0), Step(2, 2.0)});
  EXPECT_EQ(c.compared(), 3u);
  EXPECT_DOUBLE_EQ(c.loss().difference(), 0.0);
}

TEST(CompareSteps, ARowOfThinnedStepsIsPairedWithTheSameStepsWhole) {
  // a: steps 0 to 2 thinned: tokens 600, fingerprints 1 + 2 + 3, mean 2. b whole: (100 * 1 + 200 * 2 + 300 * 4) / 600 = 17 / 6.
  const v1::Comparison c = CompareSteps({Row(0, 2, 2.0, 6, 600), Step(3, 2.0)}, {Step(0, 1.0, 1, 100), Step(1, 2.0, 2, 200), Step(2, 4.0, 3, 300), Step(3, 2.0)});
  EXPECT_EQ(c.compared(), 4u);
  EXPECT_EQ(c.only_in_b(), 0u);
  EXPECT_NEAR(c.loss().difference(), 600.0 / 700 * (17.0 / 6 - 2), 1e-12);
  EXPECT_EQ(c.batches_size(), 2);
  // One of them had other targets: the whole row differs.
  const v1::Comparison other = CompareSteps({Row(0, 2, 2.0, 6, 600)}, {Step(0, 1.0, 1, 100), Step(1, 2.0, 9, 200), Step(2, 4.0, 3, 300)});
  EXPECT_EQ(other.differing(), 3u);
  EXPECT_EQ(other.first_differing_step(), 0);
}

TEST(CompareSteps, RowsThatCoverOtherStepsAreNotPaired) {
  const v1::Comparison c = CompareSteps({Row(0, 3, 2.0, 6, 400), Step(4, 2.0)}, {Row(2, 5, 2.0, 6, 400)});
  EXPECT_FALSE(c.comparable());
  EXPECT_EQ(c.only_in_a(), 5u);
  EXPECT_EQ(c.only_in_b(), 4u);
}

}  // namespace
}  // namespace lossgauge::api
