// Linear cross-entropy over a head that is cut into the ranks' shards: the loss and gradients of the whole head on every rank, by chunks, whatever the options,
// with the records and proofs of the vocabulary-parallel loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/chance.h"
#include "tests/kernels/recipes.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_linear_ranks.h"

namespace lossgauge::test {
namespace {

using testing::HasSubstr;

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};
constexpr std::int64_t kRows = 23, kWidth = 12, kVocab = 300;

// Chunks of 6 rows, of which some are masked.
LinearProblem Base(int dtype = LG_FP32) {
  LinearProblem problem = MakeLinearProblem(X(kRows, kWidth), W(kVocab, kWidth), Y(kRows, kVocab));
  problem.dtype = dtype;
  problem.chunk_rows = 6;
  for (const std::size_t row : {std::size_t{2}, std::size_t{3}, std::size_t{22}}) problem.loss.targets[row] = -100;
  return problem;
}
constexpr std::uint64_t kUnmasked = kRows - 3;

// A device's products may round 16-bit logits before they add the bias, and again then.
double BiasStep(const LinearProblem& problem) { return TestedBackend().IsDevice() && problem.dtype != LG_FP32 ? 0 : 0.125; }

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

// Gauges of a group, and the records of their last step.
struct Gauges {
  explicit Gauges(const std::vector<Shard>& shards) {
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      TelemetryOptions options;
      options.vocab_size = kVocab;
      options.ranks = static_cast<std::int32_t>(shards.size());
      options.rank = static_cast<std::int32_t>(rank);
      options.shard_offset = shards[rank].offset;
      options.shard_columns = shards[rank].columns;
      gauges.push_back(std::make_unique<RingTelemetry>(options));
    }
  }
  void Attach(LinearRanks& ranks) {
    for (std::size_t rank = 0; rank < gauges.size(); ++rank) ranks.calls[rank]->linear.loss.gauge = gauges[rank]->gauge();
  }
  std::vector<lg_step_record> Publish() {
    std::vector<lg_step_record> records;
    for (const auto& gauge : gauges) records.push_back(gauge->Publish());
    return records;
  }
  std::vector<std::unique_ptr<RingTelemetry>> gauges;
};

double SumOf(const std::vector<lg_step_record>& records, lg_fixed128 lg_step_record::*field) {
  lg_fixed128 sum{};
  for (const lg_step_record& record : records) sum = lg_fixed128_add(sum, record.*field);
  return lg_fixed128_to_double(sum);
}

TEST(VocabParallelLinear, RecordsAreThoseOfTheWholeHeadInParts) {
  LinearProblem problem = Base();
  problem.loss.z_loss_weight = 1e-3;
  const lg_step_record whole = RunLinearObserved(problem).record;
  const std::vector<Shard> shards = ShardsOf({100, 80, 120});
  Gauges gauges(shards);
  LinearRanks ranks(problem, shards);
  gauges.Attach(ranks);
  ranks.Run();
  ranks.ExpectOneOutcome();
  const std::vector<lg_step_record> records = gauges.Publish();
  std::uint64_t hits = 0;
  double max_abs = 0;
  for (const lg_step_record& record : records) {
    EXPECT_EQ(record.micro_batches, 1u);
    EXPECT_EQ(record.tokens, static_cast<std::uint64_t>(kRows));
    EXPECT_EQ(record.unmasked_tokens, kUnmasked);
    EXPECT_EQ(record.finite_tokens, kUnmasked);
    EXPECT_EQ(record.mask_fingerprint, whole.mask_fingerprint);
    EXPECT_EQ(record.target_fingerprint, whole.target_fingerprint);
    EXPECT_EQ(record.correct_tokens, whole.correct_tokens);
    EXPECT_EQ(record.denominator_min, whole.denominator_min);
    EXPECT_EQ(record.exchange_bad_rows, 0u);
    EXPECT_EQ(record.mass_error_rows, 0u);
    EXPECT_EQ(record.present, (whole.present & ~std::uint64_t{LG_HAS_HIDDEN_GRAD}) | LG_HAS_EXCHANGE);
    EXPECT_EQ(lg_fixed128_compare(record.nll_sum, records[0].nll_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.log_z_sum, records[0].log_z_sum), 0);
    EXPECT_NEAR(Value(record.nll_sum), Value(whole.nll_sum), 1e-6 * Value(whole.nll_sum));
    EXPECT_NEAR(Value(record.z_loss_sum), Value(whole.z_loss_sum), 1e-6 * Value(whole.z_loss_sum));
    hits += record.target_hits;
    max_abs = std::max(max_abs, record.max_abs_logit);
  }
  EXPECT_EQ(hits, kUnmasked);
  EXPECT_EQ(max_abs, whole.max_abs_logit);
  EXPECT_NEAR(SumOf(records, &lg_step_record::probability_mass), static_cast<double>(kUnmasked), 1e-4);
  EXPECT_NEAR(SumOf(records, &lg_step_record::logit_grad_sq_sum), Value(whole.logit_grad_sq_sum), 1e-5 * Value(whole.logit_grad_sq_sum));
  EXPECT_NEAR(SumOf(records, &lg_step_record::head_grad_sq_sum), Value(whole.head_grad_sq_sum), 1e-5 * Value(whole.head_grad_sq_sum));
}

