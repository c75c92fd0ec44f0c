#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/joined_step.h"

namespace lossgauge::state {
namespace {

// One rank's record of a step with `tokens` tokens of `loss` nats each.
RankSample Sample(std::uint32_t rank, std::uint32_t world, std::uint64_t tokens, double nll_sum) {
  auto info = std::make_shared<ProducerInfo>();
  info->run = "run";
  info->attempt = "1";
  info->layout.world_size = world;
  info->layout.rank = rank;
  info->layout.dp = {world, rank};
  info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
  info->layout.has_loss = 1;
  RankSample sample;
  sample.producer = info;
  sample.record.present = LG_HAS_LOSS | LG_HAS_LOGITS;
  sample.record.step = 7;
  sample.record.tokens = sample.record.unmasked_tokens = sample.record.finite_tokens = tokens;
  sample.record.nll_sum = lg_fixed128_from_double(nll_sum);
  sample.record.target_fingerprint = 1000 + rank;
  sample.record.mask_fingerprint = 2000 + rank;
  return sample;
}

lg_layout* LayoutOf(RankSample* sample) { return &const_cast<ProducerInfo*>(sample->producer.get())->layout; }

// observer E4: 4 ranks with 5, 1, 7 and 0 tokens.
TEST(JoinSamples, LossIsTheRatioOfSumsAndNeverAMeanOfMeans) {
  const JoinedStep joined = JoinSamples({Sample(0, 4, 5, 10), Sample(1, 4, 1, 8), Sample(2, 4, 7, 7), Sample(3, 4, 0, 0)});
  ASSERT_TRUE(joined.summary.loss_nats);
  EXPECT_DOUBLE_EQ(*joined.summary.loss_nats, 25.0 / 13.0);
  EXPECT_NE(*joined.summary.loss_nats, (10.0 / 5 + 8.0 / 1 + 7.0 / 7) / 3);
  EXPECT_DOUBLE_EQ(*joined.summary.perplexity, std::exp(25.0 / 13.0));
  EXPECT_EQ(joined.summary.finite_tokens, 13u);
  EXPECT_EQ(joined.summary.ranks, 4u);
  ASSERT_EQ(joined.summary.rank_steps.size(), 4u);
  EXPECT_DOUBLE_EQ(*joined.summary.rank_steps[1].loss_nats, 8.0);
  EXPECT_FALSE(joined.summary.rank_steps[3].loss_nats) << "a rank without tokens has no loss; it is legal";
  EXPECT_TRUE(joined.all_ranks_visible);
}

// observer B7: no data is absent, neither 0 nor NaN nor -1.
TEST(JoinSamples, AStepWithoutTokensHasNoLoss) {
  const JoinedStep joined = JoinSamples({Sample(0, 2, 0, 0), Sample(1, 2, 0, 0)});
  EXPECT_FALSE(joined.summary.loss_nats);
  EXPECT_FALSE(joined.summary.perplexity);
  EXPECT_FALSE(joined.summary.log_z_mean_nats);
  EXPECT_FALSE(joined.summary.max_abs_logit);
  EXPECT_FALSE(joined.summary.accuracy);
}

TEST(JoinSamples, PipelineRanksWithoutALossTakeNoPart) {
  RankSample first = Sample(0, 2, 0, 0);
  first.record.present = LG_HAS_GRAD_NORM;
  first.record.grad_norm = 3;
  LayoutOf(&first)->has_loss = 0;
  LayoutOf(&first)->dp = {1, 0};
  LayoutOf(&first)->pp = {2, 0};
  RankSample last = Sample(1, 2, 4, 12);
  LayoutOf(&last)->dp = {1, 0};
  LayoutOf(&last)->pp = {2, 1};
  const JoinedStep joined = JoinSamples({first, last});
  EXPECT_DOUBLE_EQ(*joined.summary.loss_nats, 3.0);
  EXPECT_FALSE(joined.summary.rank_steps[0].loss_nats);
  EXPECT_DOUBLE_EQ(*joined.summary.grad_norm, 3.0);
  EXPECT_TRUE(joined.all_ranks_visible) << "one stage owns the head";
  // Placeholders of a stage without a head are no measurements, whatever its record claims.
  first.record.present |= LG_HAS_LOSS;
  first.record.tokens = first.record.unmasked_tokens = first.record.finite_tokens = 4;
  first.record.nll_sum = lg_fixed128_from_double(-4);
  EXPECT_DOUBLE_EQ(*JoinSamples({first, last}).summary.loss_nats, 3.0);
}

// Two tensor-parallel ranks report the same tokens: they count once, or every sum would be off by a factor.
TEST(JoinSamples, OneRankOfATensorParallelGroupCounts) {
  std::vector<RankSample> samples;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    RankSample sample = Sample(rank, 4, 5 + rank / 2, 10 + rank / 2);
    LayoutOf(&sample)->dp = {2, rank / 2};
    LayoutOf(&sample)->tp = {2, rank % 2};
    sample.record.target_fingerprint = 100 + rank / 2;
    samples.push_back(sample);
  }
  const JoinedStep joined = JoinSamples(samples);
  EXPECT_EQ(joined.summary.finite_tokens, 11u);
  EXPECT_DOUBLE_EQ(*joined.summary.loss_nats, 21.0 / 11.0);
  EXPECT_EQ(joined.summary.target_fingerprint, 201u);
  EXPECT_EQ(joined.samples.size(), 4u);
  EXPECT_TRUE(joined.all_ranks_visible);
}

TEST(JoinSamples, AGroupWhoseFirstRankIsAbsentStillCountsOnce) {
  std::vector<RankSample> samples;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    RankSample sample = Sample(rank, 4, 5, 10);
    LayoutOf(&sample)->dp = {1, 0};
    LayoutOf(&sample)->tp = {4, rank};
    samples.push_back(sample);
  }
  const JoinedStep joined = JoinSamples(samples);
  EXPECT_EQ(joined.summary.finite_tokens, 5u);
  EXPECT_FALSE(joined.all_ranks_visible);
}

