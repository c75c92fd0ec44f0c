// A gauge in a scratch directory, some small tensors on the device, and the records that the gauge has published.
#ifndef LOSSGAUGE_TESTS_DEVICE_DEVICE_GAUGE_TEST_H_
#define LOSSGAUGE_TESTS_DEVICE_DEVICE_GAUGE_TEST_H_

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_LG(x) ASSERT_EQ((x), LG_OK) << lg_last_error()

class DeviceGaugeTest : public testing::Test {
 protected:
  static constexpr int kRows = 6, kColumns = 1000;

  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ASSERT_CUDA(cudaMalloc(&memory_, kBytes));
    ASSERT_CUDA(cudaMemset(memory_, 0xff, kBytes));  // NaN in every float
    const std::vector<float> logits(kRows * kColumns, 1.f);
    const std::vector<std::int64_t> targets = {1, 2, -100, 4, 5, 999};
    ASSERT_CUDA(cudaMemcpy(logits_(), logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaMemcpy(targets_(), targets.data(), targets.size() * 8, cudaMemcpyHostToDevice));
    directory_ = std::make_unique<ScratchDirectory>();
    const lg_gauge_options options = Options(directory_->path());
    ASSERT_LG(lg_gauge_open(&options, &gauge_));
    ASSERT_TRUE(State(gauge_).telemetry_on) << State(gauge_).message;
  }
  void TearDown() override {
    if (gauge_ != nullptr) EXPECT_EQ(lg_gauge_close(gauge_, nullptr), LG_OK);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for the job to find";
    if (memory_ != nullptr) cudaFree(memory_), cudaStreamDestroy(stream_);
  }

  float* logits_() const { return reinterpret_cast<float*>(memory_); }
  float* grad_() const { return logits_() + kRows * kColumns + 64; }
  float* losses_() const { return grad_() + kRows * kColumns; }
  float* loss_() const { return losses_() + 16; }
  double* scalar_() const { return reinterpret_cast<double*>(losses_() + 32); }
  std::int64_t* count_() const { return reinterpret_cast<std::int64_t*>(scalar_() + 1); }
  std::int64_t* targets_() const { return reinterpret_cast<std::int64_t*>(losses_() + 64); }

  lg_cross_entropy_args Args() const {
    lg_cross_entropy_args args;
    lg_cross_entropy_args_init(&args);
    args.logits = logits_();
    args.rows = kRows;
    args.columns = kColumns;
    args.targets = targets_();
    args.losses = losses_();
    args.loss = loss_();
    args.grad_logits = grad_();
    args.gauge = gauge_;
    args.stream = stream_;
    return args;
  }
  void Loss() {
    const lg_cross_entropy_args args = Args();
    ASSERT_LG(lg_cross_entropy(&args));
  }
  void Publish() { ASSERT_LG(lg_gauge_publish(gauge_, stream_)); }
  void Observe(lg_observation observation) {
    observation.stream = stream_;
    ASSERT_LG(lg_gauge_observe(gauge_, &observation));
  }
  std::vector<lg_step_record> Steps() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return RingFile(State(gauge_).steps_path).Records<lg_step_record>();
  }

  cudaStream_t stream_ = nullptr;
  lg_gauge* gauge_ = nullptr;

 private:
  static constexpr std::size_t kBytes = (2 * kRows * kColumns + 64 + 256) * 4;
  unsigned char* memory_ = nullptr;
  std::unique_ptr<ScratchDirectory> directory_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_DEVICE_DEVICE_GAUGE_TEST_H_
