// Sums and denominators: a mean of means, ignored rows, empty batches, and what is divided by what. Case numbers are those of
// the list of public bug reports that the suite was built from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr double kBaseMean = 15.005845802207;
constexpr double kBase5Mean = 14.206145971751;

Problem Base() { return MakeProblem(Z(8, 1000), Y(8, 1000)); }
Problem Base5() {
  Problem problem = Base();
  for (const int row : {1, 4, 5}) problem.targets[static_cast<std::size_t>(row)] = -100;
  return problem;
}

// Rows [begin, end) of a problem as one of its own.
Problem Slice(const Problem& whole, std::int64_t begin, std::int64_t end) {
  Problem part = whole;
  part.rows = end - begin;
  part.logits.assign(whole.logits.begin() + begin * whole.columns, whole.logits.begin() + end * whole.columns);
  part.targets.assign(whole.targets.begin() + begin, whole.targets.begin() + end);
  part.position_base = whole.position_base + begin;
  return part;
}

struct Ranks {
  double nll = 0;
  double finite = 0;
  double Loss() const { return nll / finite; }
  void Add(const lg_step_record& record) {
    nll += Value(record.nll_sum);
    finite += static_cast<double>(record.finite_tokens);
  }
};

TEST(Denominators, B01_MicroBatchesAddToTheLossOfOneBatch) {
  const Problem base = Base();
  const Outcome whole = TestedBackend().Run(base);
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  std::vector<unsigned char> grad;
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 8}}) {
    Problem part = Slice(base, begin, end);
    part.denominator = 8;
    part.telemetry = telemetry.get();
    const Outcome outcome = TestedBackend().Run(part);
    grad.insert(grad.end(), outcome.grad_bytes.begin(), outcome.grad_bytes.end());
  }
  const lg_step_record record = telemetry->Publish();
  ExpectRightNotWrong(Value(record.nll_sum) / static_cast<double>(record.finite_tokens), kBaseMean, 16.878896295990);
  ExpectRightNotWrong(static_cast<double>(whole.loss), kBaseMean, 16.878896295990);
  EXPECT_EQ(grad, whole.grad_bytes) << "a row's gradient depends on how the batch was cut";
  EXPECT_EQ(record.micro_batches, 2u);
  EXPECT_EQ(record.denominator_min, 8.0);
  EXPECT_EQ(record.denominator_max, 8.0);
}

TEST(Denominators, B01_CountersDoNotDependOnTheCut) {
  const Problem base = Base();
  lg_step_record whole = RunObserved([&] {
                           Problem p = base;
                           p.denominator = 8;
                           return p;
                         }())
                             .record;
  for (const auto& cut : {std::vector<int>{0, 1, 8}, {0, 3, 5, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
    const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
    for (std::size_t i = 0; i + 1 < cut.size(); ++i) {
      Problem part = Slice(base, cut[i], cut[i + 1]);
      part.denominator = 8;
      part.telemetry = telemetry.get();
      TestedBackend().Run(part);
    }
    const lg_step_record record = telemetry->Publish();
    EXPECT_EQ(lg_fixed128_compare(record.nll_sum, whole.nll_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.objective_sum, whole.objective_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.log_z_sum, whole.log_z_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.logit_grad_sq_sum, whole.logit_grad_sq_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.probability_mass, whole.probability_mass), 0);
    EXPECT_EQ(record.mask_fingerprint, whole.mask_fingerprint);
    EXPECT_EQ(record.worst_row_position, whole.worst_row_position);
    EXPECT_EQ(record.worst_logit_position, whole.worst_logit_position);
    EXPECT_EQ(record.max_abs_logit, whole.max_abs_logit);
  }
}

TEST(Denominators, B02_RanksOfUnequalSizeGiveARatioOfSums) {
  Ranks ranks;
  ranks.Add(RunObserved(Slice(Base(), 0, 2)).record);
  ranks.Add(RunObserved(Slice(Base(), 2, 8)).record);
  ExpectRightNotWrong(ranks.Loss(), kBaseMean, 14.907836777057);
}

TEST(Denominators, B03_ContextParallelSlicesGiveARatioOfSums) {
  Problem base = Base();
  base.targets[5] = base.targets[6] = -100;
  Ranks ranks;
  ranks.Add(RunObserved(Slice(base, 0, 4)).record);
  ranks.Add(RunObserved(Slice(base, 4, 8)).record);
  ExpectRightNotWrong(ranks.Loss(), 14.945077100516, 15.013541405678);
}

TEST(Denominators, B05_IgnoredRowsAreNeitherReadNorCounted) {
  Problem problem = Base5();
  for (const std::int64_t row : {1, 4, 5}) {
    for (std::int64_t j = 0; j < 1000; ++j) {
      problem.logits[static_cast<std::size_t>(row * 1000 + j)] = j % 2 == 0 ? NAN : HUGE_VAL;
    }
  }
  const Observed observed = RunObserved(problem);
  ExpectRightNotWrong(static_cast<double>(observed.outcome.loss), kBase5Mean, 8.878841232);
  EXPECT_NEAR(Norm(observed.outcome.grad), 0.449015993393, 1e-6 * 0.449);
  EXPECT_EQ(observed.record.nonfinite_rows, 0u);
  EXPECT_EQ(observed.record.unmasked_tokens, 5u);
  EXPECT_EQ(observed.record.tokens, 8u);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

TEST(Denominators, B06_SmoothingIsDividedByTheSameDenominator) {
  Problem base = Base();
  base.label_smoothing = 0.1;
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  double loss = 0;
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 8}}) {
    Problem part = Slice(base, begin, end);
    part.denominator = 8;
    part.telemetry = telemetry.get();
    loss += static_cast<double>(TestedBackend().Run(part).loss);
  }
  const lg_step_record record = telemetry->Publish();
  const double right = 14.721547364707;
  for (const double wrong : {32.813358663408, 16.406679331704}) {
    ExpectRightNotWrong(loss, right, wrong);
    ExpectRightNotWrong(Value(record.objective_sum) / static_cast<double>(record.finite_tokens), right, wrong);
  }
  ExpectRightNotWrong(Value(record.nll_sum) / 8, kBaseMean, right);  // one-hot NLL stays free of smoothing
}

