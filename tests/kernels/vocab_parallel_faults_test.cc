// Faults of tensor-parallel losses, each as it happens in jobs: what it does to the loss of the textbook, which goes on looking plausible, and what the gauge
// says at the first step. The table of kernels/README.md is made of what is measured here, and checked against it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/kernels/chance.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/vocab_parallel_job.h"

namespace lossgauge::test {
namespace {

constexpr int kRanks = 4, kFaulty = 2;
constexpr std::int64_t kRows = 24, kVocab = 96, kWidth = kVocab / kRanks;
constexpr std::int64_t kFirstStep = 3;  // of the fault

enum class Fault {
  kMissingRank,
  kStaleContribution,
  kStaleMaximum,
  kSumTwice,
  kWrongOffset,
  kGatheredLogits,
  kGatheredLogitsApart,
  kBitFlip,
  kOtherMask,
  kOtherLabels,
  kSwappedShards,
  kShardOfAnotherLayer,
};

// A rank as the textbook's loss sees it, and what it sends.
struct PlainRank {
  std::vector<double> logits;  // [rows, columns]
  std::int64_t offset, columns;
  std::vector<std::int64_t> targets;
};

double At(const PlainRank& rank, std::int64_t row, std::int64_t column) { return rank.logits[static_cast<std::size_t>(row * rank.columns + column)]; }
double MaximumOf(const PlainRank& rank, std::int64_t row) {
  const auto begin = rank.logits.begin() + row * rank.columns;
  return *std::max_element(begin, begin + rank.columns);
}

std::vector<PlainRank> PlainRanks(const Problem& problem) {
  std::vector<PlainRank> ranks;
  for (std::int64_t r = 0; r < kRanks; ++r) {
    PlainRank rank{{}, r * kWidth, kWidth, problem.targets};
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kWidth; ++j) rank.logits.push_back(RoundTo(LG_BF16, problem.logits[static_cast<std::size_t>(i * kVocab + rank.offset + j)]));
    }
    ranks.push_back(rank);
  }
  return ranks;
}

std::vector<double> OtherLayer() {
  Chance chance(77);
  std::vector<double> logits(static_cast<std::size_t>(kRows * kWidth));
  for (double& z : logits) z = RoundTo(LG_BF16, 2 * chance.Normal());
  return logits;
}
std::vector<std::int64_t> OtherMask(std::vector<std::int64_t> targets) {
  for (std::size_t row = 1; row < targets.size(); row += 3) targets[row] = -100;
  return targets;
}
std::vector<std::int64_t> OtherLabels(std::vector<std::int64_t> targets) {
  std::rotate(targets.begin(), targets.begin() + 1, targets.end());
  return targets;
}