TEST(JoinSamples, SumsAreExactWhateverTheirOrder) {
  const double tiny = std::ldexp(1.0, -60);
  std::vector<RankSample> samples = {Sample(0, 3, 1, 1e15), Sample(1, 3, 1, tiny), Sample(2, 3, 1, 0)};
  samples[2].record.nll_sum = lg_fixed128_negate(lg_fixed128_from_double(1e15));
  EXPECT_DOUBLE_EQ(*JoinSamples(samples).summary.loss_nats, tiny / 3);
}

TEST(JoinSamples, MaximaAndPlacesNameTheirRank) {
  RankSample a = Sample(0, 2, 4, 4), b = Sample(1, 2, 4, 4);
  a.record.present |= LG_HAS_WORST_ROW | LG_HAS_WORST_LOGIT;
  b.record.present |= LG_HAS_WORST_ROW | LG_HAS_WORST_LOGIT;
  a.record.max_abs_logit = 10;
  a.record.worst_row_nll = 9;
  a.record.worst_row_position = 3;
  a.record.worst_row_target = 33;
  b.record.max_abs_logit = 20;
  b.record.worst_logit_position = 5;
  b.record.worst_logit_column = 55;
  b.record.worst_row_nll = 8;
  a.record.log_z_max = -4;
  b.record.log_z_max = -5;
  const StepSummary summary = JoinSamples({a, b}).summary;
  EXPECT_EQ(*summary.max_abs_logit, 20);
  EXPECT_EQ(summary.worst_logit->rank, 1u);
  EXPECT_EQ(summary.worst_logit->position, 5);
  EXPECT_EQ(summary.worst_logit->token, 55);
  EXPECT_EQ(summary.worst_row->rank, 0u);
  EXPECT_EQ(summary.worst_row->position, 3);
  EXPECT_EQ(summary.worst_row->token, 33);
  EXPECT_EQ(*summary.log_z_max_nats, -4) << "a maximum below zero is not zero";
}

