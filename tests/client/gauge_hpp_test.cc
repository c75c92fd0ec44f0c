// The C++ header over the C ABI: what its users rely on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lossgauge/gauge.hpp"
#include "proto/lossgauge/ring/fixed128.h"
#include "tests/client/job.h"
#include "tests/scratch_directory.h"

namespace lossgauge {
namespace {

using train_text::ReadEvents;
using train_text::ReadStepRecords;

GaugeOptions OptionsIn(const ScratchDirectory& directory) {
  GaugeOptions options;
  options.run = "header test";
  options.attempt = "1";
  options.ring_dir = directory.path();
  options.vocab_size = 2;
  return options;
}

TEST(Gauge, PublishesWhatItWasHandedAndClosesItself) {
  const ScratchDirectory directory;
  {
    Gauge gauge(OptionsIn(directory));
    ASSERT_TRUE(gauge.status().ok()) << gauge.status().message();
    EXPECT_TRUE(gauge.Observe(12.5, 10, 8, 8).ok());
    EXPECT_TRUE(gauge.SetGradNorm(0.25).ok());
    EXPECT_TRUE(gauge.SetLearningRate(0.5).ok());
    EXPECT_TRUE(gauge.SetReportedLoss(1.5625, LG_FP64, 2, 0.125).ok());
    EXPECT_TRUE(gauge.Publish().ok());
    EXPECT_EQ(gauge.State().published, 1u);
    EXPECT_EQ(gauge.State().next_step, 1);
  }
  const auto records = ReadStepRecords(directory.path(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(lg_fixed128_to_double(records[0].nll_sum), 12.5);
  EXPECT_EQ(records[0].tokens, 10u);
  EXPECT_EQ(records[0].unmasked_tokens, 8u);
  EXPECT_EQ(records[0].denominator_min, 8);
  EXPECT_EQ(records[0].grad_norm, 0.25);
  EXPECT_EQ(records[0].learning_rate, 0.5);
  EXPECT_EQ(records[0].reported_loss, 1.5625);
  EXPECT_EQ(records[0].reported_loss_auxiliary, 0.125);
  EXPECT_EQ(records[0].reported_loss_interval, 2u);
  EXPECT_EQ(records[0].reported_loss_dtype, static_cast<std::uint64_t>(LG_DTYPE_FP64));
  const auto events = ReadEvents(directory.path(), 0);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().kind, static_cast<std::uint64_t>(LG_EVENT_END));
  EXPECT_EQ(events.back().count, static_cast<std::uint64_t>(LG_CLOSE_FINISHED));
}

TEST(Gauge, TellsTheStoryOfARunAsEvents) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  ASSERT_TRUE(gauge.Resume(41, "/checkpoints/41").ok());
  EXPECT_EQ(gauge.State().next_step, 42);
  {
    const Phase phase(gauge, LG_EVALUATION);
    EXPECT_TRUE(phase.status().ok());
    const Phase again(gauge, LG_EVALUATION);
    EXPECT_EQ(again.status().code(), LG_FAILED_PRECONDITION);
  }
  ASSERT_TRUE(gauge.Evaluation(42, 1.5, 100).ok());
  ASSERT_TRUE(gauge.CheckpointSaved(42, "/checkpoints/42").ok());
  ASSERT_TRUE(gauge.Note(42, "hello").ok());
  ASSERT_TRUE(gauge.Abandon("out of memory").ok());
  std::vector<std::pair<std::uint64_t, std::string>> seen;
  for (const lg_event_record& event : ReadEvents(directory.path(), 0)) seen.emplace_back(event.kind, std::string(event.text, event.text_bytes));
  const std::vector<std::pair<std::uint64_t, std::string>> expected = {
      {LG_EVENT_RESUME, "/checkpoints/41"}, {LG_EVENT_PHASE_BEGIN, ""}, {LG_EVENT_PHASE_END, ""},      {LG_EVENT_EVALUATION, ""},
      {LG_EVENT_CHECKPOINT, "/checkpoints/42"}, {LG_EVENT_NOTE, "hello"}, {LG_EVENT_END, "out of memory"}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(ReadEvents(directory.path(), 0).back().count, static_cast<std::uint64_t>(LG_CLOSE_FAILED));
}

TEST(Gauge, SaysWhyTelemetryIsOffAndStillTakesEveryCall) {
  const ScratchDirectory directory;
  GaugeOptions options = OptionsIn(directory);
  options.ring_dir = "/proc/no/such/place";
  Gauge gauge(options);
  EXPECT_FALSE(gauge.status().ok());
  EXPECT_NE(gauge.status().message().find("/proc/no/such/place"), std::string::npos) << gauge.status().message();
  EXPECT_THROW(gauge.status().OrThrow(), std::runtime_error);
  EXPECT_EQ(gauge.State().telemetry_on, 0);
  EXPECT_TRUE(gauge.Observe(1, 1, 1).ok());
  EXPECT_TRUE(gauge.Publish().ok());
  EXPECT_TRUE(gauge.Close().ok());
}

TEST(Gauge, RefusesAByteTableOfTheWrongLength) {
  const ScratchDirectory directory;
  GaugeOptions options = OptionsIn(directory);
  options.token_bytes = {1, 1, 1};
  const Gauge gauge(options);
  EXPECT_EQ(gauge.status().code(), LG_INVALID_ARGUMENT);
  EXPECT_EQ(gauge.status().message(), "token_bytes: expected vocab_size = 2 entries, got 3");
}

TEST(Gauge, CanBeMovedAndThenClosesOnce) {
  const ScratchDirectory directory;
  Gauge first(OptionsIn(directory));
  Gauge second(std::move(first));
  EXPECT_TRUE(first.Publish().ok()) << "a moved-from gauge does nothing";
  EXPECT_TRUE(second.Publish().ok());
  first = std::move(second);
  EXPECT_EQ(first.State().published, 1u);
  EXPECT_TRUE(first.Close("done").ok());
  EXPECT_EQ(ReadStepRecords(directory.path(), 0).size(), 1u);
}

TEST(Gauge, WithoutAHandleDoesNothing) {
  Gauge gauge;
  EXPECT_TRUE(gauge.status().ok());
  EXPECT_TRUE(gauge.Publish().ok());
  EXPECT_TRUE(gauge.SetGradNorm(NAN).ok());
  EXPECT_TRUE(gauge.Close().ok());
  EXPECT_EQ(gauge.State().published, 0u);
}

TEST(Gauge, RefusesADenominatorThatIsNotPositive) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  EXPECT_EQ(gauge.SetDenominator(0).code(), LG_INVALID_ARGUMENT);
  EXPECT_TRUE(gauge.SetDenominator(3).ok());
}

TEST(Gauge, OfAForkedChildIsDead) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  const pid_t pid = fork();
  if (pid == 0) _exit(gauge.Publish().code());
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), LG_FAILED_PRECONDITION);
  EXPECT_TRUE(gauge.Publish().ok());
  EXPECT_EQ(ReadStepRecords(directory.path(), 0).size(), 1u);
}