// The mean loss that rank 0 computes from all-reduced maximum, sum of exponentials and target logit.
double PlainLoss(const Problem& problem, const Problem& before, Fault fault, bool faulty) {
  std::vector<PlainRank> ranks = PlainRanks(problem);
  const std::vector<PlainRank> old = PlainRanks(before);
  const auto is = [faulty, fault](Fault asked) { return faulty && fault == asked; };
  PlainRank& odd = ranks[kFaulty];
  if (is(Fault::kWrongOffset)) odd.offset += 1;
  if (is(Fault::kOtherMask)) odd.targets = OtherMask(odd.targets);
  if (is(Fault::kOtherLabels)) odd.targets = OtherLabels(odd.targets);
  if (is(Fault::kSwappedShards)) std::swap(odd.logits, ranks[1].logits);
  if (is(Fault::kShardOfAnotherLayer)) odd.logits = OtherLayer();
  if (is(Fault::kStaleContribution)) odd = old[kFaulty];
  double sum_of_losses = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    double max = -HUGE_VAL, sum = 0, target_z = 0;
    for (int r = 0; r < kRanks; ++r) {
      if (!(is(Fault::kMissingRank) && r == kFaulty)) max = std::max(max, MaximumOf(ranks[static_cast<std::size_t>(r)], i));
    }
    for (int r = 0; r < kRanks; ++r) {
      if (is(Fault::kMissingRank) && r == kFaulty) continue;
      const PlainRank& rank = ranks[static_cast<std::size_t>(r)];
      // Whoever missed the new maximum subtracts the old one.
      const bool stale = is(Fault::kStaleMaximum) && r == kFaulty;
      double subtracted = max;
      if (stale) {
        subtracted = -HUGE_VAL;
        for (const PlainRank& other : old) subtracted = std::max(subtracted, MaximumOf(other, i));
      }
      double part = 0;
      for (std::int64_t j = 0; j < rank.columns; ++j) part += std::exp(At(rank, i, j) - subtracted);
      if (is(Fault::kSumTwice) && r == kFaulty) part *= 2;
      if (is(Fault::kBitFlip) && r == kFaulty && i == 5) part *= 65536;  // a bit of the exponent
      sum += part;
      const std::int64_t local = rank.targets[static_cast<std::size_t>(i)] - rank.offset;
      if (local >= 0 && local < rank.columns) target_z += At(rank, i, local) - max;
    }
    if (is(Fault::kGatheredLogits) || is(Fault::kGatheredLogitsApart)) sum *= kRanks;  // every rank adds the whole vocabulary
    sum_of_losses += std::log(sum) - target_z;
  }
  return sum_of_losses / static_cast<double>(kRows);
}

// Runs healthy steps, then three with the fault.
struct Seen {
  TensorParallelJob::Step healthy, first, third;
};
Seen RunWith(Fault fault) {
  const bool gathered = fault == Fault::kGatheredLogits || fault == Fault::kGatheredLogitsApart;
  std::vector<Shard> shards = EvenShards(kVocab, kRanks), whole(kRanks, {0, kVocab});
  TensorParallelJob job(shards, kVocab, gathered ? whole : std::vector<Shard>{});
  TensorParallelJob gathering(whole, kVocab);
  Seen seen;
  for (std::int64_t s = 0; s < kFirstStep + 3; ++s) {
    const Problem problem = TrainedRows(s, kRows, kVocab);
    const bool faulty = s >= kFirstStep;
    const auto spoil = [&](Ranks& ranks) {
      RankCall& odd = ranks.calls[kFaulty];
      if (fault == Fault::kWrongOffset) odd.args.shard_offset += 1;
      if (fault == Fault::kOtherMask) odd.targets = OtherMask(odd.targets);
      if (fault == Fault::kOtherLabels) odd.targets = OtherLabels(odd.targets);
      if (fault == Fault::kSwappedShards) std::swap_ranges(odd.logits.begin(), odd.logits.end(), ranks.calls[1].logits.begin());
      if (fault == Fault::kShardOfAnotherLayer) {
        const std::vector<double> other = OtherLayer();
        for (std::int64_t i = 0; i < kRows; ++i) {
          for (std::int64_t j = 0; j < kWidth; ++j) odd.SetLogit(i, j, other[static_cast<std::size_t>(i * kWidth + j)]);
        }
      }
      if (fault == Fault::kGatheredLogitsApart) {
        // Each rank holds the whole vocabulary and says that it is its own part of one four times as large.
        for (int rank = 0; rank < kRanks; ++rank) {
          ranks.calls[static_cast<std::size_t>(rank)].args.vocab_size = kRanks * kVocab;
          ranks.calls[static_cast<std::size_t>(rank)].args.shard_offset = rank * kVocab;
        }
      }
    };
    const std::vector<ExchangeMemory> before = job.last_sent();
    const auto tamper = [&](int receiver, ExchangeMemory& received) {
      const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
      unsigned char* slot = received.data() + kFaulty * bytes;
      if (fault == Fault::kMissingRank && receiver != kFaulty) std::memset(slot, 0, bytes);
      if (fault == Fault::kStaleContribution) std::memcpy(slot, before[kFaulty].data(), bytes);
      if (fault == Fault::kBitFlip && receiver == 0) reinterpret_cast<unsigned char*>(&RowIn(received, kRows, kFaulty, 5)->others)[7] ^= 0x40;
      if (fault != Fault::kStaleMaximum && fault != Fault::kSumTwice) return;
      for (std::int64_t i = 0; i < kRows; ++i) {
        lg_shard_row* row = RowIn(received, kRows, kFaulty, i);
        lg_shard_row old;
        std::memcpy(&old, before[kFaulty].data() + LG_SHARD_HEADER_BYTES + i * LG_SHARD_ROW_BYTES, sizeof old);
        if (fault == Fault::kStaleMaximum) row->max = old.max;
        if (fault == Fault::kSumTwice) row->others *= 2;
      }
      TagAgain(received, kRows, kFaulty);  // the sender itself believes in it
    };
    TensorParallelJob& at_work = faulty && gathered ? gathering : job;
    const TensorParallelJob::Step step = faulty ? at_work.Run(problem, spoil, tamper) : job.Run(problem);
    if (s == kFirstStep - 1) seen.healthy = step;
    if (s == kFirstStep) seen.first = step;
    if (s == kFirstStep + 2) seen.third = step;
  }
  return seen;
}

