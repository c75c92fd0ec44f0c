#include <gtest/gtest.h>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/integrity.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

using Edit = std::function<void(std::uint32_t, lg_step_record&)>;

class Integrity : public ::testing::Test {
 protected:
  // Kinds broken in one step of a 2 x `tp` job, "" if none.
  static std::string Broken(const Edit& edit, std::uint32_t tp = 4) {
    JudgeScript job(detect::DefaultPolicies().defaults, 2, tp);
    std::string kinds;
    for (const auto& found : detect::CheckIntegrity(job.MakeStep({.loss = 2, .edit = edit}))) {
      kinds += (kinds.empty() ? "" : " ") + std::string(state::kIntegrityKinds[static_cast<std::size_t>(found.kind)]);
    }
    return kinds;
  }
  static void WithMass(std::uint32_t rank, lg_step_record& record) {
    record.present |= LG_HAS_MASS;
    record.probability_mass = lg_fixed128_from_double(rank % 4 == 0 ? 1021 : 1);
  }
};

TEST_F(Integrity, AHealthyGroupIsQuiet) {
  EXPECT_EQ(Broken(nullptr), "");
  EXPECT_EQ(Broken(WithMass), "");
}

TEST_F(Integrity, OneLastBitOfTheLossSumBreaksAgreement) {
  EXPECT_EQ(Broken([](std::uint32_t rank, lg_step_record& record) {
              if (rank == 2) record.nll_sum.lo += 1;
            }),
            "agreement");
}

TEST_F(Integrity, AgreementNamesTheRankThatStandsAlone) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2, 4);
  const auto breaks = detect::CheckIntegrity(job.MakeStep({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) {
                                                             if (rank == 6) record.target_fingerprint ^= 1;
                                                           }}));
  ASSERT_EQ(breaks.size(), 1u);
  EXPECT_EQ(breaks[0].rank, 6u);
}

TEST_F(Integrity, AMissingPartOfTheMassIsSeenThoughTheLossIsPlausible) {
  EXPECT_EQ(Broken([](std::uint32_t rank, lg_step_record& record) {
              WithMass(rank, record);
              if (rank == 1) record.probability_mass = lg_fixed128_from_double(0.5);
            }),
            "mass");
  EXPECT_EQ(Broken([](std::uint32_t rank, lg_step_record& record) {
              WithMass(rank, record);
              if (rank == 1) record.probability_mass = lg_fixed128_from_double(0.9);  // within a quarter of a token
            }),
            "");
  EXPECT_EQ(Broken([](std::uint32_t rank, lg_step_record& record) {
              WithMass(rank, record);
              if (rank == 1) record.mass_error_rows = 1;
            }),
            "mass");
}

TEST_F(Integrity, TargetsCountedTwiceBreakTargetHits) {
  EXPECT_EQ(Broken([](std::uint32_t rank, lg_step_record& record) {
              if (rank == 1) record.target_hits = 1;
            }),
            "target_hits");
}

TEST_F(Integrity, WrongTagsOfTheExchangeNameTheirSender) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2, 4);
  const auto breaks = detect::CheckIntegrity(job.MakeStep({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) {
                                                             record.present |= LG_HAS_EXCHANGE;
                                                             record.exchange_bad_rows = rank == 5 ? 3 : 0;
                                                             record.exchange_bad_sender = 2;
                                                           }}));
  ASSERT_EQ(breaks.size(), 1u);
  EXPECT_EQ(state::kIntegrityKinds[static_cast<std::size_t>(breaks[0].kind)], "exchange");
  EXPECT_EQ(breaks[0].rank, 6u);
}

TEST_F(Integrity, SumsThatLackTheRowsOfABrokenExchangeAreItsSymptoms) {
  const auto lacks_a_row = [](std::uint32_t rank, lg_step_record& record, std::uint64_t bad_rows) {
    WithMass(rank, record);
    record.present |= LG_HAS_EXCHANGE;
    if (rank != 1) return;
    record.exchange_bad_rows = bad_rows;
    record.exchange_bad_sender = 3;
    record.finite_tokens -= 1;
    record.nll_sum = lg_fixed128_from_double(1);
    record.target_hits += 1;
    record.probability_mass = lg_fixed128_from_double(0.1);
  };
  EXPECT_EQ(Broken([&](std::uint32_t rank, lg_step_record& record) { lacks_a_row(rank, record, 1); }), "exchange");
  EXPECT_EQ(Broken([&](std::uint32_t rank, lg_step_record& record) { lacks_a_row(rank, record, 0); }), "mass target_hits agreement");
}