TEST(CrossEntropy, GivesLossAndGradientAndCountsThemInItsGauge) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  const std::vector<float> logits = {2, -1, 0, 0};  // case B14: nll of the first row is ln(1 + e^-3)
  const std::vector<std::int64_t> targets = {0, 1};
  std::vector<float> losses(2), gradient(4);
  CrossEntropy loss(logits.data(), 2, 2, targets.data());
  loss.args.losses = losses.data();
  loss.args.grad_logits = gradient.data();
  ASSERT_TRUE(loss.Run(&gauge).ok());
  EXPECT_NEAR(losses[0], 0.048587351574, 1e-8);
  EXPECT_NEAR(losses[1], 0.693147180560, 1e-7);
  EXPECT_NEAR(gradient[0], -0.0474258731776 / 2, 1e-8);
  EXPECT_NEAR(gradient[3], -0.25, 1e-8);
  ASSERT_TRUE(gauge.Publish().ok());
  const auto records = ReadStepRecords(directory.path(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NEAR(lg_fixed128_to_double(records[0].nll_sum), 0.741734532134, 1e-6);

  loss.args.columns = 0;
  const Status bad = loss.Run();
  EXPECT_EQ(bad.code(), LG_INVALID_ARGUMENT);
  EXPECT_NE(bad.message().find("columns"), std::string::npos) << bad.message();
}

TEST(LinearCrossEntropy, GivesLossAndGradientsOfHiddenStatesAndHead) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  // The logits of the test above as a product: hidden states are unit vectors.
  const std::vector<float> hidden = {1, 0, 0, 1}, weight = {2, 0, -1, 0};
  const std::vector<std::int32_t> targets = {0, 1};
  std::vector<float> losses(2), grad_hidden(4), grad_weight(4);
  LinearCrossEntropy loss(hidden.data(), 2, 2, weight.data(), 2, targets.data());
  loss.args.grad_hidden = grad_hidden.data();
  loss.args.grad_weight = grad_weight.data();
  loss.args.loss.losses = losses.data();
  ASSERT_TRUE(loss.Run(&gauge).ok());
  EXPECT_NEAR(losses[0], 0.048587351574, 1e-8);
  EXPECT_NEAR(losses[1], 0.693147180560, 1e-7);
  EXPECT_NEAR(grad_weight[0], -0.0474258731776 / 2, 1e-8);
  EXPECT_NEAR(grad_weight[3], -0.25, 1e-8);
  EXPECT_NEAR(grad_hidden[0], -0.0474258731776 / 2 * 3, 1e-7);
  ASSERT_TRUE(gauge.Publish().ok());
  const auto records = ReadStepRecords(directory.path(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NE(records[0].present & LG_HAS_HEAD_GRAD, 0u);

  const std::vector<float> before = grad_weight;
  const float twice = 2;
  loss.args.loss.upstream = &twice;
  ASSERT_TRUE(loss.Backward().ok());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(grad_weight[i], 2 * before[i]);
  lg_linear_plan plan;
  ASSERT_TRUE(loss.Plan(&plan).ok());
  EXPECT_EQ(plan.chunks, 1);

  loss.args.width = 0;
  const Status bad = loss.Run();
  EXPECT_EQ(bad.code(), LG_INVALID_ARGUMENT);
  EXPECT_NE(bad.message().find("width"), std::string::npos) << bad.message();
}

TEST(VocabParallelCrossEntropy, TwoRanksGiveTheLossOfTheWholeAndTheirOwnColumnsGradient) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  // The rows of the test above, a column to each rank.
  const std::vector<float> logits[] = {{2, 0}, {-1, 0}};
  const std::vector<std::int32_t> targets = {0, 1};
  std::vector<float> losses(2), gradient(2);
  std::vector<std::max_align_t> gathered(64);
  auto* const bytes = reinterpret_cast<unsigned char*>(gathered.data());
  for (int rank = 0; rank < 2; ++rank) {
    VocabParallelCrossEntropy loss(logits[rank].data(), 2, 1, targets.data(), rank, 2, 2, rank);
    ASSERT_EQ(loss.ContributionBytes(), 256);
    ASSERT_TRUE(loss.Begin(bytes + rank * loss.ContributionBytes(), &gauge).ok());
  }
  VocabParallelCrossEntropy loss(logits[0].data(), 2, 1, targets.data(), 0, 2, 2, 0);
  loss.args.loss.losses = losses.data();
  loss.args.loss.grad_logits = gradient.data();
  ASSERT_TRUE(loss.Finish(bytes, &gauge).ok());
  EXPECT_NEAR(losses[0], 0.048587351574, 1e-8);
  EXPECT_NEAR(losses[1], 0.693147180560, 1e-7);
  EXPECT_NEAR(gradient[0], -0.0474258731776 / 2, 1e-8);
  EXPECT_NEAR(gradient[1], 0.25, 1e-8);
  ASSERT_TRUE(gauge.Publish().ok());
  const auto records = ReadStepRecords(directory.path(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].target_hits, 1u);
  EXPECT_NE(records[0].present & LG_HAS_EXCHANGE, 0u);

  loss.args.vocab_size = 3;
  const Status bad = loss.Finish(bytes);
  EXPECT_EQ(bad.code(), LG_FAILED_PRECONDITION);
  EXPECT_NE(bad.message().find("vocab_size"), std::string::npos) << bad.message();
  loss.args.loss.rows = -1;
  EXPECT_EQ(loss.ContributionBytes(), 0);
}

TEST(VocabParallelLinearCrossEntropy, TwoRanksGiveTheLossOfTheWholeHead) {
  const ScratchDirectory directory;
  Gauge gauge(OptionsIn(directory));
  const std::vector<float> hidden = {1, 0, 0, 2}, weight = {1, 2, -1, 0.25f};
  const std::vector<std::int64_t> targets = {0, 1};
  std::vector<float> grad_weight(4), whole_grad_weight(4);
  float whole_loss = 0, loss_of_both = 0;
  LinearCrossEntropy whole(hidden.data(), 2, 2, weight.data(), 2, targets.data());
  whole.args.grad_weight = whole_grad_weight.data();
  whole.args.loss.loss = &whole_loss;
  ASSERT_TRUE(whole.Run().ok());
  // Both ranks one after the other: the second leaves its part, and breaks off, before the first calls.
  std::vector<unsigned char> part;
  const auto shard_of = [&](int rank, float* grad) {
    LinearCrossEntropy shard(hidden.data(), 2, 2, weight.data() + 2 * rank, 1, targets.data());
    shard.args.grad_weight = grad;
    shard.args.loss.loss = &loss_of_both;
    VocabParallelLinearCrossEntropy loss(shard, rank, 2, 2, rank);
    loss.args.exchange_context = &part;
    return loss;
  };
  VocabParallelLinearCrossEntropy second = shard_of(1, grad_weight.data());
  lg_linear_plan plan;
  ASSERT_TRUE(second.Plan(&plan).ok());
  EXPECT_EQ(plan.chunk_rows, 2);
  second.args.exchange = [](void* context, const void* contribution, void*, std::int64_t bytes, void*) {
    const auto* from = static_cast<const unsigned char*>(contribution);
    static_cast<std::vector<unsigned char>*>(context)->assign(from, from + bytes);
    return static_cast<int>(LG_UNAVAILABLE);
  };
  const Status broken = second.Run();
  EXPECT_EQ(broken.code(), LG_UNAVAILABLE);
  EXPECT_NE(broken.message().find("exchange: of chunk 0"), std::string::npos) << broken.message();
  VocabParallelLinearCrossEntropy first = shard_of(0, grad_weight.data());
  first.args.exchange = [](void* context, const void*, void* gathered, std::int64_t bytes, void*) {
    const auto& from = *static_cast<const std::vector<unsigned char>*>(context);
    std::copy(from.begin(), from.end(), static_cast<unsigned char*>(gathered) + bytes);
    return static_cast<int>(LG_OK);
  };
  const Status done = first.Run(&gauge);
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_NEAR(loss_of_both, whole_loss, 1e-6);
  for (std::size_t k = 0; k < 2; ++k) EXPECT_NEAR(grad_weight[k], whole_grad_weight[k], 1e-6);
  ASSERT_TRUE(gauge.Publish().ok());
  const auto records = ReadStepRecords(directory.path(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].finite_tokens, 2u);
  EXPECT_EQ(records[0].target_hits, 1u);
}

}  // namespace
}  // namespace lossgauge
