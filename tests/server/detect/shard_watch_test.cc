// Shards in the wrong place: seen against a healthy baseline, named, and not invented.
#include "server/detect/shard_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kTensorParallel = 4;
constexpr std::array<double, kTensorParallel> kShares = {0.55, 0.25, 0.15, 0.05};  // of targets, as tokenizers number them: frequent ones first

class ShardWatch : public ::testing::Test {
 protected:
  // One step: what each rank has of the probability and of the targets, with the noise of `tokens` tokens.
  void Step(double loss, std::array<double, kTensorParallel> mass = kShares, std::array<double, kTensorParallel> hits = kShares,
            std::optional<double> grad_norm = 0.24) {
    const double token = 1.0 / std::sqrt(static_cast<double>(job.tokens));
    std::array<double, kTensorParallel> noisy_hits = hits, noisy_mass = mass;
    double spread_hits = 0, spread_mass = 0;
    for (std::uint32_t r = 1; r < kTensorParallel; ++r) {
      const double moved_hits = std::max(0.2 * token * noise.Next(), -hits[r]);
      const double moved_mass = std::max(0.15 * token * noise.Next() + moved_hits, -mass[r]);
      noisy_hits[r] += moved_hits;
      noisy_mass[r] += moved_mass;
      spread_hits += moved_hits;
      spread_mass += moved_mass;
    }
    noisy_hits[0] -= spread_hits;
    noisy_mass[0] -= spread_mass;
    std::array<std::uint64_t, kTensorParallel> counted{};
    std::uint64_t rest = job.tokens;
    for (std::uint32_t r = 1; r < kTensorParallel; ++r) {
      counted[r] = static_cast<std::uint64_t>(noisy_hits[r] * static_cast<double>(job.tokens));
      rest -= counted[r];
    }
    counted[0] = rest;
    job.Step({.loss = loss, .grad_norm = grad_norm, .edit = [&](std::uint32_t rank, lg_step_record& record) {
                const std::uint32_t r = rank % kTensorParallel;
                record.present |= LG_HAS_MASS | LG_HAS_LOGITS;
                record.probability_mass = lg_fixed128_from_double(noisy_mass[r] * static_cast<double>(record.finite_tokens));
                record.target_hits = counted[r];
              }});
  }
  void Healthy(int steps) {
    for (int i = 0; i < steps; ++i) Step(2.2 + 0.02 * job.noise.Next());
  }
  std::optional<state::Incident> Found() const { return job.FindOpen(Condition::kIntegrity, "shard"); }

  JudgeScript job{detect::DefaultPolicies().defaults, 1, kTensorParallel};
  Noise noise{11, 1};
};

TEST_F(ShardWatch, TwoSwappedShardsAreNamedAtTheirFirstStepAndHaltAtTheThird) {
  Healthy(100);
  Step(6.1, {0.25, 0.55, 0.15, 0.05});
  ASSERT_TRUE(Found());
  EXPECT_THAT(Found()->summary, HasSubstr("Ranks 0 and 1 seem to hold each other's shard"));
  EXPECT_EQ(Found()->severity, state::Severity::kWarning);
  Step(6.2, {0.25, 0.55, 0.15, 0.05});
  job.Look();
  EXPECT_NE(job.Verdict().action, Action::kHalt);
  Step(6.1, {0.25, 0.55, 0.15, 0.05});
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kHalt);
  EXPECT_THAT(job.Verdict().reason_codes, ::testing::Contains("integrity/shard"));
}

TEST_F(ShardWatch, AShardOfAnotherLayerNamesItsRank) {
  Healthy(100);
  Step(4.0, {0.45, 0.18, 0.33, 0.04});
  ASSERT_TRUE(Found());
  EXPECT_EQ(Found()->rank, 2u);
  EXPECT_THAT(Found()->summary, HasSubstr("Rank 2 seems to hold a shard that is not its own"));
}

TEST_F(ShardWatch, AResumeWithSwappedShardsIsSeenAtItsFirstStep) {
  Healthy(100);
  job.NewAttempt("2", 90);
  Step(6.1, {0.55, 0.25, 0.05, 0.15});
  ASSERT_TRUE(Found());
  EXPECT_THAT(Found()->summary, HasSubstr("Ranks 2 and 3"));
}

TEST_F(ShardWatch, SurvivesARestartOfTheSidecar) {
  Healthy(100);
  job.Restart();
  Step(6.1, {0.25, 0.55, 0.15, 0.05});
  EXPECT_TRUE(Found());
}

TEST_F(ShardWatch, BeforeABaselineItCannotBeSeen) {
  for (int i = 0; i < 20; ++i) Step(6.1, {0.25, 0.55, 0.15, 0.05});
  EXPECT_FALSE(Found());
}

TEST_F(ShardWatch, IsOverThirtyStepsAfterItsEnd) {
  Healthy(100);
  for (int i = 0; i < 2; ++i) Step(6.1, {0.25, 0.55, 0.15, 0.05});
  Healthy(29);
  EXPECT_TRUE(Found());
  Healthy(2);
  EXPECT_FALSE(Found());
}

// Each moves probability, or the loss; none is a shard in the wrong place.
TEST_F(ShardWatch, SpikesOfTrainingAndOddBatchesAreNone) {
  Healthy(100);
  for (int i = 0; i < 5; ++i) Step(3.9);  // the probability lies where it was
  Healthy(60);
  Step(3.9, {0.30, 0.20, 0.20, 0.30}, {0.25, 0.20, 0.20, 0.35});  // other targets, and the model follows
  Healthy(60);
  for (const double norm : {0.9, 2.4, 15.9, 145.0}) Step(2.25, kShares, kShares, norm);
  for (int i = 0; i < 6; ++i) Step(5.0, {0.75, 0.15, 0.07, 0.03}, kShares, 400.0);  // the gradient norm led it
  Healthy(60);
  for (int i = 0; i < 5; ++i) Step(2.25 + 0.3 * i, kShares);                          // a rise over several steps
  for (int i = 0; i < 6; ++i) Step(4.2, {0.75, 0.15, 0.07, 0.03});
  EXPECT_EQ(job.Opened(Condition::kIntegrity, "shard"), 0u);
}

TEST_F(ShardWatch, TenThousandHealthyStepsOfAnySizeRaiseNothing) {
  Noise loss(3, 0.05, 0.3), share(4, 1);
  std::array<double, kTensorParallel> shares = kShares;
  for (int i = 0; i < 10'000; ++i) {
    job.tokens = i % 7 == 0 ? 64 : i % 3 == 0 ? 100'000 : 2048;
    if (i % 500 == 0) shares = {0.55 + 0.01 * share.Next(), 0.25, 0.15, 0.05};  // the data's mixture wanders
    shares[1] = 1 - shares[0] - shares[2] - shares[3];
    const bool odd = i % 211 == 0;
    Step(2.2 + loss.Next() + (odd ? 0.9 : 0), shares, shares);
  }
  EXPECT_EQ(job.Opened(Condition::kIntegrity), 0u);
}

}  // namespace
}  // namespace lossgauge::testing
