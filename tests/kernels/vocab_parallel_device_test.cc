// What only a device says of a group: contradictions that the host would refuse by name are counted with their sender, and leave no loss; and what its calls refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/cuda_exchange_memory.h"
#include "tests/kernels/recipes.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kRows = 5, kVocab = 24;

Problem SmallProblem() {
  Problem problem = MakeProblem(Z(kRows, kVocab), Y(kRows, kVocab));
  problem.targets[3] = -100;
  return problem;
}

// Rank `odd` of three was told something else. Every rank has NaN in every unmasked row, and counts rows of the sender that does not fit it.
class VocabParallelOnDevice : public testing::Test {
 protected:
  void ExpectNoLoss(const char* argument, const std::function<void(RankCall&)>& spoil, int odd, const std::vector<std::uint64_t>& senders,
                    const Ranks::Tamper& tamper = nullptr) {
    SCOPED_TRACE(argument);
    Ranks ranks(SmallProblem(), EvenShards(kVocab, 3));
    spoil(ranks.calls[static_cast<std::size_t>(odd)]);
    std::vector<std::unique_ptr<Telemetry>> gauges;
    for (RankCall& call : ranks.calls) {
      gauges.push_back(TestedBackend().OpenTelemetry({kVocab, {}}));
      call.args.loss.gauge = gauges.back()->gauge();
    }
    std::vector<ExchangeMemory> received(3);
    ranks.Run([&](int receiver, ExchangeMemory& gathered) {
      if (tamper) tamper(receiver, gathered);
      received[static_cast<std::size_t>(receiver)] = gathered;
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      RankCall& call = ranks.calls[rank];
      ASSERT_EQ(call.code, LG_OK) << call.message;
      for (std::size_t i = 0; i < kRows; ++i) {
        if (i == 3) continue;
        EXPECT_TRUE(std::isnan(call.losses[i]) && std::isnan(call.log_z[i])) << "rank " << rank << ", row " << i;
        if (call.args.shard_columns > 0) {
          EXPECT_TRUE(std::isnan(call.Gradient(static_cast<std::int64_t>(i), 0))) << "rank " << rank << ", row " << i;
        }
      }
      EXPECT_TRUE(std::isnan(call.loss)) << "rank " << rank;
      const lg_step_record record = gauges[rank]->Publish();
      EXPECT_EQ(record.finite_tokens, 0u);
      EXPECT_EQ(record.nonfinite_rows, 0u);
      EXPECT_GE(record.exchange_bad_rows, static_cast<std::uint64_t>(kRows));
      EXPECT_EQ(record.exchange_bad_sender, senders[rank]) << "rank " << rank;
      // The same, asked on the host.
      EXPECT_EQ(lg_vocab_parallel_check(&call.args, received[rank].data()), LG_FAILED_PRECONDITION);
      EXPECT_THAT(lg_last_error(), AllOf(HasSubstr(std::string("lg_vocab_parallel_check: ") + argument), HasSubstr("expected")));
    }
  }
};

TEST_F(VocabParallelOnDevice, OptionsThatDifferLeaveNoLoss) {
  const std::vector<std::uint64_t> senders = {1, 0, 1};  // the odd one finds the others wrong, the first of them first
  ExpectNoLoss("ignore_index", [](RankCall& call) { call.args.loss.ignore_index = -1; }, 1, senders);
  ExpectNoLoss("position_base", [](RankCall& call) { call.args.loss.position_base = 4096; }, 1, senders);
  ExpectNoLoss("label_smoothing", [](RankCall& call) { call.args.loss.label_smoothing = 0.1; }, 1, senders);
  ExpectNoLoss("z_loss_weight", [](RankCall& call) { call.args.loss.z_loss_weight = 1e-3; }, 1, senders);
  ExpectNoLoss("logit_scale", [](RankCall& call) { call.args.loss.logit_scale = 0.5; }, 1, senders);
  ExpectNoLoss("logit_softcap", [](RankCall& call) { call.args.loss.logit_softcap = 30; }, 1, senders);
  ExpectNoLoss("vocab_size", [](RankCall& call) { call.args.vocab_size = 25; }, 1, senders);
}

TEST_F(VocabParallelOnDevice, ColumnsThatOverlapOrLeaveAGapLeaveNoLoss) {
  ExpectNoLoss("shard_offset", [](RankCall& call) { call.args.shard_offset = 9; }, 1, {1, 1, 1});
  ExpectNoLoss("shard_offset", [](RankCall& call) { call.args.shard_offset = 7; }, 1, {1, 1, 1});
  ExpectNoLoss("shard_offset", [](RankCall& call) { call.args.shard_columns = 7; }, 1, {2, 2, 2});
  ExpectNoLoss("shard_columns", [](RankCall& call) { call.args.shard_columns = 7; }, 2, {2, 2, 2});
}

TEST_F(VocabParallelOnDevice, AnotherLayoutOfContributionsLeavesNoLoss) {
  ExpectNoLoss("layout of contributions", [](RankCall&) {}, 0, {1, 0, 0}, [](int receiver, ExchangeMemory& gathered) {
    const int other = receiver == 0 ? 1 : 0;
    HeaderIn(gathered, kRows, other)->version = 2;
    TagAgain(gathered, kRows, other);
  });
}

TEST_F(VocabParallelOnDevice, ArgumentsOfAnotherBeginLeaveNoLoss) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  ranks.Begin();
  ranks.calls[0].args.shard_columns = 11;
  ranks.Finish();
  EXPECT_TRUE(std::isnan(ranks.calls[0].loss));
  EXPECT_FALSE(std::isnan(ranks.calls[1].loss));
}

TEST_F(VocabParallelOnDevice, TensorsInHostAndDeviceMemoryAreRefusedByName) {
  Ranks ranks(SmallProblem(), EvenShards(kVocab, 2));
  RankCall& call = ranks.calls[0];
  CudaExchangeMemory memory(2 * call.contribution.bytes());
  EXPECT_EQ(lg_vocab_parallel_begin(&call.args, memory.data()), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), AllOf(HasSubstr("lg_vocab_parallel_begin: "), HasSubstr("host memory")));
  EXPECT_EQ(lg_vocab_parallel_finish(&call.args, memory.data()), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_vocab_parallel_check(&call.args, memory.data()), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("gathered: expected a copy in host memory"));
  EXPECT_TRUE(call.Unwritten());
}

TEST_F(VocabParallelOnDevice, ManyRanksAreJudgedAsFew) {
  const Problem problem = MakeProblem(Z(3, 200), {0, 199, 100});
  for (const int count : {2, 64, 200}) {
    Ranks ranks(problem, EvenShards(200, count));
    ranks.Run();
    ranks.ExpectLikeOracle();
  }
}

}  // namespace
}  // namespace lossgauge::test
