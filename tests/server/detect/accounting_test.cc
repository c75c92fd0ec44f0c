// E4: four ranks with 5, 1, 7 and 0 tokens and known sums.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/reported_loss.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

constexpr std::uint64_t kTokens[] = {5, 1, 7, 0};
constexpr double kSums[] = {10.0, 8.0, 21.0, 0.0};  // nats
constexpr double kLoss = 39.0 / 13.0;               // 3
constexpr double kRankZero = 2.0;
constexpr double kMeanOfMeans = (2.0 + 8.0 + 3.0) / 3;

class Accounting : public ::testing::Test {
 protected:
  // One step whose reported loss (rank 0's) is `reported`; the finding, if any.
  std::string Hypothesis(double reported, std::uint32_t tp = 1, std::uint64_t dtype = LG_DTYPE_FP32,
                         const std::function<void(lg_step_record&)>& edit = nullptr) {
    JudgeScript job(detect::DefaultPolicies().defaults, 4, tp);
    job.gradient_reduction = LG_GRADIENT_REDUCTION_SUM;
    job.Step({.loss = 1, .reported_loss = reported, .edit = [&](std::uint32_t rank, lg_step_record& record) {
                const std::uint32_t replica = rank / tp;
                record.tokens = record.unmasked_tokens = record.finite_tokens = kTokens[replica];
                record.target_hits = rank % tp == 0 ? kTokens[replica] : 0;
                record.nll_sum = lg_fixed128_from_double(kSums[replica]);
                record.log_z_sum = {};
                record.micro_batches = micro_batches;
                record.denominator_min = record.denominator_max = 13;
                record.reported_loss_dtype = dtype;
                if (edit) edit(record);
              }});
    last_incident = job.FindOpen(Condition::kAccounting, "reported_loss");
    EXPECT_FALSE(job.IsOpen(Condition::kAccounting, "denominator"));
    EXPECT_FALSE(job.IsOpen(Condition::kAccounting, "mean_of_means"));
    EXPECT_FALSE(job.IsOpen(Condition::kIntegrity));
    if (!last_incident) return "";
    for (const auto& item : last_incident->evidence) {
      if (item.name == "hypothesis") return item.text;
    }
    return "none named";
  }
  std::uint64_t micro_batches = 1;
  std::optional<state::Incident> last_incident;
};

TEST_F(Accounting, TheCorrectLossRaisesNothing) { EXPECT_EQ(Hypothesis(kLoss), ""); }
TEST_F(Accounting, AMeanOfRankMeansIsNamed) { EXPECT_EQ(Hypothesis(kMeanOfMeans), "mean_of_means"); }
TEST_F(Accounting, AMeanThatCountsTheEmptyRankAsZeroIsNamed) { EXPECT_EQ(Hypothesis(13.0 / 4), "mean_of_means"); }
TEST_F(Accounting, RankZeroAloneIsNamed) { EXPECT_EQ(Hypothesis(kRankZero), "rank_0_only"); }
TEST_F(Accounting, LnTwoTooHighUnderTwoShardsIsNamed) {
  EXPECT_EQ(Hypothesis(kLoss, 2), "");
  EXPECT_EQ(Hypothesis(kLoss + std::log(2.0), 2), "plus_ln_T");
}
TEST_F(Accounting, FourTimesTooHighIsNamed) { EXPECT_EQ(Hypothesis(4 * kLoss), "times_R"); }
TEST_F(Accounting, DividedByTheAccumulationIsNamed) {
  micro_batches = 8;
  EXPECT_EQ(Hypothesis(kLoss), "");
  EXPECT_EQ(Hypothesis(kLoss / 8), "over_accumulation");
}
TEST_F(Accounting, SumPerplexityAndBitsAreNamed) {
  EXPECT_EQ(Hypothesis(39), "sum");
  EXPECT_EQ(Hypothesis(std::exp(kLoss)), "perplexity");
  EXPECT_EQ(Hypothesis(kLoss / std::log(2.0)), "bits");
}
TEST_F(Accounting, AnUnknownDifferenceIsReportedAsUnexplained) { EXPECT_EQ(Hypothesis(2.71), "unexplained"); }