TEST_F(Integrity, ShardsThatDoNotTileTheVocabularyBreakCoverage) {
  JudgeScript job(detect::DefaultPolicies().defaults, 1, 2);
  const auto broken = [&](std::int64_t offset, std::int64_t columns) {
    state::JoinedStep step = job.MakeStep({.loss = 2});
    auto info = std::make_shared<state::ProducerInfo>(*step.samples[1].producer);
    info->layout.shard_offset = offset;
    info->layout.shard_columns = columns;
    step.samples[1].producer = info;
    const auto breaks = detect::CheckIntegrity(step);
    return breaks.size() == 1 && state::kIntegrityKinds[static_cast<std::size_t>(breaks[0].kind)] == "coverage";
  };
  EXPECT_FALSE(broken(1000, 1000));
  EXPECT_TRUE(broken(999, 1000));
  EXPECT_TRUE(broken(1000, 999));
  EXPECT_TRUE(broken(INT64_MAX, INT64_MAX));
  EXPECT_TRUE(broken(-5, INT64_MIN));
}

TEST_F(Integrity, AGroupWithoutAllItsRanksIsNotJudged) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2, 4);
  EXPECT_TRUE(detect::CheckIntegrity(job.MakeStep({.loss = 2, .missing_ranks = {3}, .edit = [](std::uint32_t rank, lg_step_record& record) {
                                                     if (rank == 2) record.nll_sum.lo += 1;
                                                   }})).empty());
}

// Experts that reuse the ranks of the data axis, as they usually do, split no tensor-parallel group.
TEST_F(Integrity, ExpertsThatAreNoAxisOfTheirOwnSplitNoGroup) {
  JudgeScript job(detect::DefaultPolicies().defaults, 1, 2);
  state::JoinedStep step = job.MakeStep({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) { record.nll_sum.lo += rank; }});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    auto info = std::make_shared<state::ProducerInfo>(*step.samples[rank].producer);
    info->layout.ep = {2, static_cast<std::uint32_t>(rank)};
    step.samples[rank].producer = info;
  }
  EXPECT_EQ(detect::CheckIntegrity(step).size(), 1u);
}

TEST_F(Integrity, AStepThatCannotBeJudgedIsNeitherGoodNorBad) {
  JudgeScript job(detect::DefaultPolicies().defaults, 1, 2);
  const auto broken = [&job] { job.Step({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) { record.nll_sum.lo += rank; }}); };
  broken();
  for (int i = 0; i < 60; ++i) job.Step({.loss = 2, .missing_ranks = {1}});
  EXPECT_TRUE(job.IsOpen(Condition::kIntegrity)) << "nobody has seen the ranks agree since";
  broken();
  EXPECT_EQ(job.FindOpen(Condition::kIntegrity)->severity, state::Severity::kWarning);
  broken();
  EXPECT_EQ(job.FindOpen(Condition::kIntegrity)->severity, state::Severity::kCritical) << "the third of the last three that could be judged";
  job.Steps(30, 2);
  EXPECT_FALSE(job.IsOpen(Condition::kIntegrity));
}

TEST_F(Integrity, HaltsAtTheThirdBrokenStepOfFiveAndNotAtTheSecond) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2, 4);
  for (int i = 0; i < 60; ++i) job.Step({.loss = 2.2});
  job.Look();
  const StepValues broken{.loss = 2.2, .edit = [](std::uint32_t rank, lg_step_record& record) {
                            if (rank == 2) record.nll_sum.lo += 1;
                          }};
  job.Step(broken);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.Step({.loss = 2.2});
  job.Step(broken);
  EXPECT_EQ(job.Verdict().action, Action::kWatch);
  job.Step({.loss = 2.2});
  job.Step(broken);
  const state::Verdict verdict = job.Verdict();
  EXPECT_EQ(verdict.action, Action::kHalt);
  EXPECT_EQ(verdict.reason_codes[0], "integrity/agreement");
  EXPECT_EQ(verdict.rank_at_fault, 2u);
}

}  // namespace
}  // namespace lossgauge::testing
