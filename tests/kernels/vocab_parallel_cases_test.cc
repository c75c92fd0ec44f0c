// The vocabulary-parallel loss where sharding itself bites: edges of shards, shards without columns, what only one rank can see, one outcome for all ranks.
// (The cases of the unsharded loss run over shards in sharded_conformance_test.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/kernels/chance.h"
#include "tests/kernels/check.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/recipes.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {
namespace {

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};

Problem Base(std::int64_t rows = 8, std::int64_t columns = 1000) { return MakeProblem(Z(rows, columns), Y(rows, columns)); }

// The form of the textbook, in float64: all-reduce the maximum, then the sum of exponentials and the target's logit.
std::vector<double> TextbookLosses(const Problem& problem, const std::vector<Shard>& shards) {
  std::vector<double> losses;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const std::int64_t target = problem.targets[static_cast<std::size_t>(i)];
    const auto z = [&](std::int64_t column) { return problem.logits[static_cast<std::size_t>(i * problem.columns + column)]; };
    double max = -HUGE_VAL, sum = 0, target_z = 0;
    for (const Shard& shard : shards) {
      for (std::int64_t j = 0; j < shard.columns; ++j) max = std::max(max, z(shard.offset + j));
    }
    for (const Shard& shard : shards) {
      for (std::int64_t j = 0; j < shard.columns; ++j) sum += std::exp(z(shard.offset + j) - max);
      if (target >= shard.offset && target < shard.offset + shard.columns) target_z += z(target) - max;
    }
    losses.push_back(target == problem.ignore_index ? 0 : std::log(sum) - target_z);
  }
  return losses;
}

TEST(VocabParallel, TheTextbookFormGivesTheSameLosses) {
  Problem problem = Base();
  problem.targets[3] = -100;
  for (const int count : {2, 3, 8}) {
    const std::vector<Shard> shards = EvenShards(1000, count);
    Ranks ranks(problem, shards);
    ranks.Run();
    const std::vector<double> right = TextbookLosses(problem, shards);
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(ranks.calls[0].losses[i], right[i], 1e-6 * right[i]);
  }
}

TEST(VocabParallel, AGroupOfOneHasTheBitsOfTheUnshardedLoss) {
  for (const int round : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
    Problem problem = Base(9, 1237);
    problem.dtype = kDtypes[round % 3];
    problem.label_smoothing = round % 2 * 0.1;
    problem.z_loss_weight = 1e-3;
    if (round >= 6) problem.logit_scale = 0.7;
    if (round >= 9) problem.logit_softcap = 11;
    for (std::size_t i = 0; i < 3; ++i) problem.logits[i * 1237 + static_cast<std::size_t>(problem.targets[i])] += 25.0 * static_cast<double>(i);
    problem.targets[5] = -100;
    const Outcome right = TestedBackend().Run(problem);
    Ranks ranks(problem, {{0, 1237}});
    ranks.Run();
    ranks.ExpectOneOutcome();
    EXPECT_EQ(ranks.calls[0].losses, right.losses);
    EXPECT_EQ(ranks.calls[0].log_z, right.log_z);
    EXPECT_EQ(ranks.calls[0].loss, right.loss);
    EXPECT_EQ(ranks.calls[0].grad, right.grad_bytes);
  }
}

TEST(VocabParallel, AnyGroupAndAnyWidthsGiveTheLossOfTheWhole) {
  for (const int dtype : kDtypes) {
    for (const std::vector<std::int64_t>& widths :
         {std::vector<std::int64_t>{500, 500}, {1, 999}, {999, 1}, {333, 334, 333}, {0, 1000}, {1000, 0}, {400, 0, 600}, {1, 1, 1, 997},
          {125, 125, 125, 125, 125, 125, 125, 125}, {64, 128, 1, 300, 7, 255, 245}}) {
      Problem problem = Base();
      problem.dtype = dtype;
      Ranks ranks(problem, ShardsOf(widths));
      ranks.Run();
      ranks.ExpectLikeOracle();
    }
  }
}

TEST(VocabParallel, RanksNeedNotBeInTheOrderOfTheirColumns) {
  const std::vector<Shard> shards = {{700, 300}, {0, 200}, {200, 500, 12}};
  Ranks ranks(Base(), shards);
  ranks.Run();
  ranks.ExpectLikeOracle();
}

TEST(VocabParallel, TargetsOnBothEdgesOfEveryShard) {
  const std::vector<Shard> shards = ShardsOf({128, 1, 300, 71});
  Problem problem = Base(10, 500);
  problem.targets = {0, 127, 128, 129, 428, 429, 499, 300, 1, 498};
  Ranks ranks(problem, shards);
  ranks.Run();
  ranks.ExpectLikeOracle();
}