TEST_F(Accounting, TheObjectiveIsAlsoRight) {
  const auto objective = [](lg_step_record& record) {
    record.present |= LG_HAS_OBJECTIVE;
    record.objective_sum = lg_fixed128_add(record.nll_sum, lg_fixed128_from_double(0.25 * static_cast<double>(record.finite_tokens)));
  };
  EXPECT_EQ(Hypothesis(kLoss + 0.25, 1, LG_DTYPE_FP32, objective), "");
  EXPECT_EQ(Hypothesis(kLoss + 0.26, 1, LG_DTYPE_FP32, objective), "unexplained");
}

TEST_F(Accounting, DeclaredAuxiliaryTermsAreTakenOff) {
  const auto auxiliary = [](lg_step_record& record) { record.reported_loss_auxiliary = 0.5; };
  EXPECT_EQ(Hypothesis(kLoss + 0.5, 1, LG_DTYPE_FP32, auxiliary), "");
  EXPECT_EQ(Hypothesis(kLoss, 1, LG_DTYPE_FP32, auxiliary), "auxiliary_not_included");
}

TEST_F(Accounting, TheToleranceIsThatOfTheReportedDtype) {
  EXPECT_EQ(Hypothesis(kLoss + 0.015, 1, LG_DTYPE_BF16), "") << "one ulp of bf16 at 3 is 1/64";
  EXPECT_NE(Hypothesis(kLoss + 0.015, 1, LG_DTYPE_FP32), "");
  EXPECT_NE(Hypothesis(kLoss + 0.02, 1, LG_DTYPE_BF16), "");
  EXPECT_DOUBLE_EQ(detect::UlpOf(LG_DTYPE_BF16, 12.0), 0.0625);
  EXPECT_DOUBLE_EQ(detect::UlpOf(LG_DTYPE_FP16, 1.0), std::ldexp(1, -10));
}

TEST_F(Accounting, AnIntervalIsJudgedOnlyOnceItWasSeenWhole) {
  JudgeScript job;
  const auto report = [&](double loss, double reported) {
    job.Step({.loss = loss, .reported_loss = reported, .edit = [](std::uint32_t, lg_step_record& record) { record.reported_loss_interval = 3; }});
  };
  report(2, 9);
  report(3, 9);
  EXPECT_FALSE(job.IsOpen(Condition::kAccounting)) << "two of three steps seen";
  report(4, 3);
  EXPECT_FALSE(job.IsOpen(Condition::kAccounting)) << "the mean of the three";
  report(5, 3);
  EXPECT_TRUE(job.IsOpen(Condition::kAccounting, "reported_loss")) << "should be 4 now";
}

TEST_F(Accounting, AnIntervalSeenBeforeARestartStillCounts) {
  JudgeScript job;
  const auto report = [&](double loss, double reported) {
    job.Step({.loss = loss, .reported_loss = reported, .edit = [](std::uint32_t, lg_step_record& record) { record.reported_loss_interval = 3; }});
  };
  report(2, 9);
  report(3, 9);
  report(4, 3);
  job.Restart();
  report(5, 3);
  EXPECT_TRUE(job.IsOpen(Condition::kAccounting, "reported_loss")) << "should be 4, from two steps before the restart and one after it";
}

TEST_F(Accounting, TheRankThatDividesWronglyIsNamed) {
  for (const std::uint32_t tp : {1u, 2u}) {
    for (const std::set<std::uint32_t>& wrong : std::vector<std::set<std::uint32_t>>{{0}, {3}, {2, 3}, {0, 1, 2, 3}}) {
      JudgeScript job(detect::DefaultPolicies().defaults, 8 / tp, tp);
      job.gradient_reduction = LG_GRADIENT_REDUCTION_SUM;
      job.Step({.loss = 2, .edit = [&](std::uint32_t rank, lg_step_record& record) {
                  record.present |= LG_HAS_DENOMINATOR;
                  const double right = static_cast<double>(record.unmasked_tokens) * (8 / tp);
                  record.denominator_min = record.denominator_max = wrong.count(rank) != 0 ? right / 3 : right;
                }});
      const auto incident = job.FindOpen(Condition::kAccounting, "denominator");
      ASSERT_TRUE(incident) << tp << " " << wrong.size();
      EXPECT_EQ(incident->rank, wrong.size() == 1 ? std::optional(*wrong.begin()) : std::nullopt) << incident->summary;
      const bool told = incident->summary.find(wrong.size() == 1 ? absl::StrCat("rank ", *wrong.begin(), " divides by") : "ranks 2, 3 divide wrongly") !=
                        std::string::npos;
      EXPECT_EQ(told, wrong.size() < 4) << incident->summary;
    }
  }
}

