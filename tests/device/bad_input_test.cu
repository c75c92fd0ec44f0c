// What a device cannot work on is refused by name, before anything is launched: outputs stay as they were, the step counts nothing, and CUDA has no error.
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/device/device_gauge_test.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;

class BadInput : public DeviceGaugeTest {
 protected:
  void SetUp() override {
    DeviceGaugeTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Loss();  // from here on the gauge counts on the device
    Publish();
    ASSERT_CUDA(cudaDeviceSynchronize());
    ASSERT_CUDA(cudaMemset(grad_(), 0xff, (kRows * kColumns + 32) * 4));
  }
  void ExpectUntouched(const char* what) {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << what;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
    std::vector<unsigned> outputs(kRows * kColumns + 32);
    ASSERT_CUDA(cudaMemcpy(outputs.data(), grad_(), outputs.size() * 4, cudaMemcpyDeviceToHost));
    for (const unsigned x : outputs) ASSERT_EQ(x, ~0u) << what << ": written before it was refused";
  }
  void ExpectRefused(const char* argument, const char* got, const std::function<void(lg_cross_entropy_args*)>& spoil, int code = LG_INVALID_ARGUMENT) {
    lg_cross_entropy_args args = Args();
    spoil(&args);
    EXPECT_EQ(lg_cross_entropy(&args), code) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(argument));
    EXPECT_THAT(lg_last_error(), HasSubstr(got));
    ExpectUntouched(argument);
  }
  // Of the step that follows: nothing refused has been counted.
  void ExpectOnlyGoodCallsCounted() {
    Loss();
    Publish();
    const auto steps = Steps();
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[1].micro_batches, 1u);
    EXPECT_EQ(steps[1].tokens, static_cast<std::uint64_t>(kRows));
  }
};

TEST_F(BadInput, HostMemoryWhereTheDevicesIsNeededIsRefused) {
  std::vector<double> host(8, -7);
  const auto whole = reinterpret_cast<std::int64_t*>(host.data());
  const auto single = reinterpret_cast<float*>(host.data());
  ExpectRefused("targets", "host memory", [=](auto* a) { a->targets = whole; });
  ExpectRefused("losses", "host memory", [=](auto* a) { a->losses = single; });
  ExpectRefused("log_z", "host memory", [=](auto* a) { a->log_z = single; });
  ExpectRefused("loss", "host memory", [=](auto* a) { a->loss = single; });
  ExpectRefused("grad_logits", "host memory", [=](auto* a) { a->grad_logits = single; });
  ExpectRefused("upstream", "host memory", [=](auto* a) { a->upstream = single; });
  ExpectRefused("grad_scale", "host memory", [=](auto* a) { a->grad_scale = single; });
  ExpectRefused("positions", "host memory", [=](auto* a) { a->positions = whole; });
  ExpectRefused("denominator_pointer", "host memory", [&](auto* a) { a->denominator_pointer = host.data(); });
  ExpectRefused("targets", "NULL", [](auto* a) { a->targets = nullptr; });
  for (const double x : host) EXPECT_EQ(x, -7);
  ExpectOnlyGoodCallsCounted();
}

TEST_F(BadInput, APointerThatIsNotAlignedToItsElementsIsRefused) {
  const auto off = [](const void* p, int bytes) { return static_cast<void*>(const_cast<char*>(static_cast<const char*>(p) + bytes)); };
  ExpectRefused("logits", "aligned", [=](auto* a) { a->logits = off(a->logits, 2); });
  ExpectRefused("logits", "aligned", [=](auto* a) { a->logits_dtype = LG_BF16, a->logits = off(a->logits, 1); });
  ExpectRefused("targets", "aligned", [=](auto* a) { a->targets = off(a->targets, 2); });  // 8-byte ones are read in halves
  ExpectRefused("targets", "aligned", [=](auto* a) { a->target_dtype = LG_INT32, a->targets = off(a->targets, 2); });
  ExpectRefused("losses", "aligned", [=](auto* a) { a->losses = static_cast<float*>(off(a->losses, 2)), a->log_z = nullptr; });
  ExpectRefused("log_z", "aligned", [=](auto* a) { a->log_z = static_cast<float*>(off(a->losses, 1)), a->losses = nullptr; });
  ExpectRefused("loss", "aligned", [=](auto* a) { a->loss = static_cast<float*>(off(a->loss, 3)); });
  ExpectRefused("grad_logits", "aligned", [=](auto* a) { a->grad_logits = off(a->grad_logits, 2), a->losses = nullptr; });  // losses lie behind it
  ExpectRefused("upstream", "aligned", [=](auto* a) { a->upstream = static_cast<float*>(off(a->losses, 2)), a->losses = nullptr; });
  ExpectRefused("grad_scale", "aligned", [=](auto* a) { a->grad_scale = static_cast<float*>(off(a->losses, 2)), a->losses = nullptr; });
  ExpectRefused("positions", "aligned", [=](auto* a) { a->positions = static_cast<int64_t*>(off(a->targets, 4)); });
  ExpectRefused("denominator_pointer", "aligned", [=](auto* a) { a->denominator_pointer = static_cast<double*>(off(a->targets, 4)); });
  ExpectOnlyGoodCallsCounted();
}

