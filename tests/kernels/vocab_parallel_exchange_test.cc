// What a receiver makes of contributions that are not what their senders sent: each is found out, counted with its sender, and makes no plausible loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/kernels/recipes.h"
#include "tests/kernels/vocab_parallel_job.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {
namespace {

constexpr std::int64_t kRows = 6, kVocab = 90;

// One call of a group of three; the record of rank 0, which alone receives something else.
class Exchange : public testing::Test {
 protected:
  Exchange() : problem_(TrainedRows(0, kRows, kVocab)) { problem_.targets[4] = -100; }

  void Receive(const std::function<void(ExchangeMemory&)>& change, std::int64_t micro_batch = 0, std::int64_t step = 5) {
    Ranks ranks(problem_, EvenShards(kVocab, 3));
    for (RankCall& call : ranks.calls) call.args.step = step, call.args.micro_batch = micro_batch;
    RingTelemetry& gauge = Gauge();
    ranks.calls[0].args.loss.gauge = gauge.gauge();
    ranks.Run([&](int receiver, ExchangeMemory& gathered) {
      if (receiver == 0 && change) change(gathered);
    });
    ASSERT_EQ(ranks.calls[0].code, LG_OK) << ranks.calls[0].message;
    losses_ = ranks.calls[0].losses;
    loss_ = ranks.calls[0].loss;
    gradient_.clear();
    for (std::int64_t i = 0; i < kRows; ++i) gradient_.push_back(ranks.calls[0].Gradient(i, 3));
    record_ = gauge.Publish();
  }
  // Row i has no loss, the others have theirs.
  void ExpectSpoilt(const std::vector<std::int64_t>& rows) {
    std::uint64_t spoilt = 0;
    for (std::int64_t i = 0; i < kRows; ++i) {
      const bool is_spoilt = std::find(rows.begin(), rows.end(), i) != rows.end();
      spoilt += is_spoilt;
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(std::isnan(losses_[at]), is_spoilt) << "row " << i;
      EXPECT_EQ(std::isnan(gradient_[at]), is_spoilt) << "row " << i;
    }
    EXPECT_EQ(std::isnan(loss_), spoilt != 0);
    EXPECT_EQ(record_.unmasked_tokens, 5u);
    EXPECT_EQ(record_.finite_tokens, 5 - spoilt);
    EXPECT_EQ(record_.nonfinite_rows, 0u) << "a contribution that cannot be believed is no NaN of the model";
    EXPECT_NE(record_.present & LG_HAS_EXCHANGE, 0u);
  }
  void ExpectBad(std::uint64_t rows, std::uint64_t sender) {
    EXPECT_EQ(record_.exchange_bad_rows, rows);
    EXPECT_EQ(record_.exchange_bad_sender, sender);
  }
  static RingTelemetry& Gauge() {
    static RingTelemetry gauge({kVocab, {}});
    return gauge;
  }

  Problem problem_;
  std::vector<float> losses_;
  float loss_ = 0;
  std::vector<double> gradient_;
  lg_step_record record_{};
};

TEST_F(Exchange, AsItWasSentIsBelieved) {
  Receive(nullptr);
  ExpectSpoilt({});
  ExpectBad(0, 0);
}

TEST_F(Exchange, EveryBitOfARowCounts) {
  for (int bit = 0; bit < 8 * LG_SHARD_ROW_BYTES; ++bit) {
    for (const int sender : {0, 2}) {  // what comes back of one's own, too
      Receive([&](ExchangeMemory& gathered) {
        auto* bytes = reinterpret_cast<unsigned char*>(RowIn(gathered, kRows, sender, 3));
        bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
      });
      ExpectSpoilt({3});
      ExpectBad(1, static_cast<std::uint64_t>(sender));
      if (HasFailure()) FAIL() << "bit " << bit;
    }
  }
}

TEST_F(Exchange, EveryBitOfAHeaderCountsForAllRowsOfItsSender) {
  for (int bit = 0; bit < 8 * LG_SHARD_HEADER_BYTES; ++bit) {
    Receive([&](ExchangeMemory& gathered) {
      auto* bytes = reinterpret_cast<unsigned char*>(HeaderIn(gathered, kRows, 1));
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1 << bit % 8);
    });
    ExpectSpoilt({0, 1, 2, 3, 5});
    ExpectBad(kRows, 1);
    if (HasFailure()) FAIL() << "bit " << bit;
  }
}

TEST_F(Exchange, AMissingContributionIsItsSenders) {
  for (const unsigned char fill : {0x00, 0xff, 0xa5}) {
    Receive([&](ExchangeMemory& gathered) {
      const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
      std::memset(gathered.data() + 2 * bytes, fill, bytes);
    });
    ExpectSpoilt({0, 1, 2, 3, 5});
    ExpectBad(kRows, 2);
  }
}

