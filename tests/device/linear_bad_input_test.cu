// What linear cross-entropy on a device cannot work on is refused by name, before anything is launched: outputs stay as they were, the step counts nothing, and
// CUDA has no error.
#include "tests/device/linear_tensors.cuh"

#include <functional>
#include <string>

#include "tests/device/device_gauge_test.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;
using LinearArgs = lg_linear_cross_entropy_args;

class LinearBadInput : public DeviceGaugeTest {
 protected:
  void SetUp() override {
    DeviceGaugeTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    head_ = std::make_unique<LinearTensors>(64, 32, 500, 3);
    good_ = head_->Args(stream_, 32);
    good_.loss.gauge = gauge_;
    ASSERT_LG(lg_linear_cross_entropy(&good_));
    Publish();
    head_->Clear();
    untouched_ = head_->Results();
  }
  void ExpectRefusedBy(int (*call)(const LinearArgs*), const std::string& argument, const std::string& got, const std::function<void(LinearArgs*)>& spoil,
                       int code) {
    LinearArgs args = good_;
    spoil(&args);
    EXPECT_EQ(call(&args), code) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(": " + argument));
    EXPECT_THAT(lg_last_error(), HasSubstr(got));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << argument;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << argument;
    EXPECT_TRUE(head_->Results() == untouched_) << argument << ": written before it was refused";
  }
  void ExpectRefused(const std::string& argument, const std::string& got, const std::function<void(LinearArgs*)>& spoil, int code = LG_INVALID_ARGUMENT) {
    ExpectRefusedBy(lg_linear_cross_entropy, argument, got, spoil, code);
  }
  void TearDown() override {
    if (head_ != nullptr) {  // nothing refused has been counted
      ASSERT_LG(lg_linear_cross_entropy(&good_));
      Publish();
      const auto steps = Steps();
      ASSERT_EQ(steps.size(), 2u);
      EXPECT_EQ(steps[1].micro_batches, 1u);
      EXPECT_EQ(steps[1].tokens, 64u);
    }
    DeviceGaugeTest::TearDown();
    head_.reset();
  }

  std::unique_ptr<LinearTensors> head_;
  LinearArgs good_;
  std::vector<unsigned char> untouched_;
};

TEST_F(LinearBadInput, HostMemoryWhereTheDevicesIsNeededIsRefused) {
  alignas(256) static double host[32768];
  void* const any = host;
  const auto single = reinterpret_cast<float*>(host);
  const auto whole = reinterpret_cast<std::int64_t*>(host);
  ExpectRefused("weight", "host memory", [=](LinearArgs* a) { a->weight = any; });
  ExpectRefused("bias", "host memory", [=](LinearArgs* a) { a->bias = any; });
  ExpectRefused("grad_hidden", "host memory", [=](LinearArgs* a) { a->grad_hidden = any; });
  ExpectRefused("grad_weight", "host memory", [=](LinearArgs* a) { a->grad_weight = any; });
  ExpectRefused("grad_bias", "host memory", [=](LinearArgs* a) { a->grad_bias = any; });
  ExpectRefused("workspace", "host memory", [=](LinearArgs* a) { a->workspace = any, a->workspace_bytes = sizeof host; });
  ExpectRefused("targets", "host memory", [=](LinearArgs* a) { a->loss.targets = any; });
  ExpectRefused("losses", "host memory", [=](LinearArgs* a) { a->loss.losses = single; });
  ExpectRefused("log_z", "host memory", [=](LinearArgs* a) { a->loss.log_z = single; });
  ExpectRefused("loss", "host memory", [=](LinearArgs* a) { a->loss.loss = single; });
  ExpectRefused("upstream", "host memory", [=](LinearArgs* a) { a->loss.upstream = single; });
  ExpectRefused("grad_scale", "host memory", [=](LinearArgs* a) { a->loss.grad_scale = single; });
  ExpectRefused("positions", "host memory", [=](LinearArgs* a) { a->loss.positions = whole; });
  ExpectRefused("denominator_pointer", "host memory", [=](LinearArgs* a) { a->loss.denominator_pointer = host; });
  ExpectRefused("weight", "memory of device", [=](LinearArgs* a) { a->hidden = any; });  // the host runs it then, and cannot read the others
  for (const double x : host) ASSERT_EQ(x, 0);
}