struct Expected {
  Fault fault;
  const char* name;
  const char* says;  // of the first step
  int code;          // of every rank
  bool loss_is_nan;  // of our loss on rank 0
};
const Expected kExpected[] = {
    {Fault::kMissingRank, "a rank's part never arrives at the others", "exchange: rank 2", LG_OK, true},
    {Fault::kStaleContribution, "a rank's part of the step before arrives", "exchange: rank 2", LG_OK, true},
    {Fault::kBitFlip, "one bit flips on the way to one rank", "exchange: rank 2", LG_OK, true},
    {Fault::kStaleMaximum, "a rank subtracts the maximum of the step before", "mass: rank 2", LG_OK, false},
    {Fault::kSumTwice, "a rank's partial sum is added twice", "mass: rank 2", LG_OK, false},
    {Fault::kWrongOffset, "a rank's shard offset is one too large", "LG_FAILED_PRECONDITION on every rank", LG_FAILED_PRECONDITION, false},
    {Fault::kGatheredLogits, "logits are gathered before", "LG_FAILED_PRECONDITION on every rank", LG_FAILED_PRECONDITION, false},
    {Fault::kGatheredLogitsApart, "the same, declared as a vocabulary four times as large", "coverage", LG_OK, false},
    {Fault::kOtherMask, "a rank masks other tokens", "agreement: rank 2", LG_OK, true},
    {Fault::kOtherLabels, "a rank has the labels of other rows", "agreement: rank 2", LG_OK, true},
    {Fault::kSwappedShards, "two ranks have each other's shard", "nothing", LG_OK, false},
    {Fault::kShardOfAnotherLayer, "a rank has a shard of another layer", "nothing", LG_OK, false},
};

std::string Text(const char* format, double a, double b) {
  char text[128];
  std::snprintf(text, sizeof text, format, a, b);
  return text;
}

std::string TableRow(const Expected& expected, const Seen& seen) {
  const Problem problem = TrainedRows(kFirstStep, kRows, kVocab), before = TrainedRows(kFirstStep - 1, kRows, kVocab);
  std::string says = expected.says;
  if (expected.loss_is_nan) says += "; loss NaN";
  if (says == "nothing") {
    says += Text("; from a healthy step on: its (mass - hits) / tokens goes from %.2f to %.2f", seen.healthy.Surplus(kFaulty), seen.first.Surplus(kFaulty));
  }
  const double with = PlainLoss(problem, before, expected.fault, true), without = PlainLoss(problem, before, expected.fault, false);
  return std::string("| ") + expected.name + Text(" | %.2f instead of %.2f | ", with, without) + says + " |";
}

class VocabParallelFaults : public testing::TestWithParam<Expected> {};

