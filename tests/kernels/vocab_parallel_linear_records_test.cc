// Linear cross-entropy over a head that is cut into the ranks' shards: the records and proofs of the vocabulary-parallel loss, and what is refused on all ranks alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_linear_problem.h"
#include "tests/kernels/vocab_parallel_linear_ranks.h"

namespace lossgauge::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace lossgauge::test