TEST_F(BadInput, MoreColumnsThanADeviceTakesAreRefused) {
  ExpectRefused("columns", "2^30", [](auto* a) {
    a->columns = (1ll << 30) + 1, a->rows = 1;
    a->grad_logits = nullptr, a->losses = a->loss = nullptr;  // they would lie inside such a row
  });
}

TEST_F(BadInput, OutOfRangeTargetsAddNothingAndAreCounted) {
  const std::int64_t targets[kRows] = {1, 1000, -100, -1, 1ll << 40, INT64_MIN};
  ASSERT_CUDA(cudaMemcpy(targets_(), targets, sizeof targets, cudaMemcpyHostToDevice));
  Loss();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].bad_targets, 4u);
  EXPECT_EQ(steps[1].unmasked_tokens, 1u);
  EXPECT_EQ(steps[1].finite_tokens, 1u);
  std::vector<float> outputs(kRows * kColumns + kRows);
  ASSERT_CUDA(cudaMemcpy(outputs.data(), grad_(), outputs.size() * 4, cudaMemcpyDeviceToHost));
  for (int i = kColumns; i < kRows * kColumns; ++i) ASSERT_EQ(outputs[static_cast<std::size_t>(i)], 0.f) << "column " << i;
  for (int row = 1; row < kRows; ++row) EXPECT_EQ(outputs[static_cast<std::size_t>(kRows * kColumns + row)], 0.f) << "row " << row;
}

TEST_F(BadInput, AScalarThatTheDeviceCannotReadIsRefused) {
  double on_host = 1;
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, &on_host, LG_FP64), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("host memory"));
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, nullptr, LG_FP64), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("NULL"));
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, reinterpret_cast<char*>(scalar_()) + 4, LG_FP64), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("aligned"));
  ExpectUntouched("scalars");
  ExpectOnlyGoodCallsCounted();
  const auto steps = Steps();
  EXPECT_EQ(steps[1].present & LG_HAS_GRAD_NORM, 0u);
}

// Set while nobody knew of the device: dropped and counted at publish, like a denominator that is none.
TEST_F(BadInput, AScalarSetOnTheHostBeforeTheGaugeMetItsDeviceIsDropped) {
  const ScratchDirectory directory;
  const lg_gauge_options options = Options(directory.path());
  lg_gauge* fresh = nullptr;
  ASSERT_LG(lg_gauge_open(&options, &fresh));
  double on_host = 1;
  ASSERT_LG(lg_gauge_set_scalar_pointer(fresh, LG_GRAD_NORM, &on_host, LG_FP64));
  lg_cross_entropy_args args = Args();
  args.gauge = fresh;
  ASSERT_LG(lg_cross_entropy(&args));
  ASSERT_LG(lg_gauge_publish(fresh, stream_));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(State(fresh).dropped_calls, 1u);
  const auto steps = RingFile(State(fresh).steps_path).Records<lg_step_record>();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].present & LG_HAS_GRAD_NORM, 0u);
  ASSERT_LG(lg_gauge_close(fresh, nullptr));
}

TEST_F(BadInput, GradientsToBeScaledAreCheckedToo) {
  const float host = 2;
  lg_scale_gradient_args good;
  lg_scale_gradient_args_init(&good);
  good.grad = grad_();
  good.rows = kRows;
  good.columns = kColumns;
  good.upstream = loss_();
  good.stream = stream_;
  const auto refused = [&](const char* argument, const std::function<void(lg_scale_gradient_args*)>& spoil) {
    lg_scale_gradient_args args = good;
    spoil(&args);
    EXPECT_EQ(lg_scale_gradient(&args), LG_INVALID_ARGUMENT) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(argument));
    ExpectUntouched(argument);
  };
  refused("upstream", [&](auto* a) { a->upstream = &host; });
  refused("upstream", [](auto* a) { a->upstream = nullptr; });
  refused("upstream", [](auto* a) { a->upstream = reinterpret_cast<const float*>(reinterpret_cast<const char*>(a->upstream) + 1); });
  refused("grad", [](auto* a) { a->grad = static_cast<char*>(a->grad) + 2; });
}

TEST_F(BadInput, WhatCannotBeCapturedIsRefusedAndTheCaptureLives) {
  double on_host = 1;
  cudaGraph_t graph;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  ASSERT_LG(lg_gauge_set_scalar(gauge_, LG_LEARNING_RATE, 0.1));
  EXPECT_EQ(lg_gauge_publish(gauge_, stream_), LG_FAILED_PRECONDITION);
  EXPECT_THAT(lg_last_error(), HasSubstr("captured"));
  ASSERT_LG(lg_gauge_set_scalar_pointer(gauge_, LG_LEARNING_RATE, scalar_(), LG_FP64));
  Loss();
  Publish();
  lg_cross_entropy_args host_target = Args();
  host_target.denominator_pointer = &on_host;
  EXPECT_EQ(lg_cross_entropy(&host_target), LG_INVALID_ARGUMENT);
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph)) << "a refusal broke the capture";
  std::size_t nodes = 0;
  ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_GE(nodes, 2u);
  cudaGraphDestroy(graph);
  ExpectUntouched("captured, never launched");
}

