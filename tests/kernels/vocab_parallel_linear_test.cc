// Linear cross-entropy over a head that is cut into the ranks' shards: the loss and gradients of the whole head on every rank, by chunks, whatever the options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/chance.h"
#include "tests/kernels/recipes.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_linear_problem.h"
#include "tests/kernels/vocab_parallel_linear_ranks.h"

namespace lossgauge::test {
namespace {

using testing::HasSubstr;

TEST(VocabParallelLinear, AnyGroupAndAnyWidthsGiveLossAndGradientsOfTheWholeHead) {
  for (const int dtype : kDtypes) {
    for (const std::vector<std::int64_t>& widths : {std::vector<std::int64_t>{300},
                                                    {150, 150},
                                                    {1, 299},
                                                    {299, 1},
                                                    {100, 100, 100},
                                                    {0, 300},
                                                    {120, 0, 180},
                                                    {75, 75, 75, 75},
                                                    {38, 38, 38, 38, 37, 37, 37, 37}}) {
      LinearProblem problem = Base(dtype);
      problem.bias = std::vector<double>(kVocab);
      for (std::size_t j = 0; j < problem.bias.size(); ++j) problem.bias[j] = BiasStep(problem) * static_cast<double>(j % 5);
      LinearRanks ranks(problem, ShardsOf(widths));
      ranks.Run();
      ranks.ExpectLikeOracle();
      EXPECT_EQ(ranks.calls[0]->exchanges, 4) << "23 rows in chunks of 6, whether masked or not";
    }
  }
}

TEST(VocabParallelLinear, AnyOptions) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chance chance(seed);
    const std::int64_t rows = 1 + chance.Below(40), width = 1 + chance.Below(20), vocab = 1 + chance.Below(400);
    LinearProblem problem = MakeLinearProblem(X(rows, width), W(vocab, width), Y(rows, vocab));
    problem.dtype = kDtypes[chance.Below(3)];
    problem.logits_dtype = chance.OneIn(3) ? problem.dtype : -1;
    problem.head_grad_dtype = chance.OneIn(2) ? problem.dtype : LG_FP32;
    Problem& loss = problem.loss;
    if (chance.OneIn(3)) loss.label_smoothing = chance.Uniform(0, 0.3);
    if (chance.OneIn(3)) loss.z_loss_weight = chance.Uniform(0, 1e-3);
    if (chance.OneIn(4)) loss.logit_scale = chance.Uniform(-2, 2);
    if (chance.OneIn(4)) loss.logit_softcap = chance.Uniform(1, 50);
    loss.reduction = static_cast<int>(chance.Below(3));
    if (loss.reduction == LG_MEAN && chance.OneIn(2)) (chance.OneIn(2) ? loss.denominator : loss.denominator_by_pointer) = chance.Uniform(1, 5000);
    if (chance.OneIn(3)) loss.upstream.push_back(static_cast<float>(chance.Uniform(0.1, 3)));
    for (std::int64_t i = 0; loss.upstream.empty() && chance.OneIn(2) && i < rows; ++i) loss.upstream.assign(static_cast<std::size_t>(rows), 2.5f);
    if (chance.OneIn(4)) loss.by_grad_scale_pointer = true, loss.grad_scale = 64;
    loss.threads = static_cast<int>(1 + chance.Below(3));
    for (std::int64_t& target : loss.targets) {
      if (chance.OneIn(4)) target = -100;
      if (chance.OneIn(15)) target = vocab + chance.Below(3);
    }
    if (chance.OneIn(2)) {
      for (std::int64_t j = 0; j < vocab; ++j) problem.bias.push_back(BiasStep(problem) * static_cast<double>(chance.Below(17) - 8));
    }
    if (chance.OneIn(6)) problem.hidden[static_cast<std::size_t>(chance.Below(rows * width))] = std::nan("");
    problem.wants_grad_hidden = !chance.OneIn(4);
    problem.wants_grad_weight = !chance.OneIn(4);
    problem.wants_grad_bias = !chance.OneIn(4);
    if (!chance.OneIn(3)) problem.chunk_rows = 1 + chance.Below(rows + 2);
    if (chance.OneIn(3)) {
      problem.accumulate = true;
      for (std::int64_t i = 0; i < vocab * width; ++i) problem.grad_weight_before.push_back(0.5);
      for (std::int64_t j = 0; j < vocab && !problem.bias.empty(); ++j) problem.grad_bias_before.push_back(-0.25);
    }
    std::vector<Shard> shards;
    std::int64_t offset = 0;
    const std::int64_t count = 1 + chance.Below(5);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t columns = r + 1 == count ? vocab - offset : chance.Below(vocab - offset + 1);
      shards.push_back({offset, columns, columns == 0 || chance.OneIn(3) ? 1 + chance.Below(9) : 0});
      offset += columns;
    }
    LinearRanks ranks(problem, shards);
    ranks.Run();
    ranks.ExpectLikeOracle();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(VocabParallelLinear, AGroupOfOneHasTheBitsOfTheUnshardedCall) {
  for (const int dtype : kDtypes) {
    LinearProblem problem = Base(dtype);
    problem.loss.label_smoothing = 0.1;
    problem.loss.z_loss_weight = 1e-3;
    const LinearObserved right = RunLinearObserved(problem);
    LinearRanks ranks(problem, {{0, kVocab}});
    ranks.calls[0]->args.group_size = 1;
    TelemetryOptions options;
    RingTelemetry telemetry(options);
    ranks.calls[0]->linear.loss.gauge = telemetry.gauge();
    ranks.Run();
    ASSERT_EQ(ranks.calls[0]->code, LG_OK) << ranks.calls[0]->message;
    EXPECT_EQ(ranks.calls[0]->losses, right.outcome.losses);
    EXPECT_EQ(ranks.calls[0]->loss, right.outcome.loss);
    EXPECT_EQ(ranks.calls[0]->grad_hidden.bytes, right.outcome.grad_hidden_bytes);
    EXPECT_EQ(ranks.calls[0]->grad_weight.bytes, right.outcome.grad_weight_bytes);
    const lg_step_record record = telemetry.Publish();
    EXPECT_NE(record.present & LG_HAS_HIDDEN_GRAD, 0u);
    EXPECT_EQ(lg_fixed128_compare(record.hidden_grad_sq_sum, right.record.hidden_grad_sq_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.nll_sum, right.record.nll_sum), 0);
  }
}

TEST(VocabParallelLinear, AGroupOfOneNeedsNoExchange) {
  LinearProblem problem = Base();
  LinearRankCall call(problem, {0, kVocab}, kVocab, 1, 0);
  call.Run();
  EXPECT_EQ(call.code, LG_OK) << call.message;
  EXPECT_EQ(call.loss, RunLinearObserved(problem).outcome.loss);
}

TEST(VocabParallelLinear, TheSameBitsInEveryRunAndWithAnyThreads) {
  LinearProblem problem = Base(LG_BF16);
  std::unique_ptr<LinearRanks> first;
  for (const int threads : {1, 2, 3}) {
    problem.loss.threads = threads;
    auto ranks = std::make_unique<LinearRanks>(problem, EvenShards(kVocab, 4));
    ranks->Run();
    ranks->ExpectOneOutcome();
    if (first == nullptr)
      first = std::move(ranks);
    else {
      for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(ranks->calls[rank]->losses, first->calls[rank]->losses);
        EXPECT_EQ(ranks->calls[rank]->grad_hidden.bytes, first->calls[rank]->grad_hidden.bytes);
        EXPECT_EQ(ranks->calls[rank]->grad_weight.bytes, first->calls[rank]->grad_weight.bytes);
      }
    }
  }
}