// A call without rows still reads what it divides by.
TEST_F(LinearBadInput, ADenominatorOfTheHostIsRefusedWithoutRowsToo) {
  static double host = 8;
  ExpectRefused("denominator_pointer", "host memory", [](LinearArgs* a) { a->rows = 0, a->loss.denominator_pointer = &host; });
  lg_cross_entropy_args args = Args();
  args.gauge = nullptr;
  args.rows = 0;
  args.denominator_pointer = &host;
  EXPECT_EQ(lg_cross_entropy(&args), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("denominator_pointer"));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(LinearBadInput, WhatIsMisalignedOrTooSmallIsRefused) {
  const auto off = [](const void* p, int bytes) { return static_cast<void*>(const_cast<char*>(static_cast<const char*>(p)) + bytes); };
  ExpectRefused("hidden", "aligned", [=](LinearArgs* a) { a->hidden = off(a->hidden, 1), a->rows = 63; });
  ExpectRefused("weight", "aligned", [=](LinearArgs* a) { a->weight = off(a->weight, 1), a->columns = 499; });
  ExpectRefused("grad_weight", "aligned", [=](LinearArgs* a) { a->grad_weight = off(a->grad_weight, 2), a->columns = 499; });
  const DeviceArray<unsigned char> workspace(1 << 20);
  ExpectRefused("workspace", "aligned", [&](LinearArgs* a) { a->workspace = workspace + 16, a->workspace_bytes = 1 << 19; });
  ExpectRefused("workspace_bytes", "plan", [&](LinearArgs* a) { a->workspace = workspace, a->workspace_bytes = 1 << 20; });
  ExpectRefused("memory_budget", "one row", [](LinearArgs* a) { a->chunk_rows = 0, a->memory_budget = 1 << 20; });
}

TEST_F(LinearBadInput, WhatADeviceDoesNotTakeIsRefused) {
  ExpectRefused("logits_dtype", "on a device", [](LinearArgs* a) { a->logits_dtype = LG_FP32; }, LG_UNIMPLEMENTED);
  ExpectRefused("head_grad_dtype", "2", [](LinearArgs* a) { a->head_grad_dtype = LG_FP16; });
  ExpectRefused("rows", "2^30", [](LinearArgs* a) {
    a->rows = (1ll << 30) + 1;
    a->grad_hidden = a->grad_weight = a->grad_bias = nullptr;  // they and what follows would lie inside so many rows
    a->loss.losses = a->loss.log_z = a->loss.loss = nullptr;
  });
  ExpectRefused("hidden_stride", "2^31 bytes", [](LinearArgs* a) { a->rows = 1, a->hidden_stride = 1ll << 30; });
}

TEST_F(LinearBadInput, ProductsArePreparedOnlyWithTensorsThatAreThere) {
  const auto refused = [this](const char* argument, const char* got, const std::function<void(LinearArgs*)>& spoil) {
    ExpectRefusedBy(lg_linear_cross_entropy_prepare, argument, got, spoil, LG_INVALID_ARGUMENT);
  };
  refused("hidden", "NULL", [](LinearArgs* a) { a->hidden = nullptr; });
  refused("weight", "NULL", [](LinearArgs* a) { a->weight = nullptr; });
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(lg_linear_cross_entropy_prepare(&good_), LG_FAILED_PRECONDITION);
  EXPECT_THAT(lg_last_error(), HasSubstr("stream"));
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph)) << "the capture was lost";
  ASSERT_CUDA(cudaGraphDestroy(graph));
  EXPECT_TRUE(head_->Results() == untouched_);
}

TEST_F(LinearBadInput, AnotherDevicesTensorsAndStreamsAreRefused) {
  int devices = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "one device";
  ASSERT_CUDA(cudaSetDevice(1));
  cudaStream_t elsewhere;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&elsewhere, cudaStreamNonBlocking));
  {
    const DeviceArray<float> other(500 * 32);
    ASSERT_CUDA(cudaSetDevice(0));
    ExpectRefused("weight", "device 1", [&](LinearArgs* a) { a->weight = static_cast<float*>(other); });
    ExpectRefused("grad_weight", "device 1", [&](LinearArgs* a) { a->grad_weight = static_cast<float*>(other); });
    ExpectRefused("stream", "device 1", [=](LinearArgs* a) { a->loss.stream = elsewhere; });
    lg_cross_entropy_args args = Args();
    args.stream = elsewhere;
    EXPECT_EQ(lg_cross_entropy(&args), LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), HasSubstr("stream: expected one of device 0"));
  }
  ASSERT_CUDA(cudaStreamDestroy(elsewhere));
}

}  // namespace
}  // namespace lossgauge
