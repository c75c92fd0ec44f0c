// Every argument of the vocabulary-parallel calls that can be wrong, and every way in which the ranks of a group can contradict each other, is refused by
// name, before an output is written or anything is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "tests/kernels/recipes.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Args = lg_vocab_parallel_args;

constexpr std::int64_t kVocab = 24;

Problem SmallProblem(std::int64_t rows = 4) { return MakeProblem(Z(rows, kVocab), Y(rows, kVocab)); }

class VocabParallelArguments : public testing::Test {
 protected:
  void ExpectRefused(const char* argument, const std::string& got, const std::function<void(Args*)>& spoil, int code = LG_INVALID_ARGUMENT) {
    for (const char* function : {"lg_vocab_parallel_begin", "lg_vocab_parallel_finish"}) {
      Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
      ranks.Begin();
      RankCall& call = ranks.calls[0];
      call.args.loss.loss = &call.loss;
      spoil(&call.args);
      ExchangeMemory memory(4096);
      const bool begins = std::string(function) == "lg_vocab_parallel_begin";
      EXPECT_EQ(begins ? lg_vocab_parallel_begin(&call.args, memory.data()) : lg_vocab_parallel_finish(&call.args, memory.data()), code) << argument;
      EXPECT_THAT(lg_last_error(), AllOf(HasSubstr(std::string(function) + ": " + argument), HasSubstr("expected"), HasSubstr(got)));
      EXPECT_TRUE(call.Unwritten()) << argument;
      for (std::size_t at = 0; at < memory.bytes(); ++at) ASSERT_EQ(memory.data()[at], 0xa5) << argument;
    }
  }
};

TEST_F(VocabParallelArguments, AreRefusedByName) {
  ExpectRefused("group_size", "0", [](Args* a) { a->group_size = 0; });
  ExpectRefused("group_size", "65537", [](Args* a) { a->group_size = 65537; });
  ExpectRefused("group_index", "2", [](Args* a) { a->group_index = 2; });
  ExpectRefused("group_index", "-1", [](Args* a) { a->group_index = -1; });
  ExpectRefused("vocab_size", "0", [](Args* a) { a->vocab_size = 0; });
  ExpectRefused("columns", "0", [](Args* a) { a->loss.columns = 0; });
  ExpectRefused("shard_columns", "13", [](Args* a) { a->shard_columns = 13; });
  ExpectRefused("shard_columns", "-2", [](Args* a) { a->shard_columns = -2; });
  ExpectRefused("shard_offset", "-1", [](Args* a) { a->shard_offset = -1; });
  ExpectRefused("shard_offset", "13", [](Args* a) { a->shard_offset = 13; });
  ExpectRefused("shard_offset", "9223372036854775807", [](Args* a) { a->shard_offset = INT64_MAX; });
  ExpectRefused("step", "-1", [](Args* a) { a->step = -1; });
  ExpectRefused("micro_batch", "-7", [](Args* a) { a->micro_batch = -7; });
  ExpectRefused("reserved", "3", [](Args* a) { a->reserved[7] = 3; });
  ExpectRefused("args.struct_size", "8", [](Args* a) { a->struct_size = 8; });
  ExpectRefused("args.loss.struct_size", "0", [](Args* a) { a->loss.struct_size = 0; });
}

TEST_F(VocabParallelArguments, ThoseOfTheLossAreRefusedAsEverywhere) {
  ExpectRefused("rows", "-1", [](Args* a) { a->loss.rows = -1; });
  ExpectRefused("logits_dtype", "17", [](Args* a) { a->loss.logits_dtype = LG_INT64; });
  ExpectRefused("logits", "NULL", [](Args* a) { a->loss.logits = nullptr; });
  ExpectRefused("targets", "NULL", [](Args* a) { a->loss.targets = nullptr; });
  ExpectRefused("label_smoothing", "1", [](Args* a) { a->loss.label_smoothing = 1; });
  ExpectRefused("logit_softcap", "-1", [](Args* a) { a->loss.logit_softcap = -1; });
  ExpectRefused("threads", "-1", [](Args* a) { a->loss.threads = -1; });
  ExpectRefused("stream", "stream", [](Args* a) { a->loss.stream = a; }, LG_UNIMPLEMENTED);
}