TEST(VocabParallelLinear, WhatAlwaysMayHappenInAJobHappensOnAllRanksAlike) {
  for (const int count : {2, 5}) {
    LinearProblem problem = Base();
    problem.hidden[5 * kWidth] = std::nan("");
    problem.loss.targets[9] = kVocab + 1;
    LinearRanks nan(problem, EvenShards(kVocab, count));
    nan.Run();
    nan.ExpectLikeOracle();
    EXPECT_TRUE(std::isnan(nan.calls[0]->loss));
    for (std::int64_t& target : problem.loss.targets) target = -100;
    LinearRanks masked(problem, EvenShards(kVocab, count));
    masked.Run();
    masked.ExpectLikeOracle();
    EXPECT_EQ(masked.calls[0]->loss, 0.0f);
    EXPECT_EQ(masked.calls[0]->exchanges, 4);
  }
  LinearProblem none = Base();
  none.rows = 0;
  none.hidden.clear();
  none.loss.targets.clear();
  LinearRanks ranks(none, EvenShards(kVocab, 2));
  ranks.Run();
  ranks.ExpectOneOutcome();
  EXPECT_EQ(ranks.calls[0]->loss, 0.0f);
  EXPECT_EQ(ranks.calls[0]->exchanges, TestedBackend().IsDevice() ? 0 : 1) << "ranks with rows find out";
}

TEST(VocabParallelLinear, ARankThatMasksOtherRowsHangsNobodyAndIsFoundOut) {
  for (const bool more : {false, true}) {
    const std::vector<Shard> shards = EvenShards(kVocab, 3);
    Gauges gauges(shards);
    LinearRanks ranks(Base(), shards);
    gauges.Attach(ranks);
    std::vector<std::int64_t>& odd = ranks.calls[1]->targets;
    if (more)
      std::fill(odd.begin() + 4, odd.end(), -100);  // whole chunks
    else
      odd[7] = -100;
    ranks.Run();
    for (const auto& call : ranks.calls) {
      EXPECT_EQ(call->code, LG_OK) << call->message;
      EXPECT_TRUE(std::isnan(call->loss));
    }
    const std::vector<lg_step_record> records = gauges.Publish();
    EXPECT_EQ(records[0].mask_fingerprint, records[2].mask_fingerprint);
    EXPECT_NE(records[0].mask_fingerprint, records[1].mask_fingerprint);
    EXPECT_NE(records[0].unmasked_tokens, records[1].unmasked_tokens);
    for (const lg_step_record& record : records) EXPECT_EQ(record.exchange_bad_rows, 0u) << "they are who they say";
  }
}

TEST(VocabParallelLinear, RanksThatCannotBelongToOneLossAreRefusedByNameOnAll) {
  const struct {
    const char* words;
    std::function<void(LinearRankCall&)> spoil;
  } faults[] = {
      {"rows: expected the same on all ranks", [](LinearRankCall& call) { call.linear.rows = kRows - 1; }},
      {"vocab_size: expected the same on all ranks", [](LinearRankCall& call) { call.args.vocab_size += 7; }},
      {"z_loss_weight: expected the same on all ranks", [](LinearRankCall& call) { call.linear.loss.z_loss_weight = 0.5; }},
      {"shard_offset: expected the ranks' columns to cover [0, vocab_size = 300) once; those of rank 1 of the group begin at 99",
       [](LinearRankCall& call) { call.args.shard_offset -= 1; }},
      {"logits_dtype: expected the same on all ranks", [](LinearRankCall& call) { call.linear.logits_dtype = LG_BF16; }},
  };
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.words);
    const std::vector<Shard> shards = EvenShards(kVocab, 3);
    Gauges gauges(shards);
    LinearRanks ranks(Base(LG_BF16), shards);
    gauges.Attach(ranks);
    fault.spoil(*ranks.calls[1]);
    ranks.Run();
    int named = 0;
    for (const auto& call : ranks.calls) {
      EXPECT_EQ(call->code, LG_FAILED_PRECONDITION);
      named += call->message.find(fault.words) != std::string::npos;
      EXPECT_EQ(call->loss, RankCall::kUnwritten);
      EXPECT_EQ(call->exchanges, 1);
    }
    EXPECT_EQ(named, 3);
    for (const lg_step_record& record : gauges.Publish()) EXPECT_EQ(record.tokens, 0u) << "counted, though refused";
  }
}