TEST(JoinSamples, ANonfiniteGradientNormDoesNotHideBehindTheOthers) {
  RankSample a = Sample(0, 2, 4, 4), b = Sample(1, 2, 4, 4);
  a.record.present |= LG_HAS_GRAD_NORM;
  b.record.present |= LG_HAS_GRAD_NORM;
  a.record.grad_norm = 5;
  b.record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(*JoinSamples({a, b}).summary.grad_norm));
  EXPECT_TRUE(std::isnan(*JoinSamples({b, a}).summary.grad_norm));
}

TEST(JoinSamples, BitsPerByteUsesOnlyTokensThatHaveBytes) {
  RankSample a = Sample(0, 1, 4, 40);
  a.record.present |= LG_HAS_TARGET_BYTES;
  a.record.scored_nll_sum = lg_fixed128_from_double(8 * std::log(2.0));
  a.record.target_bytes = 8;
  EXPECT_NEAR(*JoinSamples({a}).summary.bits_per_byte, 1.0, 1e-12);
  a.record.target_bytes = 0;
  EXPECT_FALSE(JoinSamples({a}).summary.bits_per_byte);
}

TEST(JoinSamples, LogitGradientNormIsAbsentWhereDenominatorsDiffer) {
  RankSample a = Sample(0, 1, 4, 40);
  a.record.present |= LG_HAS_LOGIT_GRAD | LG_HAS_DENOMINATOR;
  a.record.logit_grad_sq_sum = lg_fixed128_from_double(144);
  a.record.denominator_min = a.record.denominator_max = 4;
  EXPECT_DOUBLE_EQ(*JoinSamples({a}).summary.logit_grad_norm, 3.0);
  a.record.denominator_max = 5;
  EXPECT_FALSE(JoinSamples({a}).summary.logit_grad_norm);
}

TEST(JoinSamples, HiddenGradientsOfRanksAddAsSquaresAndHeadsGradientsDoNot) {
  RankSample a = Sample(0, 2, 4, 40), b = Sample(1, 2, 4, 40);
  for (RankSample* sample : {&a, &b}) {
    sample->record.present |= LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD | LG_HAS_DENOMINATOR;
    sample->record.denominator_min = sample->record.denominator_max = 4;
  }
  a.record.hidden_grad_sq_sum = lg_fixed128_from_double(144);
  b.record.hidden_grad_sq_sum = lg_fixed128_from_double(256);
  a.record.head_grad_sq_sum = b.record.head_grad_sq_sum = lg_fixed128_from_double(64);
  EXPECT_DOUBLE_EQ(*JoinSamples({a, b}).summary.hidden_grad_norm, 5.0);
  EXPECT_FALSE(JoinSamples({a, b}).summary.head_grad_norm) << "their gradients are added before the norm of the sum is known";
  EXPECT_DOUBLE_EQ(*JoinSamples({a}).summary.head_grad_norm, 2.0);
  b.record.present &= ~std::uint64_t{LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD};
  EXPECT_FALSE(JoinSamples({a, b}).summary.hidden_grad_norm) << "a rank with tokens did not measure it";
  EXPECT_FALSE(JoinSamples({a, b}).summary.head_grad_norm);
}

TEST(JoinSamples, AHeadsGradientARoundingBelowZeroIsZero) {
  RankSample a = Sample(0, 1, 4, 40);
  a.record.present |= LG_HAS_HEAD_GRAD | LG_HAS_DENOMINATOR;
  a.record.denominator_min = a.record.denominator_max = 4;
  a.record.head_grad_sq_sum = lg_fixed128_from_double(-1e-9);
  EXPECT_EQ(*JoinSamples({a}).summary.head_grad_norm, 0.0);
}

TEST(JoinSamples, AllRanksAreVisibleOnlyWhenTheWholeWorldIsHere) {
  EXPECT_FALSE(JoinSamples({Sample(0, 4, 5, 10), Sample(1, 4, 1, 8)}).all_ranks_visible);
  EXPECT_TRUE(JoinSamples({Sample(0, 2, 5, 10), Sample(1, 2, 1, 8)}).all_ranks_visible);
}

}  // namespace
}  // namespace lossgauge::state
