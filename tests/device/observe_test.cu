// Statistics that the job computed itself, on a gauge that counts on a device, and what becomes of calls on the host's memory on such a gauge.
#include <cmath>

#include "tests/device/device_gauge_test.h"
#include "tests/device/other_work.cuh"

namespace lossgauge {
namespace {

using testing::HasSubstr;
using ObserveTest = DeviceGaugeTest;

TEST_F(ObserveTest, AnObservationGivesAGaugeItsDeviceAndAddsTheBitsOfTheHost) {
  const double sums[] = {10.5, 1.25, 3.0000001, 1e-9, 12345.678};
  lg_fixed128 expected{};
  for (int step = 0; step < 3; ++step) {
    for (const double sum : sums) {
      Observe(Observation(sum, 8, 6));
      expected = lg_fixed128_add(expected, lg_fixed128_from_double(sum));
    }
    Publish();
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].micro_batches, 5u);
  EXPECT_EQ(steps[0].tokens, 40u);
  EXPECT_EQ(steps[0].unmasked_tokens, 30u);
  EXPECT_EQ(steps[0].finite_tokens, 30u);
  EXPECT_EQ(steps[0].present, static_cast<std::uint64_t>(LG_HAS_LOSS));
  EXPECT_EQ(steps[2].total_tokens, 120u);
  EXPECT_EQ(lg_fixed128_compare(steps[2].total_nll_sum, expected), 0);
  EXPECT_EQ(State(gauge_).dropped_calls, 0u);
}

TEST_F(ObserveTest, WhatIsNotFiniteOrTooLargeIsCountedAsOnTheHost) {
  Loss();  // the gauge meets its device by a loss call
  Publish();
  lg_observation rows = Observation(7, 8, 6);
  rows.nonfinite_rows = 2;
  rows.denominator = 24;
  Observe(rows);
  Observe(Observation(std::nan(""), 8, 5));
  Publish();
  Observe(Observation(1e300, 8, 8));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].nonfinite_rows, 7u);
  EXPECT_EQ(steps[1].finite_tokens, 4u);
  EXPECT_EQ(lg_fixed128_to_double(steps[1].nll_sum), 7);
  EXPECT_EQ(steps[1].present & LG_HAS_DENOMINATOR, 0u) << "one launch with unmasked tokens had none";
  EXPECT_EQ(steps[2].clamped_rows, 1u);
  EXPECT_EQ(lg_fixed128_to_double(steps[2].nll_sum), 8 * 0x1p31);
}

TEST_F(ObserveTest, ALossCallAndAnObservationOnAnotherStreamAddToOneStep) {
  cudaStream_t other;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int step = 0; step < 50; ++step) {
    Loss();
    lg_observation observation = Observation(100, 10, 10);
    observation.denominator = 2;
    observation.stream = other;
    ASSERT_LG(lg_gauge_observe(gauge_, &observation));
    Publish();
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 50u);
  for (const lg_step_record& r : steps) {
    EXPECT_EQ(r.micro_batches, 2u);
    EXPECT_EQ(r.tokens, 16u);
    EXPECT_EQ(r.unmasked_tokens, 15u);
    EXPECT_NEAR(lg_fixed128_to_double(r.nll_sum), 100 + 5 * std::log(1000.), 1e-4);
    EXPECT_EQ(r.denominator_min, 2);
    EXPECT_EQ(r.denominator_max, 5);
    EXPECT_EQ(r.present & LG_HAS_LOGITS, 0u) << "the observation has none";
  }
  cudaStreamDestroy(other);
}

// Three values on the device: sum, count of unmasked tokens, denominator.
TEST_F(ObserveTest, ValuesOfTheDeviceGiveAGaugeItsDeviceAndAreReadThere) {
  lg_observation observation = Observation(-1, 8, 99);
  observation.nll_sum_pointer = scalar_();
  observation.unmasked_tokens_pointer = count_();
  observation.denominator_pointer = scalar_() + 2;
  const double sums[] = {10.5, std::nan(""), -2, 1e300};
  for (const double sum : sums) {
    const double denominator = 24;
    const std::int64_t count = 6;
    ASSERT_CUDA(cudaMemcpyAsync(scalar_(), &sum, 8, cudaMemcpyHostToDevice, stream_));
    ASSERT_CUDA(cudaMemcpyAsync(count_(), &count, 8, cudaMemcpyHostToDevice, stream_));
    ASSERT_CUDA(cudaMemcpyAsync(scalar_() + 2, &denominator, 8, cudaMemcpyHostToDevice, stream_));
    Observe(observation);
    Publish();
    observation.tokens = 0;  // as many as unmasked
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].tokens, 8u);
  EXPECT_EQ(steps[0].finite_tokens, 6u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 10.5);
  EXPECT_EQ(steps[0].denominator_max, 24);
  for (const int nonfinite : {1, 2}) {
    EXPECT_EQ(steps[nonfinite].tokens, 6u);
    EXPECT_EQ(steps[nonfinite].nonfinite_rows, 6u);
    EXPECT_EQ(steps[nonfinite].finite_tokens, 0u);
  }
  EXPECT_EQ(steps[3].clamped_rows, 1u);
  const double on_host = 1;
  observation.nll_sum_pointer = &on_host;
  observation.stream = stream_;
  EXPECT_EQ(lg_gauge_observe(gauge_, &observation), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("nll_sum_pointer"));
}

