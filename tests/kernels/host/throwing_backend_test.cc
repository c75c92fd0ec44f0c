// A backend for devices that runs out of memory on the host: every entry of the C ABI that reaches it returns a code, and nothing ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <stdexcept>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/host/idle_backend.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;

void (*fail)() = [] { throw std::bad_alloc(); };

class ThrowingBackend final : public IdleBackend {
 public:
  int DeviceOf(const void* pointer) noexcept override { return pointer != nullptr ? 0 : -1; }

 private:
  int Outcome() override {
    fail();
    return LG_OK;
  }
};

class ThrowingDevice : public testing::Test {
 protected:
  ThrowingDevice() {
    lg_cross_entropy_args_init(&args_);
    args_.logits = logits_;
    args_.rows = 1;
    args_.columns = 4;
    args_.targets = targets_;
    lg_linear_cross_entropy_args_init(&linear_);
    linear_.hidden = logits_;
    linear_.rows = linear_.width = 1;
    linear_.weight = weight_;
    linear_.columns = 4;
    linear_.grad_hidden = grad_;
    linear_.loss.targets = targets_;
    lg_scale_gradient_args_init(&scale_);
    scale_.grad = grad_;
    scale_.rows = 1;
    scale_.columns = scale_.row_stride = 4;
    scale_.upstream = logits_;
    lg_pack_labels_args_init(&pack_);
    pack_.cu_seqlens = targets_;
    lg_vocab_parallel_args_init(&shard_);
    shard_.vocab_size = 4;
    shard_.loss = args_;
    lg_vocab_parallel_linear_args_init(&shard_linear_);
    shard_linear_.vocab_size = 4;
    shard_linear_.linear = &linear_;
  }
  void TearDown() override {
    fail = [] { throw std::bad_alloc(); };
  }
  // Every entry with a device's branch, and its name in messages.
  void ExpectAll(int code, const char* text) {
    lg_cross_entropy_args backward = args_, observed = args_;
    backward.grad_logits = grad_;
    lg_linear_plan plan{};
    plan.struct_size = sizeof plan;
    void* communicator = nullptr;
    const struct {
      const char* name;
      std::function<int()> call;
    } entries[] = {{"lg_cross_entropy", [&] { return lg_cross_entropy(&args_); }},
                   {"lg_cross_entropy_backward", [&] { return lg_cross_entropy_backward(&backward); }},
                   {"lg_observe_logits", [&] { return lg_observe_logits(&observed); }},
                   {"lg_scale_gradient", [&] { return lg_scale_gradient(&scale_); }},
                   {"lg_linear_cross_entropy", [&] { return lg_linear_cross_entropy(&linear_); }},
                   {"lg_linear_cross_entropy_backward", [&] { return lg_linear_cross_entropy_backward(&linear_); }},
                   {"lg_linear_cross_entropy_plan", [&] { return lg_linear_cross_entropy_plan(&linear_, &plan); }},
                   {"lg_linear_cross_entropy_prepare", [&] { return lg_linear_cross_entropy_prepare(&linear_); }},
                   {"lg_pack_labels", [&] { return lg_pack_labels(&pack_); }},
                   {"lg_vocab_parallel_begin", [&] { return lg_vocab_parallel_begin(&shard_, gathered_); }},
                   {"lg_vocab_parallel_finish", [&] { return lg_vocab_parallel_finish(&shard_, gathered_); }},
                   {"lg_vocab_parallel_cross_entropy", [&] { return lg_vocab_parallel_cross_entropy(&shard_, &plan, gathered_); }},
                   {"lg_vocab_parallel_linear_cross_entropy", [&] { return lg_vocab_parallel_linear_cross_entropy(&shard_linear_); }},
                   {"lg_vocab_parallel_linear_plan", [&] { return lg_vocab_parallel_linear_plan(&shard_linear_, &plan); }},
                   {"lg_vocab_parallel_linear_prepare", [&] { return lg_vocab_parallel_linear_prepare(&shard_linear_); }},
                   {"lg_communicator_unique_id", [&] { return lg_communicator_unique_id(gathered_); }},
                   {"lg_communicator_open", [&] { return lg_communicator_open(gathered_, 1, 0, &communicator); }},
                   {"lg_communicator_close", [&] { return lg_communicator_close(gathered_); }}};
    for (const auto& entry : entries) {
      EXPECT_EQ(entry.call(), code) << entry.name;
      EXPECT_THAT(lg_last_error(), HasSubstr(std::string(entry.name) + ": ")) << entry.name;
      EXPECT_THAT(lg_last_error(), HasSubstr(text)) << entry.name;
    }
    EXPECT_EQ(plan.workspace_bytes, 0);
  }

  float logits_[4] = {}, weight_[4] = {}, grad_[4] = {};
  std::int64_t targets_[1] = {};
  lg_cross_entropy_args args_;
  lg_linear_cross_entropy_args linear_;
  lg_scale_gradient_args scale_;
  lg_pack_labels_args pack_;
  lg_vocab_parallel_args shard_;
  lg_vocab_parallel_linear_args shard_linear_;
  alignas(16) unsigned char gathered_[192] = {};
};

TEST_F(ThrowingDevice, NoMemoryIsACode) { ExpectAll(LG_RESOURCE_EXHAUSTED, "no memory for what is kept on the host about a device"); }

TEST_F(ThrowingDevice, AnyOtherExceptionIsACode) {
  fail = [] { throw std::runtime_error("a library's own words"); };
  ExpectAll(LG_INTERNAL, "a library's own words");
  fail = [] { throw 7; };
  ExpectAll(LG_INTERNAL, "unknown kind");
}

}  // namespace

// In place of the library's own, which is not linked then.
DeviceBackend* FindDeviceBackend() noexcept {
  static ThrowingBackend backend;
  return &backend;
}

}  // namespace lossgauge
