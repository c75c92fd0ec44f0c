// Calls with tensors on both sides, before a backend that only knows which memory is a device's: whatever the host runs must not touch that memory, which
// would end the process, and what the device prepares with must be there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/host/idle_backend.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = 8192;
alignas(256) unsigned char device_memory[kBytes];
int prepared = 0;

class MapOfMemory final : public IdleBackend {
 public:
  int DeviceOf(const void* pointer) noexcept override {
    const auto at = reinterpret_cast<std::uintptr_t>(pointer), begin = reinterpret_cast<std::uintptr_t>(device_memory);
    return at >= begin && at < begin + kBytes ? 3 : -1;
  }
  int PrepareLinear(const lg_linear_cross_entropy_args&, const char*) override { return ++prepared, LG_OK; }
  int PrepareVocabParallelLinear(const ShardedLinear&, const char*) override { return ++prepared, LG_OK; }
};

template <class T>
T* OnDevice() {
  return reinterpret_cast<T*>(device_memory);
}

template <class Args>
void ExpectRefused(int (*call)(const Args*), const Args& good, const std::string& argument, const std::string& got, const std::function<void(Args*)>& spoil) {
  Args args = good;
  spoil(&args);
  EXPECT_EQ(call(&args), LG_INVALID_ARGUMENT) << argument;
  EXPECT_THAT(lg_last_error(), HasSubstr(": " + argument + ": expected"));
  EXPECT_THAT(lg_last_error(), HasSubstr(got));
}

class MixedMemory : public testing::Test {
 protected:
  MixedMemory() {
    lg_cross_entropy_args_init(&loss_);
    loss_.logits = logits_;
    loss_.rows = 2;
    loss_.columns = 4;
    loss_.targets = targets_;
    loss_.grad_logits = grad_;
    loss_.loss = &scalar_;
    lg_linear_cross_entropy_args_init(&linear_);
    linear_.hidden = hidden_;
    linear_.rows = 2;
    linear_.width = 3;
    linear_.weight = weight_;
    linear_.columns = 4;
    linear_.bias = bias_;
    linear_.grad_hidden = grad_hidden_;
    linear_.loss.targets = targets_;
    linear_.loss.loss = &scalar_;
  }
  float logits_[8] = {}, grad_[8] = {}, hidden_[6] = {}, weight_[12] = {}, bias_[4] = {}, grad_hidden_[6] = {}, scalar_ = 0;
  std::int64_t targets_[2] = {};
  lg_cross_entropy_args loss_;
  lg_linear_cross_entropy_args linear_;
};

TEST_F(MixedMemory, ADevicesTensorBesideLogitsOfTheHostIsRefused) {
  using Args = lg_cross_entropy_args;
  const auto refused = [this](const char* argument, const std::function<void(Args*)>& spoil) {
    ExpectRefused<Args>(lg_cross_entropy, loss_, argument, "memory of device 3", spoil);
  };
  refused("targets", [](Args* a) { a->targets = OnDevice<void>(); });
  refused("targets", [](Args* a) { a->targets = OnDevice<void>(), a->stream = OnDevice<void>(); });  // not for its stream
  refused("grad_logits", [](Args* a) { a->grad_logits = OnDevice<void>(); });
  refused("losses", [](Args* a) { a->losses = OnDevice<float>(); });
  refused("log_z", [](Args* a) { a->log_z = OnDevice<float>(); });
  refused("loss", [](Args* a) { a->loss = OnDevice<float>(); });
  refused("upstream", [](Args* a) { a->upstream = OnDevice<float>(); });
  refused("grad_scale", [](Args* a) { a->grad_scale = OnDevice<float>(); });
  refused("positions", [](Args* a) { a->positions = OnDevice<std::int64_t>(); });
  refused("denominator_pointer", [](Args* a) { a->denominator_pointer = OnDevice<double>(); });
  EXPECT_EQ(lg_cross_entropy(&loss_), LG_OK) << lg_last_error();
}