TEST(VocabParallelLinear, APlanIsOfOneChunkAndOneShard) {
  LinearProblem problem = Base(LG_BF16);
  LinearRankCall call(problem, {0, 75}, kVocab, 4, 0);
  call.args.linear = &call.linear;
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  ASSERT_EQ(lg_vocab_parallel_linear_plan(&call.args, &plan), LG_OK) << lg_last_error();
  EXPECT_EQ(plan.chunk_rows, 6);
  EXPECT_EQ(plan.chunks, 4);
  EXPECT_EQ(plan.logits_bytes, 6 * 320) << "75 fp32 logits, in whole lines";
  lg_linear_plan alone{};
  alone.struct_size = sizeof alone;
  LinearProblem part = problem;
  ASSERT_EQ(lg_linear_cross_entropy_plan(&call.linear, &alone), LG_OK) << lg_last_error();
  EXPECT_EQ(plan.workspace_bytes - alone.workspace_bytes, 4 * (128 + 64 * 6) + 64) << "what is exchanged";

  call.linear.chunk_rows = 0;
  call.linear.memory_budget = plan.workspace_bytes;
  ASSERT_EQ(lg_vocab_parallel_linear_plan(&call.args, &plan), LG_OK) << lg_last_error();
  EXPECT_GE(plan.chunk_rows, 6);
  call.linear.memory_budget = 100;
  EXPECT_EQ(lg_vocab_parallel_linear_plan(&call.args, &plan), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("lg_vocab_parallel_linear_plan: memory_budget: expected at least"));
}