TEST_F(Exchange, AStaleContributionIsFoundOutThoughItWasRightOnce) {
  ExchangeMemory stale;
  Receive([&](ExchangeMemory& gathered) { stale = gathered; }, 0);
  const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
  const auto put_stale = [&](ExchangeMemory& gathered) { std::memcpy(gathered.data() + bytes, stale.data() + bytes, bytes); };
  Receive(put_stale, 0);
  ExpectBad(0, 0);
  Receive(put_stale, 1);  // the same rows, the same bytes, another micro-batch
  ExpectBad(kRows, 1);
  ExpectSpoilt({0, 1, 2, 3, 5});
}

TEST_F(Exchange, ContributionsInEachOthersPlacesAreBothWrong) {
  Receive([](ExchangeMemory& gathered) {
    const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
    std::swap_ranges(gathered.data() + bytes, gathered.data() + 2 * bytes, gathered.data() + 2 * bytes);
  });
  ExpectSpoilt({0, 1, 2, 3, 5});
  ExpectBad(2 * kRows, 1);
}

TEST_F(Exchange, RowsInEachOthersPlacesAreBothWrong) {
  Receive([](ExchangeMemory& gathered) { std::swap(*RowIn(gathered, kRows, 1, 0), *RowIn(gathered, kRows, 1, 5)); });
  ExpectSpoilt({0, 5});
  ExpectBad(2, 1);
}

TEST_F(Exchange, ARowOfAnotherCallOrSenderIsFoundOutUnderTheRightHeader) {
  // The payload is the same in all of these calls: the place alone tells them apart.
  ExchangeMemory other;
  Receive([&](ExchangeMemory& gathered) { other = gathered; }, 0, 5);
  const auto put_row = [&](ExchangeMemory& gathered) { *RowIn(gathered, kRows, 1, 2) = *RowIn(other, kRows, 1, 2); };
  Receive(put_row, 0, 5);
  ExpectBad(0, 0);
  for (const auto& [micro_batch, step] : {std::pair(1, 5), std::pair(0, 6)}) {
    Receive(put_row, micro_batch, step);
    ExpectSpoilt({2});
    ExpectBad(1, 1);
  }
  // A masked row's payload is the same from every sender.
  Receive([&](ExchangeMemory& gathered) { *RowIn(gathered, kRows, 1, 4) = *RowIn(gathered, kRows, 2, 4); });
  ExpectBad(1, 1);
}

TEST_F(Exchange, TheSenderWithMostBadRowsIsNamed) {
  Receive([](ExchangeMemory& gathered) {
    RowIn(gathered, kRows, 1, 0)->others *= 2;
    for (const std::int64_t row : {1, 2}) RowIn(gathered, kRows, 2, row)->others *= 2;
  });
  ExpectSpoilt({0, 1, 2});
  ExpectBad(3, 2);
}

TEST_F(Exchange, AMaskedRowsContributionIsCheckedButSpoilsNothing) {
  Receive([](ExchangeMemory& gathered) { RowIn(gathered, kRows, 1, 4)->tag ^= 1; });
  ExpectSpoilt({});
  ExpectBad(1, 1);
}

TEST_F(Exchange, ASenderThatContradictsItsOwnHeaderIsNotBelieved) {
  // Two ranks that both have the target, or none: each rank's columns say who must have it.
  for (const int sender : {0, 1, 2}) {
    Receive([&](ExchangeMemory& gathered) {
      RowIn(gathered, kRows, sender, 3)->flags ^= LG_SHARD_HAS_TARGET;
      TagAgain(gathered, kRows, sender);
    });
    ExpectSpoilt({3});
    ExpectBad(1, static_cast<std::uint64_t>(sender));
  }
}

TEST_F(Exchange, BadRowsOfAStepAddUpOverItsMicroBatches) {
  Ranks ranks(problem_, EvenShards(kVocab, 3));
  ranks.calls[0].args.loss.gauge = Gauge().gauge();
  ranks.Run([](int, ExchangeMemory& gathered) { RowIn(gathered, kRows, 1, 0)->others *= 2; });
  ranks.Finish([](int, ExchangeMemory& gathered) {
    for (const std::int64_t row : {1, 2, 3}) RowIn(gathered, kRows, 2, row)->others *= 2;
  });
  ranks.Finish();
  record_ = Gauge().Publish();
  ExpectBad(4, 2);
  EXPECT_EQ(record_.micro_batches, 3u);
  Receive(nullptr);
  ExpectBad(0, 0);
}

TEST_F(Exchange, ACallThatIsNotVocabularyParallelSaysNothingOfAnExchange) {
  problem_.telemetry = &Gauge();
  TestedBackend().Run(problem_);
  EXPECT_EQ(Gauge().Publish().present & LG_HAS_EXCHANGE, 0u);
}

}  // namespace
}  // namespace lossgauge::test