TEST_F(VocabParallelArguments, MemoryOfTheExchangeIsRefusedByName) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  RankCall& call = ranks.calls[0];
  ExchangeMemory memory(4096);
  const auto expect = [&](int code, const char* argument) {
    EXPECT_EQ(code, LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), AllOf(HasSubstr(argument), HasSubstr("expected"), HasSubstr("got")));
    EXPECT_TRUE(call.Unwritten());
  };
  expect(lg_vocab_parallel_begin(&call.args, nullptr), "contribution");
  expect(lg_vocab_parallel_begin(&call.args, memory.data() + 8), "contribution");
  expect(lg_vocab_parallel_finish(&call.args, nullptr), "gathered");
  expect(lg_vocab_parallel_finish(&call.args, memory.data() + 8), "gathered");
  call.args.loss.grad_logits = memory.data() + 64;
  expect(lg_vocab_parallel_finish(&call.args, memory.data()), "gathered");
  call.args.loss.logits = memory.data() + 64;
  expect(lg_vocab_parallel_begin(&call.args, memory.data()), "contribution");
  call.args.loss.grad_logits = nullptr;
  for (const std::int64_t stride : {std::int64_t{8}, std::int64_t{128 + 4 * 64 - 16}, std::int64_t{128 + 4 * 64 + 8}, std::int64_t{-400}, INT64_MAX - 15}) {
    call.args.gathered_stride = stride;
    expect(lg_vocab_parallel_finish(&call.args, memory.data()), "gathered_stride");
  }
}

TEST_F(VocabParallelArguments, OutputsThatShareMemoryAreRefusedByName) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  RankCall& call = ranks.calls[0];
  const ExchangeMemory memory(4096);
  const lg_cross_entropy_args apart = call.args.loss;
  const auto expect = [&](const char* argument, const char* other) {
    EXPECT_EQ(lg_vocab_parallel_finish(&call.args, memory.data()), LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), AllOf(HasSubstr(argument), HasSubstr(other), HasSubstr("overlap")));
    EXPECT_TRUE(call.Unwritten());
    call.args.loss = apart;
  };
  call.args.loss.log_z = call.args.loss.losses;
  expect("losses", "log_z");
  call.args.loss.upstream = call.args.loss.losses;
  expect("losses", "upstream");
  call.args.loss.targets = call.args.loss.grad_logits;
  expect("grad_logits", "targets");
}

TEST(VocabParallelContributionBytes, AreThoseOfTheLayout) {
  EXPECT_EQ(ContributionBytes(0), 128);
  EXPECT_EQ(ContributionBytes(8192), 128 + 64 * 8192);
  std::int64_t bytes = 5;
  for (const std::int64_t rows : {std::int64_t{-1}, INT64_MAX}) {
    EXPECT_EQ(lg_vocab_parallel_contribution_bytes(rows, &bytes), LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), AllOf(HasSubstr("rows: expected"), HasSubstr(std::to_string(rows))));
  }
  EXPECT_EQ(bytes, 5);
  EXPECT_EQ(lg_vocab_parallel_contribution_bytes(1, nullptr), LG_INVALID_ARGUMENT);
}

TEST_F(VocabParallelArguments, AnOlderStructureGetsDefaultsForTheRest) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  for (RankCall& call : ranks.calls) {
    // As if the loss ended with its label smoothing: what lies behind is not looked at.
    call.args.loss.struct_size = offsetof(lg_cross_entropy_args, z_loss_weight);
    call.args.loss.z_loss_weight = -5;
  }
  ranks.Begin();
  EXPECT_EQ(ranks.calls[0].code, LG_OK) << ranks.calls[0].message;
}

// A group in which rank `odd` was told something else than the others.
class VocabParallelGroup : public testing::Test {
 protected:
  // All ranks see it, none writes an output, and the message names `argument` and `also`.
  void ExpectAllRefuse(const char* argument, const std::string& also, const std::function<void(RankCall&)>& spoil, int odd = 1, int count = 3,
                       const Ranks::Tamper& tamper = nullptr) {
    Ranks ranks(SmallProblem(), EvenShards(kVocab, count));
    spoil(ranks.calls[static_cast<std::size_t>(odd)]);
    std::vector<std::unique_ptr<Telemetry>> gauges;
    for (RankCall& call : ranks.calls) {
      gauges.push_back(TestedBackend().OpenTelemetry({kVocab, {}}));
      call.args.loss.gauge = gauges.back()->gauge();
    }
    ranks.Run(tamper);
    for (std::size_t rank = 0; rank < ranks.calls.size(); ++rank) {
      const RankCall& call = ranks.calls[rank];
      EXPECT_EQ(call.code, LG_FAILED_PRECONDITION) << argument << ", rank " << rank;
      EXPECT_THAT(call.message, AllOf(HasSubstr(std::string("lg_vocab_parallel_finish: ") + argument), HasSubstr("expected"), HasSubstr(also)));
      EXPECT_TRUE(call.Unwritten()) << argument;
      EXPECT_EQ(gauges[rank]->Publish().tokens, 0u) << "counted, though refused";
    }
  }
};

