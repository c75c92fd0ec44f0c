#include "server/state/thin_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/state/history_codec.h"
#include "server/state/step_values.h"

namespace lossgauge::state {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepSummary Step(std::int64_t step, std::optional<double> loss, std::uint64_t tokens) {
  StepSummary s;
  s.sequence = static_cast<std::uint64_t>(step) + 1;
  s.attempt = "a";
  s.step = step;
  s.receive_time_ns = 1000 * step;
  s.loss_nats = loss;
  if (loss) s.perplexity = std::exp(*loss);
  s.finite_tokens = s.unmasked_tokens = tokens;
  return s;
}

TEST(ThinSteps, KeepsTheLossARatioOfSums) {
  // 100 tokens at 2 nats and 300 at 4: (200 + 1200) / 400.
  const StepSummary row = ThinSteps({Step(10, 2.0, 100), Step(11, 4.0, 300)});
  EXPECT_DOUBLE_EQ(*row.loss_nats, 3.5);
  EXPECT_DOUBLE_EQ(*row.perplexity, std::exp(3.5)) << "not the mean of perplexities";
  EXPECT_EQ(row.thinned->min[kLossValue], 2.0);
  EXPECT_EQ(row.thinned->max[kLossValue], 4.0);
  EXPECT_EQ(row.finite_tokens, 400u);
  EXPECT_EQ(row.step, 11);
  EXPECT_EQ(row.sequence, 12u);
  EXPECT_EQ(row.thinned->first_step, 10);
  EXPECT_EQ(row.thinned->first_sequence, 11u);
  EXPECT_EQ(row.thinned->first_receive_time_ns, 10'000);
  EXPECT_EQ(row.receive_time_ns, 11'000);
  EXPECT_EQ(row.thinned->steps, 2u);
}

TEST(ThinSteps, AbsentStaysAbsentAndAMeanIsOverThoseThatAreThere) {
  std::vector<StepSummary> steps = {Step(1, std::nullopt, 0), Step(2, 2.0, 10), Step(3, std::nullopt, 0)};
  steps[0].grad_norm = 1;
  steps[2].grad_norm = 3;
  const StepSummary row = ThinSteps(steps);
  EXPECT_EQ(row.loss_nats, 2.0);
  EXPECT_EQ(row.grad_norm, 2.0);
  EXPECT_FALSE(row.bits_per_byte);
  EXPECT_FALSE(row.thinned->min[2]);
}

TEST(ThinSteps, ValuesThatAreNotFiniteAreCountedAndInNoMean) {
  std::vector<StepSummary> steps = {Step(1, 2.0, 10), Step(2, kNan, 10), Step(3, INFINITY, 10), Step(4, 4.0, 10)};
  for (auto& step : steps) step.grad_norm = kNan;
  const StepSummary row = ThinSteps(steps);
  EXPECT_EQ(row.loss_nats, 3.0);
  EXPECT_EQ(row.thinned->max[kLossValue], 4.0);
  EXPECT_EQ(row.thinned->nonfinite_steps, 4u);
  ASSERT_TRUE(row.grad_norm);
  EXPECT_TRUE(std::isnan(*row.grad_norm)) << "never finite: NaN, not absent and not 0";
  EXPECT_FALSE(row.thinned->min[3]);
}

TEST(ThinSteps, ALossWithoutTokensIsAveragedOverSteps) {
  EXPECT_EQ(ThinSteps({Step(1, 2.0, 0), Step(2, 3.0, 0)}).loss_nats, 2.5);
}

TEST(ThinSteps, SumsCountsAndFingerprintsAndKeepsTheWorst) {
  std::vector<StepSummary> steps = {Step(1, 2.0, 10), Step(2, 2.0, 20)};
  steps[0].target_fingerprint = ~std::uint64_t{0};
  steps[1].target_fingerprint = 3;
  steps[0].nonfinite_rows = 1;
  steps[1].nonfinite_rows = 4;
  steps[0].worst_row = Place{0, 5, 6, 9.0};
  steps[1].worst_row = Place{1, 7, 8, 3.0};
  steps[1].first_nonfinite_row = Place{1, 2, -1, 0};
  steps[0].missing_ranks = {3};
  steps[1].missing_ranks = {1, 3};
  steps[1].complete = false;
  steps[0].micro_batches = 4;
  steps[1].micro_batches = 2;
  steps[0].rank_steps.resize(2);
  const StepSummary row = ThinSteps(steps);
  EXPECT_EQ(row.target_fingerprint, 2u) << "mod 2^64";
  EXPECT_EQ(row.nonfinite_rows, 5u);
  EXPECT_EQ(row.worst_row->position, 5);
  EXPECT_EQ(row.first_nonfinite_row->position, 2);
  EXPECT_EQ(row.missing_ranks, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_FALSE(row.complete);
  EXPECT_EQ(row.micro_batches, 4u);
  EXPECT_TRUE(row.rank_steps.empty());
}

TEST(ThinSteps, TheCodecGivesARowBackAndRefusesEveryTruncation) {
  const StepSummary in = ThinSteps({Step(-1, 2.0, 100), Step(0, kNan, 300), Step(7, 2.5, 1)});
  const std::string bytes = EncodeStep(in);
  const auto out = DecodeStep(bytes);
  ASSERT_TRUE(out && out->thinned);
  EXPECT_EQ(EncodeStep(*out), bytes);
  EXPECT_EQ(out->thinned->first_step, -1);
  EXPECT_EQ(out->thinned->nonfinite_steps, 1u);
  EXPECT_EQ(out->thinned->max[kLossValue], 2.5);
  EXPECT_EQ(PeekStepAttempt(bytes), "a");
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeStep(bytes.substr(0, n))) << n;
}

}  // namespace
}  // namespace lossgauge::state