TEST_F(MixedMemory, ADevicesTensorBesideHiddenStatesOfTheHostIsRefused) {
  using Args = lg_linear_cross_entropy_args;
  const auto refused = [this](const char* argument, const std::function<void(Args*)>& spoil) {
    ExpectRefused<Args>(lg_linear_cross_entropy, linear_, argument, "memory of device 3", spoil);
    ExpectRefused<Args>(lg_linear_cross_entropy_backward, linear_, argument, "memory of device 3", spoil);
  };
  refused("weight", [](Args* a) { a->weight = OnDevice<void>(); });
  refused("weight", [](Args* a) { a->weight = OnDevice<void>(), a->loss.stream = OnDevice<void>(); });  // not for its stream
  refused("bias", [](Args* a) { a->bias = OnDevice<void>(); });
  refused("grad_hidden", [](Args* a) { a->grad_hidden = OnDevice<void>(); });
  refused("grad_weight", [](Args* a) { a->grad_weight = OnDevice<void>(); });
  refused("grad_bias", [](Args* a) { a->grad_bias = OnDevice<void>(); });
  refused("workspace", [](Args* a) { a->workspace = OnDevice<void>(), a->workspace_bytes = kBytes; });
  refused("targets", [](Args* a) { a->loss.targets = OnDevice<void>(); });
  refused("upstream", [](Args* a) { a->loss.upstream = OnDevice<float>(); });
  EXPECT_EQ(lg_linear_cross_entropy(&linear_), LG_OK) << lg_last_error();
}

TEST_F(MixedMemory, ADevicesTensorBesideAShardsHiddenStatesOfTheHostIsRefused) {
  lg_vocab_parallel_linear_args args;
  lg_vocab_parallel_linear_args_init(&args);
  args.vocab_size = 4;
  args.linear = &linear_;
  ASSERT_EQ(lg_vocab_parallel_linear_cross_entropy(&args), LG_OK) << lg_last_error();
  linear_.weight = OnDevice<void>();
  linear_.loss.stream = args.communicator = OnDevice<void>();
  EXPECT_EQ(lg_vocab_parallel_linear_cross_entropy(&args), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("lg_vocab_parallel_linear_cross_entropy: weight: expected host memory"));
}

TEST_F(MixedMemory, ADevicesFactorForAGradientOfTheHostIsRefused) {
  lg_scale_gradient_args args;
  lg_scale_gradient_args_init(&args);
  args.grad = grad_;
  args.rows = 2;
  args.columns = 4;
  args.upstream = OnDevice<float>();
  args.stream = OnDevice<void>();
  EXPECT_EQ(lg_scale_gradient(&args), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("lg_scale_gradient: upstream: expected host memory"));
}

TEST_F(MixedMemory, ADevicesProductsArePreparedWithTensorsThatAreThere) {
  using Args = lg_linear_cross_entropy_args;
  Args on_device = linear_;
  on_device.hidden = device_memory;
  on_device.weight = device_memory + 512;
  on_device.bias = nullptr;
  on_device.grad_hidden = device_memory + 1024;
  on_device.loss.loss = nullptr;
  on_device.loss.targets = nullptr;  // not needed
  ASSERT_EQ(lg_linear_cross_entropy_prepare(&on_device), LG_OK) << lg_last_error();
  EXPECT_EQ(prepared, 1);
  const auto refused = [&](const char* argument, const char* got, const std::function<void(Args*)>& spoil) {
    ExpectRefused<Args>(lg_linear_cross_entropy_prepare, on_device, argument, got, spoil);
  };
  refused("hidden", "NULL", [](Args* a) { a->hidden = nullptr; });
  refused("weight", "NULL", [](Args* a) { a->weight = nullptr; });
  // Timing writes logits into it.
  refused("workspace", "overlap", [](Args* a) { a->workspace = device_memory + 512, a->workspace_bytes = 4096, a->grad_hidden = nullptr; });
  EXPECT_EQ(prepared, 1);

  // The same of a shard.
  lg_vocab_parallel_linear_args shard;
  lg_vocab_parallel_linear_args_init(&shard);
  shard.vocab_size = 4;
  shard.linear = &on_device;
  ASSERT_EQ(lg_vocab_parallel_linear_prepare(&shard), LG_OK) << lg_last_error();
  EXPECT_EQ(prepared, 2);
  on_device.weight = nullptr;
  EXPECT_EQ(lg_vocab_parallel_linear_prepare(&shard), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("lg_vocab_parallel_linear_prepare: weight: expected"));
  EXPECT_EQ(prepared, 2);
}

}  // namespace

// In place of the library's own, which is not linked then.
DeviceBackend* FindDeviceBackend() noexcept {
  static MapOfMemory backend;
  return &backend;
}

}  // namespace lossgauge