TEST(VocabParallelLinear, ChunksWithoutAWishAreTheSameOnAllRanks) {
  std::vector<std::int64_t> chunks;
  LinearProblem problem = MakeLinearProblem(std::vector<double>(3000), std::vector<double>(200000), std::vector<std::int64_t>(3000));
  for (const std::int64_t columns : {150000, 40000, 10000}) {
    LinearRankCall call(problem, {0, columns}, 200000, 3, 0);
    call.args.linear = &call.linear;
    lg_linear_plan plan{};
    plan.struct_size = sizeof plan;
    ASSERT_EQ(lg_vocab_parallel_linear_plan(&call.args, &plan), LG_OK) << lg_last_error();
    chunks.push_back(plan.chunk_rows);
  }
  EXPECT_THAT(chunks, testing::Each(chunks[0]));
  EXPECT_LT(chunks[0], 3000);
}

TEST(VocabParallelLinear, ArgumentsAreRefusedByName) {
  const auto exchange = [](void*, const void*, void*, std::int64_t, void*) { return 0; };
  int any = 0;
  const struct {
    const char* words;
    std::function<void(LinearRankCall&)> spoil;
  } bad[] = {
      {"group_size: expected 1 to 65536, got 0", [](LinearRankCall& c) { c.args.group_size = 0; }},
      {"group_index: expected 0 to group_size - 1 (1), got 2", [](LinearRankCall& c) { c.args.group_index = 2; }},
      {"vocab_size: expected >= 1, got 0", [](LinearRankCall& c) { c.args.vocab_size = 0; }},
      {"shard_columns: expected 0 to columns (150)", [](LinearRankCall& c) { c.args.shard_columns = 151; }},
      {"shard_offset: expected 0 to vocab_size - shard_columns (300 - 150), got 151", [](LinearRankCall& c) { c.args.shard_offset = 151; }},
      {"micro_batch: expected below 2^40", [](LinearRankCall& c) { c.args.micro_batch = std::int64_t{1} << 40; }},
      {"step: expected >= 0, got -1", [](LinearRankCall& c) { c.args.step = -1; }},
      {"linear: expected the rank's lg_linear_cross_entropy_args, got NULL", [](LinearRankCall& c) { c.args.linear = nullptr; }},
      {"exchange: expected it or a communicator for 2 ranks, got NULL for both", [](LinearRankCall& c) { c.args.exchange = nullptr; }},
      {"exchange, communicator: expected one of them, got both", [&](LinearRankCall& c) { c.args.communicator = &any; }},
      {"communicator: expected NULL for tensors in host memory", [&](LinearRankCall& c) { c.args.exchange = nullptr, c.args.communicator = &any; }},
      {"reduce_grad_hidden: expected 0 without a communicator", [](LinearRankCall& c) { c.args.reduce_grad_hidden = 1; }},
      {"reduce_grad_hidden: expected 0 or 1, got 2", [](LinearRankCall& c) { c.args.reduce_grad_hidden = 2; }},
      {"chunk_rows: expected the same number on all ranks where there is a memory_budget",
       [](LinearRankCall& c) { c.linear.chunk_rows = 0, c.linear.memory_budget = 1 << 30; }},
      {"width: expected 1 to 2^40, got 0", [](LinearRankCall& c) { c.linear.width = 0; }},
      {"weight: expected 150 rows, got NULL", [](LinearRankCall& c) { c.linear.weight = nullptr; }},
      {"stream: expected NULL for tensors in host memory", [&](LinearRankCall& c) { c.linear.loss.stream = &any; }},
      {"args.struct_size", [](LinearRankCall& c) { c.args.struct_size = 8; }},
  };
  for (const auto& each : bad) {
    SCOPED_TRACE(each.words);
    LinearRankCall call(Base(), {0, 150}, kVocab, 2, 0);
    call.args.exchange = exchange;
    call.args.linear = &call.linear;
    call.linear.hidden = call.hidden.bytes.data();
    call.linear.weight = call.weight.bytes.data();
    call.linear.loss.targets = call.targets.data();
    each.spoil(call);
    const int code = lg_vocab_parallel_linear_cross_entropy(&call.args);
    EXPECT_TRUE(code == LG_INVALID_ARGUMENT || code == LG_UNIMPLEMENTED) << code;
    EXPECT_THAT(lg_last_error(), HasSubstr(std::string("lg_vocab_parallel_linear_cross_entropy: ") + each.words));
    EXPECT_EQ(call.loss, RankCall::kUnwritten);
  }
  EXPECT_EQ(lg_vocab_parallel_linear_cross_entropy(nullptr), LG_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace lossgauge::test