TEST(Denominators, B07_ChunksGiveTheSameWhateverTheirSize) {
  Problem base = Base();
  base.targets[1] = base.targets[2] = base.targets[3] = -100;
  base.denominator = 5;
  const Outcome whole = TestedBackend().Run(base);
  for (const std::int64_t chunk : {1, 3, 4, 8}) {
    const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
    std::vector<unsigned char> grad;
    for (std::int64_t begin = 0; begin < 8; begin += chunk) {
      Problem part = Slice(base, begin, std::min<std::int64_t>(8, begin + chunk));
      part.telemetry = telemetry.get();
      const Outcome outcome = TestedBackend().Run(part);
      grad.insert(grad.end(), outcome.grad_bytes.begin(), outcome.grad_bytes.end());
    }
    const lg_step_record record = telemetry->Publish();
    ExpectRightNotWrong(Value(record.nll_sum) / static_cast<double>(record.finite_tokens), 14.286202462494, 12.910191484901);
    EXPECT_EQ(grad, whole.grad_bytes) << "chunk of " << chunk;
    EXPECT_NE(record.present & LG_HAS_MASS, 0u) << "a chunk without a valid row took the mass away";
  }
}

TEST(Denominators, B08_NoUnmaskedTokenGivesZeroAndNeverNan) {
  Problem problem = Base();
  problem.targets.assign(8, -100);
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.outcome.loss, 0.0f);
  for (const double g : observed.outcome.grad) ASSERT_EQ(g, 0.0);
  for (const float loss : observed.outcome.losses) EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(observed.record.unmasked_tokens, 0u);
  EXPECT_EQ(Value(observed.record.nll_sum), 0.0);
  EXPECT_EQ(Value(observed.record.logit_grad_sq_sum), 0.0);
  EXPECT_EQ(observed.record.tokens, 8u);
}

TEST(Denominators, B08_ARankWithoutTokensDoesNotWeigh) {
  Problem base = Base();
  base.targets[0] = base.targets[1] = -100;
  Ranks ranks;
  ranks.Add(RunObserved(Slice(base, 0, 2)).record);
  ranks.Add(RunObserved(Slice(base, 2, 8)).record);
  EXPECT_FALSE(std::isnan(ranks.Loss()));
  ExpectRightNotWrong(ranks.Loss(), 15.103854827357, 7.551927413678);
}

TEST(Denominators, B10_PerplexityIsTheExponentialOfTheRatioOfSums) {
  // V = 2 and z = [0, x] gives any NLL: nll = log(1 + e^x) with y = 0.
  std::vector<double> logits;
  for (const double nll : {1.0, 2.0, 3.0, 6.0}) {
    logits.push_back(0);
    logits.push_back(std::log(std::expm1(nll)));
  }
  const Problem whole = MakeProblem(logits, {0, 0, 0, 0});
  Ranks batches;
  batches.Add(RunObserved(Slice(whole, 0, 3)).record);
  batches.Add(RunObserved(Slice(whole, 3, 4)).record);
  for (const double wrong : {205.408924796, 54.598150033, 108.405417086}) {
    ExpectRightNotWrong(std::exp(batches.Loss()), 20.085536923, wrong);
  }
}

TEST(Denominators, ADenominatorByPointerIsReadWhenTheCallRuns) {
  Problem by_value = Base5();
  by_value.denominator = 20;
  Problem by_pointer = Base5();
  by_pointer.denominator_by_pointer = 20;
  const Observed value = RunObserved(by_value), pointer = RunObserved(by_pointer);
  EXPECT_EQ(value.outcome.grad_bytes, pointer.outcome.grad_bytes);
  EXPECT_EQ(value.outcome.loss, pointer.outcome.loss);
  EXPECT_NEAR(static_cast<double>(pointer.outcome.loss), kBase5Mean * 5 / 20, 1e-5);
  EXPECT_EQ(pointer.record.denominator_max, 20.0);
}

TEST(Denominators, DenominatorsThatDifferShowAsMinimumAndMaximum) {
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 8}}) {
    Problem part = Slice(Base(), begin, end);
    part.telemetry = telemetry.get();
    TestedBackend().Run(part);
  }
  const lg_step_record record = telemetry->Publish();
  EXPECT_NE(record.present & LG_HAS_DENOMINATOR, 0u);
  EXPECT_EQ(record.denominator_min, 1.0);
  EXPECT_EQ(record.denominator_max, 7.0);
}

TEST(Denominators, SumReductionDividesByNothing) {
  Problem problem = Base5();
  problem.reduction = LG_SUM;
  const Observed observed = RunObserved(problem);
  EXPECT_NEAR(static_cast<double>(observed.outcome.loss), 71.030729858755, 71e-6);
  EXPECT_EQ(observed.record.present & LG_HAS_DENOMINATOR, 0u);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

}  // namespace
}  // namespace lossgauge::test