TEST_F(VocabParallelGroup, OptionsThatDifferAreRefusedOnAllRanks) {
  ExpectAllRefuse("vocab_size", "25", [](RankCall& call) { call.args.vocab_size = 25; });
  ExpectAllRefuse("group_size", "4", [](RankCall& call) { call.args.group_size = 4; }, 1, 3, [](int receiver, ExchangeMemory& gathered) {
    if (receiver != 1) return;
    ExchangeMemory wider(gathered.bytes() / 3 * 4);  // it waits for a fourth, who is not there
    std::memcpy(wider.data(), gathered.data(), gathered.bytes());
    gathered = std::move(wider);
  });
  ExpectAllRefuse("ignore_index", "-1", [](RankCall& call) { call.args.loss.ignore_index = -1; });
  ExpectAllRefuse("position_base", "4096", [](RankCall& call) { call.args.loss.position_base = 4096; });
  ExpectAllRefuse("label_smoothing", "0.1", [](RankCall& call) { call.args.loss.label_smoothing = 0.1; });
  ExpectAllRefuse("z_loss_weight", "0.001", [](RankCall& call) { call.args.loss.z_loss_weight = 1e-3; });
  ExpectAllRefuse("logit_scale", "0.5", [](RankCall& call) { call.args.loss.logit_scale = 0.5; });
  ExpectAllRefuse("logit_softcap", "30", [](RankCall& call) { call.args.loss.logit_softcap = 30; });
}

TEST_F(VocabParallelGroup, MixedDtypesAreRefusedOnAllRanks) {
  ExpectAllRefuse("logits_dtype", "1", [](RankCall& call) { call.args.loss.logits_dtype = LG_BF16; });
}

TEST_F(VocabParallelGroup, UnequalTokenCountsAreRefusedOnAllRanks) {
  // Exchanged with room for the most rows that a rank may have, as a job with rows of any number would.
  const std::int64_t room = ContributionBytes(6);
  std::vector<std::unique_ptr<Ranks>> jobs;
  for (const std::int64_t rows : {4, 6}) jobs.push_back(std::make_unique<Ranks>(SmallProblem(rows), EvenShards(kVocab, 2)));
  RankCall* calls[] = {&jobs[0]->calls[0], &jobs[1]->calls[1]};
  ExchangeMemory gathered(static_cast<std::size_t>(2 * room));
  for (int rank = 0; rank < 2; ++rank) {
    calls[rank]->args.gathered_stride = room;
    calls[rank]->Begin();
    std::memcpy(gathered.data() + rank * room, calls[rank]->contribution.data(), calls[rank]->contribution.bytes());
  }
  for (RankCall* call : calls) {
    call->Finish(gathered);
    EXPECT_EQ(call->code, LG_FAILED_PRECONDITION);
    EXPECT_THAT(call->message, AllOf(HasSubstr("rows: expected the same"), HasSubstr("4"), HasSubstr("6")));
    EXPECT_TRUE(call->Unwritten());
  }
}

TEST_F(VocabParallelGroup, ColumnsThatOverlapOrLeaveAGapAreRefusedOnAllRanks) {
  ExpectAllRefuse("shard_offset", "begin at 9, where the columns before them end at 8", [](RankCall& call) { call.args.shard_offset = 9; });
  ExpectAllRefuse("shard_offset", "begin at 7, where the columns before them end at 8", [](RankCall& call) { call.args.shard_offset = 7; });
  ExpectAllRefuse("shard_offset", "begin at 16, where the columns before them end at 15", [](RankCall& call) { call.args.shard_columns = 7; });
  ExpectAllRefuse("shard_columns", "they end at 23", [](RankCall& call) { call.args.shard_columns = 7; }, 2);
}

TEST_F(VocabParallelGroup, ArgumentsOfAnotherBeginAreRefused) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  ranks.Begin();
  ranks.calls[0].args.shard_columns = 11;
  ranks.Finish();
  EXPECT_EQ(ranks.calls[0].code, LG_FAILED_PRECONDITION);
  EXPECT_THAT(ranks.calls[0].message, HasSubstr("args: expected those of lg_vocab_parallel_begin"));
  EXPECT_TRUE(ranks.calls[0].Unwritten());
  EXPECT_EQ(ranks.calls[1].code, LG_OK);
}

TEST_F(VocabParallelGroup, AnotherLayoutOfContributionsIsRefused) {
  ExpectAllRefuse("layout of contributions", "2", [](RankCall&) {}, 0, 2, [](int receiver, ExchangeMemory& gathered) {
    const int other = 1 - receiver;
    HeaderIn(gathered, 4, other)->version = 2;
    TagAgain(gathered, 4, other);
  });
}

TEST_F(VocabParallelGroup, AClosedGaugeIsRefused) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 1));
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  const auto gauge = TestedBackend().OpenTelemetry({kVocab, {}});
  ranks.calls[0].args.loss.gauge = gauge->gauge();
  ASSERT_EQ(lg_gauge_close(gauge->gauge(), nullptr), LG_OK);
  ranks.Begin();
  EXPECT_EQ(ranks.calls[0].code, LG_FAILED_PRECONDITION);
  EXPECT_THAT(ranks.calls[0].message, HasSubstr("gauge: is closed"));
}

}  // namespace
}  // namespace lossgauge::test