TEST_F(Accounting, ARankOtherThanTheGroupsFirstThatReportsItsOwnLossIsNamed) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2, 2);
  job.Step({.loss = 2, .edit = [](std::uint32_t rank, lg_step_record& record) {
              if (rank >= 2) record.nll_sum = lg_fixed128_from_double(4.0 * 1024);
              if (rank != 3) return;
              record.present |= LG_HAS_REPORTED_LOSS;
              record.reported_loss = 4;
              record.reported_loss_dtype = LG_DTYPE_FP32;
              record.reported_loss_interval = 1;
            }});
  const auto incident = job.FindOpen(Condition::kAccounting, "reported_loss");
  ASSERT_TRUE(incident);
  EXPECT_NE(incident->summary.find("own loss"), std::string::npos) << incident->summary;
}

// The denominator, for D = 13 over four ranks.
class Denominator : public ::testing::Test {
 protected:
  std::string Kind(std::uint32_t reduction, const std::function<double(std::uint32_t rank)>& divided, std::uint64_t micro = 1,
                   std::uint64_t masked = 0) {
    JudgeScript job(detect::DefaultPolicies().defaults, 4);
    job.gradient_reduction = reduction;
    job.Step({.loss = 1, .edit = [&](std::uint32_t rank, lg_step_record& record) {
                record.unmasked_tokens = record.finite_tokens = record.target_hits = kTokens[rank];
                record.tokens = kTokens[rank] + masked;
                record.micro_batches = micro;
                record.denominator_min = record.denominator_max = divided(rank);
              }});
    for (const char* kind : {"denominator", "mean_of_means"}) {
      const auto incident = job.FindOpen(Condition::kAccounting, kind);
      if (!incident) continue;
      for (const auto& item : incident->evidence) {
        if (item.name == "hypothesis") return item.text;
      }
      return kind;
    }
    return "";
  }
};

TEST_F(Denominator, DWhenSummedAndDOverRWhenAveragedAreRight) {
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_SUM, [](auto) { return 13; }), "");
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_MEAN, [](auto) { return 13 / 4.0; }), "");
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_UNKNOWN, [](auto) { return 13; }), "");
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_UNKNOWN, [](auto) { return 13 / 4.0; }), "");
}
TEST_F(Denominator, OwnCountsThatDifferAreAMeanOfMeans) {
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_MEAN, [](auto rank) { return static_cast<double>(kTokens[rank]); }), "mean_of_means");
}
TEST_F(Denominator, AFactorOfTheRanksIsNamed) {
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_MEAN, [](auto) { return 13; }), "factor_R");
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_SUM, [](auto) { return 13 / 4.0; }), "factor_R");
}
TEST_F(Denominator, AFactorOfTheMicroBatchesIsNamed) {
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_SUM, [](auto) { return 13 / 8.0; }, 8), "factor_micro_batches");
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_SUM, [](auto) { return 13 * 8.0; }, 8), "factor_micro_batches");
}
TEST_F(Denominator, CountingMaskedTokensIsNamed) {
  EXPECT_EQ(Kind(LG_GRADIENT_REDUCTION_SUM, [](auto) { return 25; }, 1, 3), "masked_tokens_counted");
}
TEST_F(Denominator, IsNotJudgedWhileARankIsMissing) {
  JudgeScript job(detect::DefaultPolicies().defaults, 4);
  job.gradient_reduction = LG_GRADIENT_REDUCTION_SUM;
  job.Step({.loss = 2, .missing_ranks = {3}});
  EXPECT_FALSE(job.IsOpen(Condition::kAccounting));
}

TEST(AccountingIncident, WatchesAndHaltsOnlyIfThePolicySaysSo) {
  for (const bool halts : {false, true}) {
    detect::Policy policy = detect::DefaultPolicies().defaults;
    policy.accounting_halts = halts ? 1 : 0;
    JudgeScript job(policy, 4);
    job.Look();
    for (int i = 0; i < 50; ++i) {
      job.Step({.loss = 2.2, .edit = [](std::uint32_t, lg_step_record& record) { record.denominator_min = record.denominator_max = 4096; }});
    }
    EXPECT_EQ(job.Verdict().action, halts ? Action::kHalt : Action::kWatch);
    EXPECT_EQ(job.Verdict().reason_codes[0], "accounting/denominator");
    EXPECT_EQ(job.Opened(Condition::kAccounting), 1u);
  }
}

}  // namespace
}  // namespace lossgauge::testing