TEST(VocabParallel, B30_AnIgnoreIndexThatIsAClassOfSomeShardIsNotGathered) {
  Problem problem = MakeProblem(Z(4, 5), {2, 0, 2, 4});
  problem.ignore_index = 2;
  for (const std::vector<std::int64_t>& widths : {std::vector<std::int64_t>{3, 2}, {2, 3}, {1, 1, 1, 1, 1}}) {
    Ranks ranks(problem, ShardsOf(widths));
    ranks.Run();
    ranks.ExpectLikeOracle();
    ExpectRightNotWrong(static_cast<double>(ranks.calls[0].loss), 4.524547733760, 4.722220990516);
  }
}

TEST(VocabParallel, B45_LabelSmoothingIsOverAllColumns) {
  Problem problem = MakeProblem(Z(6, 8), {7, 6, 5, 4, 3, 2});
  problem.label_smoothing = 0.1;
  for (const int count : {1, 2, 4, 8}) {
    Ranks ranks(problem, EvenShards(8, count));
    ranks.Run();
    ranks.ExpectLikeOracle();
    for (const double wrong : {5.191360691441, 5.230596802552, 5.135067288663, 5.149780830330}) {
      ExpectRightNotWrong(static_cast<double>(ranks.calls[0].loss), 5.174390205330, wrong);
    }
    EXPECT_NEAR(Norm(ranks.Gradient()), 0.393867691959, 4e-7);
  }
}

TEST(VocabParallel, B46_PaddedColumnsTakeNoPart) {
  Problem problem = MakeProblem(Z(6, 8), {1, 0, 5, 4, 3, 2});
  problem.vocab_size = 6;
  for (const double smoothing : {0.0, 0.1}) {
    problem.label_smoothing = smoothing;
    // The last two columns are padding: of the last shard, or a shard of padding alone.
    for (const std::vector<Shard>& shards : {std::vector<Shard>{{0, 4}, {4, 2, 2}}, {{0, 2}, {2, 2}, {4, 2}, {6, 0, 2}}, {{0, 6}, {6, 0, 2}}}) {
      Ranks ranks(problem, shards);
      ranks.Run();
      ranks.ExpectOneOutcome();
      ranks.ExpectLikeOracle();
      const double loss = static_cast<double>(ranks.calls[0].loss);
      if (smoothing == 0) {
        ExpectRightNotWrong(loss, 4.925695008241, 5.252124580330);
        ExpectRightNotWrong(loss, 4.925695008241, 4.975915748642);
      } else {
        ExpectRightNotWrong(loss, 5.014931119353, 5.343140205330);
        ExpectRightNotWrong(loss, 5.014931119353, 5.016710633241);
      }
    }
  }
}

TEST(VocabParallel, B48_AContributionIsWrittenToItsLastByteAndNoFurther) {
  Problem problem = MakeProblem(TimesTransposed(X(4, 64), W(130, 64), 4, 130, 64), {7, 38, 69, 100});
  Ranks ranks(problem, EvenShards(130, 2));
  const auto bytes = static_cast<std::size_t>(ContributionBytes(4));
  EXPECT_EQ(bytes, 128u + 4 * 64);
  ExchangeMemory guarded(bytes + 64);
  ASSERT_EQ(lg_vocab_parallel_begin(&ranks.calls[0].args, guarded.data()), LG_OK) << lg_last_error();
  for (std::size_t at = bytes; at < guarded.bytes(); ++at) EXPECT_EQ(guarded.data()[at], 0xa5);
  ranks.Run();
  ranks.ExpectLikeOracle();
  // dX is the sum of both shards' parts, dW the shards' own, one below the other.
  const std::vector<double> gradient = ranks.Gradient();
  const Matrix dx = TimesTransposed(gradient, Transposed(W(130, 64), 130, 64), 4, 64, 130);
  EXPECT_NEAR(Norm(dx), 1.614871478874, 2e-6);
  EXPECT_NEAR(static_cast<double>(ranks.calls[0].loss), 7.855416162825, 8e-6);
}

TEST(VocabParallel, B50_TheGradientIsInTheDtypeOfTheLogits) {
  for (const int dtype : kDtypes) {
    for (const int count : {1, 2}) {
      Problem problem = Base();
      problem.dtype = dtype;
      Ranks ranks(problem, EvenShards(1000, count));
      ranks.Run();
      ranks.ExpectLikeOracle();
    }
  }
}