TEST_P(VocabParallelFaults, AreSeenAtTheirFirstStepAndNamed) {
  const Expected& expected = GetParam();
  const Seen seen = RunWith(expected.fault);
  EXPECT_EQ(seen.healthy.says, expected.fault == Fault::kGatheredLogits || expected.fault == Fault::kGatheredLogitsApart ? "coverage" : "nothing");
  for (const TensorParallelJob::Step* step : {&seen.first, &seen.third}) {
    EXPECT_THAT(step->codes, testing::Each(expected.code));
    if (expected.code != LG_OK) {
      for (const lg_step_record& record : step->records) EXPECT_EQ(record.tokens, 0u) << "counted, though refused";
      continue;
    }
    if (step == &seen.first) {
      EXPECT_EQ(step->says, expected.says);
    } else {
      EXPECT_EQ(step->says == "nothing", std::string(expected.says) == "nothing") << "no longer seen";
    }
    EXPECT_EQ(std::isnan(step->loss), expected.loss_is_nan);
  }
  if (std::string(expected.says) == "nothing") {
    // No sum is wrong. Without a healthy step before there is nothing to see; with one, the loss jumps, and this rank has more probability than targets.
    EXPECT_GT(seen.first.loss, seen.healthy.loss + 0.5f);
    EXPECT_GT(std::fabs(seen.first.Surplus(kFaulty) - seen.healthy.Surplus(kFaulty)), 0.05);
  }
}

TEST_P(VocabParallelFaults, StandInTheTableOfTheReadme) {
  const Expected& expected = GetParam();
  const std::string row = TableRow(expected, RunWith(expected.fault));
  std::ifstream file(LOSSGAUGE_KERNELS_README);
  if (!file) file.open("kernels/README.md");  // built elsewhere: run.sh of the device tests starts in the repository
  ASSERT_TRUE(file) << LOSSGAUGE_KERNELS_README;
  const std::string readme((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(readme.find(row), std::string::npos) << row;
}

INSTANTIATE_TEST_SUITE_P(Each, VocabParallelFaults, testing::ValuesIn(kExpected), [](const auto& each) { return std::to_string(each.index); });

TEST(VocabParallelJob, ThePlainLossWithoutAFaultIsOurs) {
  const Problem problem = TrainedRows(kFirstStep, kRows, kVocab);
  TensorParallelJob job(EvenShards(kVocab, kRanks), kVocab);
  EXPECT_NEAR(static_cast<double>(job.Run(problem).loss), PlainLoss(problem, problem, Fault::kMissingRank, false), 1e-6);
}

TEST(VocabParallelJob, TenThousandHealthyStepsRaiseNothing) {
  const std::vector<std::int64_t> widths[] = {{40, 23}, {21, 21, 21}, {8, 8, 8, 8, 8, 8, 8, 7}};
  const int steps[] = {4000, 3000, 3000};
  for (int group = 0; group < 3; ++group) {
    TensorParallelJob job(ShardsOf(widths[group]), 63);
    for (int step = 0; step < steps[group]; ++step) {
      Chance chance(static_cast<std::uint64_t>(step));
      Problem problem = TrainedRows(step, 1 + chance.Below(12), 63);
      constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};
      problem.dtype = kDtypes[chance.Below(3)];
      if (chance.OneIn(4)) problem.label_smoothing = 0.1;
      if (chance.OneIn(4)) problem.z_loss_weight = 1e-4;
      if (chance.OneIn(4)) problem.logit_softcap = 30;
      for (std::int64_t& target : problem.targets) {
        if (chance.OneIn(5)) target = -100;
      }
      const TensorParallelJob::Step seen = job.Run(problem);
      ASSERT_THAT(seen.codes, testing::Each(LG_OK)) << "step " << step;
      ASSERT_EQ(seen.says, "nothing") << "step " << step;
    }
  }
}

}  // namespace
}  // namespace lossgauge::test
