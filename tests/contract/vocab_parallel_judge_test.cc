// The records of a vocabulary-parallel job with a fault, before lossgauged's own judge: the kind, the rank at fault, and the verdict.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/detect/integrity.h"
#include "tests/kernels/vocab_parallel_job.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::test {
namespace {

using testing::JudgeScript;
using testing::StepValues;

constexpr int kRanks = 4, kFaulty = 2;
constexpr std::int64_t kRows = 24, kVocab = 96;

struct Fault {
  const char* name;
  std::function<void(Ranks&)> spoil;
  std::function<void(int receiver, ExchangeMemory& gathered, const std::vector<ExchangeMemory>& before)> tamper;
  const char* kind;  // that names the rank
};

void EditRows(ExchangeMemory& gathered, const std::function<void(std::int64_t row, lg_shard_row&)>& edit) {
  for (std::int64_t i = 0; i < kRows; ++i) edit(i, *RowIn(gathered, kRows, kFaulty, i));
  TagAgain(gathered, kRows, kFaulty);
}

std::vector<Fault> Faults() {
  const auto place = [](ExchangeMemory& gathered) { return gathered.data() + kFaulty * ContributionBytes(kRows); };
  return {
      {"missing", nullptr,
       [place](int receiver, ExchangeMemory& gathered, const auto&) {
         if (receiver != kFaulty) std::memset(place(gathered), 0, static_cast<std::size_t>(ContributionBytes(kRows)));
       },
       "exchange"},
      {"stale", nullptr,
       [place](int, ExchangeMemory& gathered, const auto& before) {
         std::memcpy(place(gathered), before[kFaulty].data(), static_cast<std::size_t>(ContributionBytes(kRows)));
       },
       "exchange"},
      {"stale maximum", nullptr,
       [](int, ExchangeMemory& gathered, const auto& before) {
         EditRows(gathered, [&](std::int64_t row, lg_shard_row& said) {
           lg_shard_row old;
           std::memcpy(&old, before[kFaulty].data() + LG_SHARD_HEADER_BYTES + row * LG_SHARD_ROW_BYTES, sizeof old);
           said.max = old.max;
         });
       },
       "mass"},
      {"sum added twice", nullptr,
       [](int, ExchangeMemory& gathered, const auto&) { EditRows(gathered, [](std::int64_t, lg_shard_row& said) { said.others *= 2; }); }, "mass"},
      {"other mask", [](Ranks& ranks) { ranks.calls[kFaulty].targets[3] = -100; }, nullptr, "agreement"},
      {"other labels", [](Ranks& ranks) { std::swap(ranks.calls[kFaulty].targets[0], ranks.calls[kFaulty].targets[1]); }, nullptr, "agreement"},
  };
}

std::string SaidBy(const std::vector<detect::IntegrityBreak>& breaks) {
  std::string says;
  for (const auto& found : breaks) {
    says += (says.empty() ? "" : ", ") + std::string(state::kIntegrityKinds[static_cast<std::size_t>(found.kind)]);
    if (found.rank) says += ": rank " + std::to_string(*found.rank);
  }
  return says.empty() ? "nothing" : says;
}

// `records` as a step of the script's tensor-parallel group.
StepValues Records(const std::vector<lg_step_record>& records, std::int64_t step) {
  return {.loss = 2, .edit = [records, step](std::uint32_t rank, lg_step_record& record) {
            const std::uint64_t boot_ns = static_cast<std::uint64_t>(record.boot_ns), wall_ns = static_cast<std::uint64_t>(record.wall_ns);
            record = records[rank];
            record.step = step;
            record.boot_ns = static_cast<std::int64_t>(boot_ns);
            record.wall_ns = static_cast<std::int64_t>(wall_ns);
          }};
}

TEST(VocabParallelJudge, HealthyRecordsAreQuietAndFaultsAreNamedAtTheirFirstStep) {
  for (const Fault& fault : Faults()) {
    SCOPED_TRACE(fault.name);
    TensorParallelJob job(EvenShards(kVocab, kRanks), kVocab);
    JudgeScript script(detect::DefaultPolicies().defaults, 1, kRanks);
    // Steps of the job are the script's; its loss and layout are the job's own.
    for (std::int64_t step = 0; step < 6; ++step) {
      const bool faulty = step >= 3;
      const std::vector<ExchangeMemory> before = job.last_sent();
      const auto tamper = [&](int receiver, ExchangeMemory& gathered) {
        if (faulty && fault.tamper) fault.tamper(receiver, gathered, before);
      };
      const TensorParallelJob::Step seen = job.Run(TrainedRows(step, kRows, kVocab), faulty ? fault.spoil : nullptr, tamper);
      const std::string says = SaidBy(detect::CheckIntegrity(script.MakeStep(Records(seen.records, script.next_step))));
      if (!faulty) {
        EXPECT_EQ(says, "nothing");
      } else {
        EXPECT_THAT(says, ::testing::HasSubstr(std::string(fault.kind) + ": rank " + std::to_string(kFaulty)));
      }
      EXPECT_EQ(says, seen.says) << "the tests' own rules are not lossgauged's";
    }
  }
}

TEST(VocabParallelJudge, HaltsAtTheThirdStepAndNamesTheRank) {
  const Fault fault = Faults()[0];
  TensorParallelJob job(EvenShards(kVocab, kRanks), kVocab);
  JudgeScript script(detect::DefaultPolicies().defaults, 1, kRanks);
  for (int step = 0; step < 63; ++step) {
    const bool faulty = step >= 60;
    const TensorParallelJob::Step seen = job.Run(TrainedRows(step % 5, kRows, kVocab), nullptr, [&](int receiver, ExchangeMemory& gathered) {
      if (faulty) fault.tamper(receiver, gathered, {});
    });
    script.Step(Records(seen.records, script.next_step));
    script.Look();
    EXPECT_EQ(script.IsOpen(state::Condition::kIntegrity), faulty) << "step " << step;
  }
  const state::Verdict verdict = script.Verdict();
  EXPECT_EQ(verdict.action, state::Action::kHalt);
  EXPECT_THAT(verdict.reason_codes, ::testing::Contains("integrity/exchange"));
  EXPECT_EQ(verdict.rank_at_fault, kFaulty);
}

// Every sum stays right: against a baseline only. Targets are numbered as tokenizers do, frequent ones first, so that shards differ.
TEST(VocabParallelJudge, ShardsInTheWrongPlaceAreNamedAtTheirFirstStepOnceThereIsABaseline) {
  constexpr std::int64_t kMany = 192, kWidth = kVocab / kRanks;
  const auto rows = [](std::int64_t step) {
    Problem problem = TrainedRows(step, kMany, kVocab);
    for (std::int64_t i = 0; i < kMany; ++i) {  // the first shard has half of the targets, the second a quarter, ...
      const std::int64_t share = i % 8, shard = share < 4 ? 0 : share < 6 ? 1 : share < 7 ? 2 : 3;
      std::int64_t& target = problem.targets[static_cast<std::size_t>(i)];
      const std::int64_t moved = shard * kWidth + target % kWidth;
      std::swap(problem.logits[static_cast<std::size_t>(i * kVocab + target)], problem.logits[static_cast<std::size_t>(i * kVocab + moved)]);
      target = moved;
    }
    return problem;
  };
  const auto swapped = [](Ranks& ranks) {
    std::swap_ranges(ranks.calls[kFaulty].logits.begin(), ranks.calls[kFaulty].logits.end(), ranks.calls[0].logits.begin());
  };
  const auto another = [](Ranks& ranks) {
    for (std::int64_t i = 0; i < kMany; ++i) {
      for (std::int64_t j = 0; j < kWidth; ++j) ranks.calls[kFaulty].SetLogit(i, j, 4 * std::sin(static_cast<double>(i * 37 + j * 11)));
    }
  };
  for (const bool swap : {true, false}) {
    TensorParallelJob job(EvenShards(kVocab, kRanks), kVocab);
    JudgeScript script(detect::DefaultPolicies().defaults, 1, kRanks);
    for (int step = 0; step < 52; ++step) {
      const bool faulty = step >= 50;
      const std::function<void(Ranks&)> spoil = swap ? std::function<void(Ranks&)>(swapped) : std::function<void(Ranks&)>(another);
      const TensorParallelJob::Step seen = job.Run(rows(step), faulty ? spoil : nullptr);
      EXPECT_EQ(seen.says, "nothing") << "no sum is wrong";
      script.Step(Records(seen.records, script.next_step));
      script.Look();
      ASSERT_EQ(script.IsOpen(state::Condition::kIntegrity, "shard"), faulty) << "step " << step << (swap ? " swapped" : " another layer's");
    }
    const state::Incident found = *script.FindOpen(state::Condition::kIntegrity, "shard");
    EXPECT_THAT(found.summary, ::testing::HasSubstr(swap ? "Ranks 0 and 2 seem to hold each other's shard" : "Rank 2 seems to hold a shard"));
  }
}

}  // namespace
}  // namespace lossgauge::test