TEST(VocabParallel, B17_AShardOfMinusInfinityIsAShardOfZeros) {
  std::vector<double> logits(16, -HUGE_VAL);
  for (std::size_t j = 0; j < 8; ++j) logits[j] = static_cast<double>(j) / 4;
  for (const bool swapped : {false, true}) {
    Problem problem = MakeProblem(logits, {swapped ? 11 : 3});
    if (swapped) std::rotate(problem.logits.begin(), problem.logits.begin() + 8, problem.logits.end());
    Ranks ranks(problem, EvenShards(16, 2));
    ranks.Run();
    ranks.ExpectLikeOracle();
    EXPECT_NEAR(static_cast<double>(ranks.calls[0].loss), 2.363278091577, 2e-6);
    EXPECT_NEAR(static_cast<double>(ranks.calls[0].log_z[0]), 3.113278091577, 3e-6);
    problem.label_smoothing = 0.1;  // over columns of -inf: +inf, and no NaN from -inf - -inf
    Ranks smoothed(problem, EvenShards(16, 2));
    smoothed.Run();
    smoothed.ExpectLikeOracle();
    EXPECT_EQ(smoothed.calls[0].losses[0], HUGE_VALF);
  }
}

TEST(VocabParallel, WhatOneShardAloneSeesIsDecidedEquallyOnAllRanks) {
  constexpr double kInfinity = HUGE_VAL;
  for (const double smoothing : {0.0, 0.1}) {
    for (const double strange : {std::nan(""), kInfinity, -kInfinity}) {
      for (const std::int64_t column : {0, 7, 8, 15, 23}) {
        Problem problem = Base(5, 24);
        problem.targets = {0, 8, 15, 20, 23};
        problem.label_smoothing = smoothing;
        for (const std::size_t row : {1u, 4u}) problem.logits[row * 24 + static_cast<std::size_t>(column)] = strange;
        Ranks ranks(problem, ShardsOf({8, 8, 0, 8}));
        ranks.Run();
        ranks.ExpectLikeOracle();
      }
    }
  }
}

TEST(VocabParallel, ARowOfNothingButMinusInfinityIsNan) {
  Problem problem = Base(3, 24);
  std::fill(problem.logits.begin() + 24, problem.logits.begin() + 48, -HUGE_VAL);
  Ranks ranks(problem, EvenShards(24, 3));
  ranks.Run();
  ranks.ExpectLikeOracle();
  EXPECT_TRUE(std::isnan(ranks.calls[2].losses[1]));
  EXPECT_FALSE(std::isnan(ranks.calls[2].losses[0]));
}

TEST(VocabParallel, B13_B14_ConfidentTokensKeepTheirDigitsWhereverTheTargetIs) {
  for (const std::int64_t target : {10, 400, 777, 999}) {
    for (const double c : {12.0, 17.25, 30.0, 40.0}) {
      for (const double level : {0.0, 4096.0}) {
        std::vector<double> logits(1000, level);
        logits[static_cast<std::size_t>(target)] += c;
        Problem problem = MakeProblem(logits, {target});
        Ranks ranks(problem, EvenShards(1000, 4));
        ranks.Run();
        ranks.ExpectLikeOracle();
        EXPECT_NEAR(static_cast<double>(ranks.calls[0].losses[0]), std::log1p(999 * std::exp(-c)), 1e-6 * 999 * std::exp(-c));
      }
    }
  }
}

TEST(VocabParallel, B13_ALeadThatFp32CannotHoldKeepsItsDigits) {
  // The loss is one exponential of a difference whose last bits fp32 rounds away: by chance, since many round well.
  for (int round = 0; round < 60; ++round) {
    Chance chance(static_cast<std::uint64_t>(round));
    const double low = chance.Uniform(-5, 5);
    std::vector<double> logits(6, static_cast<double>(static_cast<float>(low)));
    const std::int64_t target = chance.Below(6);
    logits[static_cast<std::size_t>(target)] = static_cast<double>(static_cast<float>(low + chance.Uniform(33, 62)));
    Problem problem = MakeProblem(logits, {target});
    Ranks ranks(problem, EvenShards(6, 1 + round % 3));
    ranks.Run();
    ranks.ExpectLikeOracle();
  }
}

TEST(VocabParallel, ShiftedRowsHaveTheSameBits) {
  Problem problem = Base(5, 777);
  Ranks at_rest(problem, EvenShards(777, 3));
  at_rest.Run();
  for (double& z : problem.logits) z += 4096;
  Ranks shifted(problem, EvenShards(777, 3));
  shifted.Run();
  EXPECT_EQ(at_rest.calls[1].losses, shifted.calls[1].losses);
  EXPECT_EQ(at_rest.calls[1].grad, shifted.calls[1].grad);
}