TEST_F(ObserveTest, ValuesOfTheDeviceCanBeCaptured) {
  Loss();
  Publish();
  lg_observation observation = Observation(0, 8, 0);
  observation.nll_sum_pointer = scalar_();
  observation.unmasked_tokens_pointer = count_();
  cudaGraph_t graph;
  cudaGraphExec_t replayed;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  Observe(observation);
  Publish();
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&replayed, graph, 0));
  for (std::int64_t count = 1; count < 5; ++count) {
    const double sum = 2. * static_cast<double>(count);
    ASSERT_CUDA(cudaMemcpyAsync(scalar_(), &sum, 8, cudaMemcpyHostToDevice, stream_));
    ASSERT_CUDA(cudaMemcpyAsync(count_(), &count, 8, cudaMemcpyHostToDevice, stream_));
    ASSERT_CUDA(cudaGraphLaunch(replayed, stream_));
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 5u);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].finite_tokens, i);
    EXPECT_EQ(lg_fixed128_to_double(steps[i].nll_sum), 2. * static_cast<double>(i));
  }
  cudaGraphExecDestroy(replayed);
  cudaGraphDestroy(graph);
}

TEST_F(ObserveTest, ValuesOfTheHostAreRefusedDuringCapture) {
  Loss();
  Publish();
  cudaGraph_t graph;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  lg_observation observation = Observation(1, 1, 1);
  observation.stream = stream_;
  EXPECT_EQ(lg_gauge_observe(gauge_, &observation), LG_FAILED_PRECONDITION);
  EXPECT_THAT(lg_last_error(), HasSubstr("captured"));
  Loss();
  Publish();
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph)) << "the refusal broke the capture";
  cudaGraphDestroy(graph);
  EXPECT_EQ(Steps().size(), 1u);
}

TEST_F(ObserveTest, ClosingComesBehindTheStepsThatTheDeviceStillPublishes) {
  Loss();
  Publish();
  const std::string path = State(gauge_).steps_path;
  LaunchOtherWork(1, 0, 40000000, stream_);  // 20 ms
  Observe(Observation(1, 8, 8));
  Publish();
  ASSERT_LG(lg_gauge_close(gauge_, nullptr));
  gauge_ = nullptr;
  const RingFile ring(path);  // as it was when the call came back
  EXPECT_EQ(ring.Records<lg_step_record>().size(), 2u);
  EXPECT_EQ(ring.status().closed, static_cast<std::uint64_t>(LG_CLOSE_FINISHED));
}

// A gauge counts in one place: on the device, once a call has met one.
TEST_F(ObserveTest, ALossCallOnTheHostIsRightButUncountedOnceTheGaugeCountsOnADevice) {
  const std::vector<float> logits(2 * kColumns, 1.f);
  const std::vector<std::int64_t> targets = {1, 2};
  float losses[2] = {-1, -1};
  lg_cross_entropy_args host = Args();
  host.logits = logits.data();
  host.targets = targets.data();
  host.rows = 2;
  host.losses = losses;
  host.loss = nullptr;
  host.grad_logits = nullptr;
  host.stream = nullptr;
  ASSERT_LG(lg_cross_entropy(&host));  // counted on the host, until ...
  Loss();                              // ... the gauge meets its device within the same step
  Publish();
  EXPECT_EQ(State(gauge_).dropped_calls, 1u) << "the host's launch of that step is counted as lost";
  losses[0] = -1;
  ASSERT_LG(lg_cross_entropy(&host));
  EXPECT_NEAR(losses[0], std::log(1000.f), 1e-4f);
  EXPECT_EQ(State(gauge_).dropped_calls, 2u);
  Loss();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  for (const lg_step_record& r : steps) {
    EXPECT_EQ(r.micro_batches, 1u);
    EXPECT_EQ(r.tokens, static_cast<std::uint64_t>(kRows));
  }
  EXPECT_EQ(State(gauge_).dropped_calls, 2u);
}

}  // namespace
}  // namespace lossgauge