TEST(VocabParallelLinear, WhatIsNotProvenCostsItsRowsAndIsCountedWithItsSender) {
  constexpr std::size_t kBytes = 128 + 64 * 6;
  ExchangeMemory of_chunk_0(3 * kBytes);
  const struct {
    const char* name;
    LinearRanks::Tamper tamper;
    std::uint64_t rows;  // of rank 0
  } faults[] = {
      {"a chunk's part is missing",
       [&](int, std::int64_t chunk, ExchangeMemory& gathered) {
         if (chunk == 1) std::memset(gathered.data() + 2 * kBytes, 0, kBytes);
       },
       6},
      {"the part of the chunk before arrives",
       [&](int receiver, std::int64_t chunk, ExchangeMemory& gathered) {
         if (chunk == 0 && receiver == 0) std::memcpy(of_chunk_0.data(), gathered.data(), gathered.bytes());
         if (chunk == 1 && receiver == 0) std::memcpy(gathered.data() + 2 * kBytes, of_chunk_0.data() + 2 * kBytes, kBytes);
       },
       6},
      {"one bit flips",
       [&](int receiver, std::int64_t chunk, ExchangeMemory& gathered) {
         if (chunk == 2 && receiver == 0) gathered.data()[2 * kBytes + 128 + 64 * 3 + 9] ^= 4;
       },
       1},
      {"two ranks' parts are exchanged",
       [&](int receiver, std::int64_t chunk, ExchangeMemory& gathered) {
         if (chunk == 0 && receiver == 0) std::swap_ranges(gathered.data() + kBytes, gathered.data() + 2 * kBytes, gathered.data() + 2 * kBytes);
       },
       12},
  };
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.name);
    const std::vector<Shard> shards = EvenShards(kVocab, 3);
    Gauges gauges(shards);
    LinearProblem problem = Base();
    std::fill(problem.loss.targets.begin(), problem.loss.targets.end(), 5);  // what chunks say differs in nothing else
    LinearRanks ranks(problem, shards);
    gauges.Attach(ranks);
    ranks.Run(fault.tamper);
    EXPECT_EQ(ranks.calls[0]->code, LG_OK) << ranks.calls[0]->message;
    EXPECT_TRUE(std::isnan(ranks.calls[0]->loss));
    const std::vector<float>& losses = ranks.calls[0]->losses;
    const auto bad = static_cast<std::uint64_t>(std::count_if(losses.begin(), losses.end(), [](float loss) { return std::isnan(loss); }));
    EXPECT_EQ(bad, std::min<std::uint64_t>(fault.rows, 6));
    const lg_step_record record = gauges.Publish()[0];
    EXPECT_EQ(record.exchange_bad_rows, fault.rows);
    EXPECT_EQ(record.exchange_bad_sender, fault.rows == 12 ? 1u : 2u);
    EXPECT_EQ(record.finite_tokens, static_cast<std::uint64_t>(kRows) - bad);
  }
}

TEST(VocabParallelLinear, AnExchangeThatFailsEndsTheCallUncounted) {
  const std::vector<Shard> shards = EvenShards(kVocab, 2);
  Gauges gauges(shards);
  LinearRanks ranks(Base(), shards);
  gauges.Attach(ranks);
  ranks.calls[1]->linear.width = 0;  // this rank never comes
  ranks.Run();
  EXPECT_EQ(ranks.calls[1]->code, LG_INVALID_ARGUMENT);
  EXPECT_EQ(ranks.calls[0]->code, LG_UNAVAILABLE);
  EXPECT_THAT(ranks.calls[0]->message, HasSubstr("exchange: of chunk 0 returned 14"));
  EXPECT_EQ(ranks.calls[0]->loss, RankCall::kUnwritten);
  EXPECT_EQ(gauges.Publish()[0].tokens, 0u);
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