TEST_F(BadInput, AClosedGaugeIsRefused) {
  lg_gauge* closed = gauge_;
  ASSERT_LG(lg_gauge_close(gauge_, nullptr));
  gauge_ = nullptr;
  ExpectRefused("gauge", "closed", [=](auto* a) { a->gauge = closed; }, LG_FAILED_PRECONDITION);
  EXPECT_EQ(lg_gauge_publish(closed, stream_), LG_FAILED_PRECONDITION);
  EXPECT_THAT(lg_last_error(), HasSubstr("closed"));
}

// Of another gauge: each launch counts where its own call says.
TEST_F(BadInput, TwoGaugesOnOneStreamDoNotMix) {
  const ScratchDirectory directory;
  const lg_gauge_options options = Options(directory.path(), "another run");
  lg_gauge* other = nullptr;
  ASSERT_LG(lg_gauge_open(&options, &other));
  for (int step = 0; step < 20; ++step) {
    lg_cross_entropy_args args = Args();
    ASSERT_LG(lg_cross_entropy(&args));
    args.gauge = other;
    ASSERT_LG(lg_cross_entropy(&args));
    ASSERT_LG(lg_cross_entropy(&args));
    Publish();
    ASSERT_LG(lg_gauge_publish(other, stream_));
  }
  const auto steps = Steps();
  const auto others = RingFile(State(other).steps_path).Records<lg_step_record>();
  ASSERT_EQ(steps.size(), 21u);
  ASSERT_EQ(others.size(), 20u);
  EXPECT_EQ(steps.back().total_tokens, 21u * kRows);
  EXPECT_EQ(others.back().total_tokens, 40u * kRows);
  ASSERT_LG(lg_gauge_close(other, nullptr));
}

// What a graph knows of a closed gauge stays where it is, and nobody else gets it.
TEST_F(BadInput, AGraphThatIsReplayedAfterCloseComputesAndCountsNothing) {
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  Loss();
  Publish();
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  ASSERT_CUDA(cudaGraphLaunch(replay, stream_));
  ASSERT_EQ(Steps().size(), 2u);
  const std::string path = State(gauge_).steps_path;
  ASSERT_LG(lg_gauge_close(gauge_, nullptr));
  const ScratchDirectory directory;
  const lg_gauge_options options = Options(directory.path(), "another run");
  ASSERT_LG(lg_gauge_open(&options, &gauge_));
  Loss();  // takes device memory, which must not be the closed gauge's
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaMemset(grad_(), 0xff, kRows * kColumns * 4));
  for (int i = 0; i < 100; ++i) ASSERT_CUDA(cudaGraphLaunch(replay, stream_));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].tokens, static_cast<std::uint64_t>(kRows));
  EXPECT_EQ(RingFile(path).Records<lg_step_record>().size(), 2u) << "published after the end";
  EXPECT_EQ(RingFile(path).cursor(), 2u) << "a closed ring's cursor is exact";
  float first = NAN;
  ASSERT_CUDA(cudaMemcpy(&first, grad_(), sizeof first, cudaMemcpyDeviceToHost));
  EXPECT_GT(first, 0.f) << "a replay no longer computes";
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

TEST_F(BadInput, ARingThatTheDeviceCannotMapIsSaidOnceAndCostsNoCall) {
  const std::string directory = (std::filesystem::current_path() / "lossgauge-bad-input-ring").string();  // no memory file system, if we are lucky
  const lg_gauge_options options = Options(directory);
  lg_gauge* unmapped = nullptr;
  ASSERT_LG(lg_gauge_open(&options, &unmapped));
  lg_cross_entropy_args args = Args();
  args.gauge = unmapped;
  for (int i = 0; i < 3; ++i) ASSERT_LG(lg_cross_entropy(&args));
  const lg_gauge_state state = State(unmapped);
  EXPECT_EQ(lg_gauge_publish(unmapped, stream_), LG_OK);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(lg_gauge_close(unmapped, nullptr), LG_OK);
  std::filesystem::remove_all(directory);
  if (state.dropped_calls == 0) GTEST_SKIP() << "this machine's device maps rings of any file system";
  EXPECT_EQ(state.dropped_calls, 3u);
  EXPECT_EQ(state.code, LG_UNAVAILABLE);
  EXPECT_THAT(state.message, HasSubstr("mapping the ring"));
}

TEST_F(BadInput, TheStateCountsWhatTheDeviceHasPublished) {
  for (int step = 0; step < 3; ++step) {
    Loss();
    Publish();
  }
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(State(gauge_).published, 4u);
}

}  // namespace
}  // namespace lossgauge
