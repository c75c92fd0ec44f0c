#include "server/state/rank_spread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/history_codec.h"
#include "server/state/step_sums.h"

namespace lossgauge::state {
namespace {

StepSummary StepOf(std::uint32_t ranks) {
  StepSummary step;
  step.attempt = "1";
  step.ranks = ranks;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    RankSummary& summary = step.rank_steps.emplace_back();
    summary.rank = rank;
    summary.loss_nats = 2.0 + 0.001 * (rank % 7);
    summary.unmasked_tokens = 100;
  }
  return step;
}

TEST(RankSpread, StaysAwayWhileTheRanksCanBeKept) {
  StepSummary step = StepOf(8);
  BoundRankSteps(8, &step);
  EXPECT_EQ(step.rank_steps.size(), 8u);
  EXPECT_EQ(step.spread, nullptr);
}

TEST(RankSpread, KeepsMinimumMeanMaximumAndWhoStandsApart) {
  StepSummary step = StepOf(700);
  step.rank_steps[333].loss_nats = 2.5;
  step.rank_steps[10].loss_nats = 1.2;
  step.rank_steps[20].nonfinite_rows = 1;
  step.rank_steps[30].lost_before = 2;
  step.rank_steps[40].loss_nats = std::numeric_limits<double>::quiet_NaN();
  step.rank_steps[50].loss_nats.reset();
  double sum = 0;
  int finite = 0;
  for (const RankSummary& rank : step.rank_steps) {
    if (!rank.loss_nats || !std::isfinite(*rank.loss_nats)) continue;
    sum += *rank.loss_nats;
    ++finite;
  }
  BoundRankSteps(500, &step);
  ASSERT_NE(step.spread, nullptr);
  EXPECT_EQ(step.spread->ranks, 700u);
  const ValueSpread& loss = step.spread->loss_nats;
  EXPECT_EQ(loss.ranks, 698u);
  EXPECT_EQ(loss.min_rank, 10u);
  EXPECT_DOUBLE_EQ(loss.min, 1.2);
  EXPECT_EQ(loss.max_rank, 333u);
  EXPECT_DOUBLE_EQ(loss.max, 2.5);
  EXPECT_NEAR(loss.mean, sum / finite, 1e-12);
  EXPECT_EQ(step.spread->grad_norm.ranks, 0u);
  EXPECT_DOUBLE_EQ(step.spread->unmasked_tokens.mean, 100);
  std::vector<std::uint32_t> kept;
  for (const RankSummary& rank : step.rank_steps) kept.push_back(rank.rank);
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{10, 20, 30, 333}));
}

TEST(RankSpread, BoundsEvenThoseThatStandApart) {
  StepSummary step = StepOf(1000);
  for (std::uint32_t rank = 0; rank < 1000; rank += 3) step.rank_steps[rank].nonfinite_rows = 1;
  BoundRankSteps(500, &step);
  EXPECT_EQ(step.rank_steps.size(), 32u);
  EXPECT_TRUE(std::is_sorted(step.rank_steps.begin(), step.rank_steps.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; }));
}

TEST(RankSpread, ComesBackFromHistoryAsItWas) {
  StepSummary step = StepOf(700);
  step.rank_steps[333].loss_nats = 2.5;
  BoundRankSteps(500, &step);
  const std::string bytes = EncodeStep(step);
  EXPECT_LT(bytes.size(), 400u) << "hundreds of ranks in some hundred bytes";
  const auto back = DecodeStep(bytes);
  ASSERT_TRUE(back);
  ASSERT_NE(back->spread, nullptr);
  EXPECT_EQ(back->spread->loss_nats.max_rank, 333u);
  EXPECT_DOUBLE_EQ(back->spread->loss_nats.mean, step.spread->loss_nats.mean);
  ASSERT_EQ(back->rank_steps.size(), 1u);
  EXPECT_EQ(back->rank_steps[0].rank, 333u);
  EXPECT_TRUE(DecodeStep(bytes, false));
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodeStep(bytes.substr(0, cut))) << cut;
}

RankSample Sample(std::uint32_t rank, std::uint32_t tensor, std::uint64_t tokens, double nll) {
  auto info = std::make_shared<ProducerInfo>();
  info->layout.world_size = 8;
  info->layout.rank = rank;
  info->layout.tp = {tensor, rank % tensor};
  info->layout.dp = {8 / tensor, rank / tensor};
  info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
  info->layout.has_loss = 1;
  RankSample sample;
  sample.producer = info;
  sample.record.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_DENOMINATOR;
  sample.record.tokens = sample.record.unmasked_tokens = sample.record.finite_tokens = tokens;
  sample.record.nll_sum = lg_fixed128_from_double(nll);
  sample.record.denominator_min = sample.record.denominator_max = static_cast<double>(tokens);
  sample.record.target_fingerprint = 7 * rank;
  sample.record.max_abs_logit = rank;
  return sample;
}

// A step that is joined in parts has the values of one that is joined at once.
TEST(StepSums, LateRanksGiveWhatAWholeJoinGives) {
  for (const std::uint32_t tensor : {1u, 2u, 4u}) {
    SCOPED_TRACE(tensor);
    std::vector<RankSample> all;
    for (std::uint32_t rank = 0; rank < 8; ++rank) {
      const std::uint32_t group = rank / tensor;  // ranks of a group report the same sums
      all.push_back(Sample(rank, tensor, 10 + group, 31.25 + group));
      all.back().record.target_fingerprint = 7 * group;
    }
    const StepSummary whole = JoinSamples(all).summary;
    StepSums sums;
    StepSummary parts;
    for (const std::size_t i : {5, 2, 7, 0, 1, 6, 3, 4}) sums.Add(all[i]);
    sums.Summarize(&parts);
    EXPECT_EQ(parts.tokens, whole.tokens);
    EXPECT_EQ(*parts.loss_nats, *whole.loss_nats);
    EXPECT_EQ(*parts.perplexity, *whole.perplexity);
    EXPECT_EQ(parts.target_fingerprint, whole.target_fingerprint);
    EXPECT_EQ(*parts.denominator_max, *whole.denominator_max);
    EXPECT_EQ(*parts.max_abs_logit, 7);
  }
}

}  // namespace
}  // namespace lossgauge::state