TEST(VocabParallel, OptionsByChance) {
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Chance chance(static_cast<std::uint64_t>(round));
    Problem problem = Base(6, 20 + chance.Below(400));
    problem.dtype = kDtypes[chance.Below(3)];
    if (chance.OneIn(2)) problem.label_smoothing = 0.1;
    if (chance.OneIn(2)) problem.z_loss_weight = 1e-3;
    if (chance.OneIn(3)) problem.logit_softcap = 6;
    if (chance.OneIn(3)) problem.logit_scale = -0.7;
    if (chance.OneIn(3)) problem.upstream = {-2.5f};
    if (chance.OneIn(3)) problem.upstream = {1, 0, 2, -1, 0.5f, 8};
    problem.reduction = problem.upstream.size() > 1 ? LG_NONE : static_cast<int>(chance.Below(2));
    problem.in_place = chance.OneIn(3);
    problem.threads = static_cast<int>(1 + chance.Below(3));
    if (chance.OneIn(3)) problem.targets[2] = -100;
    if (chance.OneIn(4)) problem.targets[4] = problem.columns;  // out of range
    std::vector<std::int64_t> widths;
    std::int64_t left = problem.columns;
    for (std::int64_t more = chance.Below(6); more > 0; --more) {
      widths.push_back(chance.Below(left + 1));
      left -= widths.back();
    }
    widths.push_back(left);
    Ranks ranks(problem, ShardsOf(widths));
    ranks.Run();
    ranks.ExpectLikeOracle();
  }
}

TEST(VocabParallel, ZeroRowsAndMaskedRowsOnly) {
  Problem empty = Base(1, 30);
  empty.rows = 0;
  empty.logits.clear();
  empty.targets.clear();
  Ranks none(empty, EvenShards(30, 3));
  none.Run();
  none.ExpectOneOutcome();
  EXPECT_EQ(none.calls[0].loss, 0.0f);
  Problem masked = Base(4, 30);
  masked.targets.assign(4, -100);
  std::fill(masked.logits.begin(), masked.logits.end(), std::nan(""));
  Ranks ranks(masked, EvenShards(30, 3));
  ranks.Run();
  ranks.ExpectOneOutcome();
  EXPECT_EQ(ranks.calls[1].loss, 0.0f);
  for (const double g : ranks.Gradient()) EXPECT_EQ(g, 0);
}

TEST(VocabParallel, ALaterUpstreamIsOneMoreFinishWithKeptContributions) {
  Problem problem = Base();
  Ranks ranks(problem, EvenShards(1000, 3));
  ranks.Run();
  Problem later = problem;
  later.upstream = {3};
  Ranks right(later, EvenShards(1000, 3));
  right.Run();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    RankCall& call = ranks.calls[rank];
    call.upstream = {3};
    call.args.loss.upstream = call.upstream.data();
    call.args.loss.losses = call.args.loss.log_z = nullptr;
  }
  ranks.Finish();
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.calls[rank].grad, right.calls[rank].grad);
}

TEST(VocabParallel, ContributionsMayLieFurtherApart) {
  Problem problem = Base();
  Ranks ranks(problem, EvenShards(1000, 2));
  ranks.Begin();
  const auto bytes = static_cast<std::size_t>(ContributionBytes(8));
  ExchangeMemory apart(2 * (bytes + 48));
  for (std::size_t rank = 0; rank < 2; ++rank) std::memcpy(apart.data() + rank * (bytes + 48), ranks.calls[rank].contribution.data(), bytes);
  for (RankCall& call : ranks.calls) {
    call.args.gathered_stride = static_cast<std::int64_t>(bytes + 48);
    call.Finish(apart);
  }
  ranks.ExpectLikeOracle();
}

TEST(VocabParallel, ATieGoesToTheLowestColumnOfAllRanks) {
  // Correct only if no column before the target, of whichever rank, is as large.
  for (const std::int64_t rival : {0, 5, 12, 20, 29}) {
    for (const std::int64_t target : {0, 5, 12, 20, 29}) {
      std::vector<double> logits(30, -1);
      logits[static_cast<std::size_t>(rival)] = logits[static_cast<std::size_t>(target)] = 3;
      const Problem problem = MakeProblem(logits, {target});
      // Ranks out of the order of their columns.
      const std::vector<Shard> shards = {{20, 10}, {0, 10}, {10, 10}};
      std::vector<std::unique_ptr<Telemetry>> gauges;
      Ranks ranks(problem, shards);
      for (RankCall& call : ranks.calls) {
        gauges.push_back(TestedBackend().OpenTelemetry({30, {}}));
        call.args.loss.gauge = gauges.back()->gauge();
      }
      ranks.Run();
      for (const auto& gauge : gauges) EXPECT_EQ(gauge->Publish().correct_tokens, target <= rival ? 1u : 0u) << "target " << target << ", rival " << rival;
    }
  }
}

}  // namespace
}  // namespace lossgauge::test
