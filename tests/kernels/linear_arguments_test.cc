// Every argument of the linear cross-entropy calls that can be wrong is refused by name, before anything is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;
using Args = lg_linear_cross_entropy_args;

class LinearArguments : public testing::Test {
 protected:
  LinearArguments() {
    lg_linear_cross_entropy_args_init(&args_);
    args_.hidden = hidden_.data();
    args_.rows = 2;
    args_.width = 3;
    args_.weight = weight_.data();
    args_.columns = 4;
    args_.bias = bias_.data();
    args_.grad_hidden = grad_hidden_.data();
    args_.grad_weight = grad_weight_.data();
    args_.grad_bias = grad_bias_.data();
    args_.loss.targets = targets_.data();
    args_.loss.losses = losses_.data();
    args_.loss.loss = &loss_;
  }

  void ExpectRefused(const char* argument, const std::string& got, const std::function<void(Args*)>& spoil, int code = LG_INVALID_ARGUMENT) {
    Args args = args_;
    spoil(&args);
    EXPECT_EQ(lg_linear_cross_entropy(&args), code) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(std::string("lg_linear_cross_entropy: ") + argument));
    EXPECT_THAT(lg_last_error(), HasSubstr("expected"));
    EXPECT_THAT(lg_last_error(), HasSubstr(got));
    for (const std::vector<float>* output : {&grad_hidden_, &grad_weight_, &grad_bias_, &losses_}) {
      for (const float value : *output) EXPECT_EQ(value, -7.0f) << argument << ": written before it was refused";
    }
    EXPECT_EQ(loss_, -7.0f);
  }

  std::vector<float> hidden_ = std::vector<float>(6, 1.0f), weight_ = std::vector<float>(12, 0.5f), bias_ = std::vector<float>(4, 0.0f);
  std::vector<float> grad_hidden_ = std::vector<float>(6, -7.0f), grad_weight_ = std::vector<float>(12, -7.0f), grad_bias_ = std::vector<float>(4, -7.0f);
  std::vector<std::int64_t> targets_{1, 2};
  std::vector<float> losses_ = std::vector<float>(2, -7.0f);
  float loss_ = -7;
  Args args_;
};

TEST_F(LinearArguments, AreRefusedByName) {
  ExpectRefused("dtype", "16", [](Args* a) { a->dtype = LG_INT32; });
  ExpectRefused("logits_dtype", "1", [](Args* a) { a->logits_dtype = LG_BF16; });
  ExpectRefused("logits_dtype", "-2", [](Args* a) { a->logits_dtype = -2; });
  ExpectRefused("head_grad_dtype", "2", [](Args* a) { a->dtype = LG_BF16, a->head_grad_dtype = LG_FP16; });
  ExpectRefused("accumulate", "2", [](Args* a) { a->accumulate = 2; });
  ExpectRefused("head_grad_signal", "-1", [](Args* a) { a->head_grad_signal = -1; });
  ExpectRefused("reserved", "3", [](Args* a) { a->reserved[7] = 3; });
  ExpectRefused("rows", "-1", [](Args* a) { a->rows = -1; });
  ExpectRefused("width", "0", [](Args* a) { a->width = 0; });
  ExpectRefused("columns", "0", [](Args* a) { a->columns = 0; });
  for (const std::int64_t much : {(std::int64_t{1} << 40) + 1, (std::int64_t{1} << 60) - 1, INT64_MAX}) {
    ExpectRefused("rows", std::to_string(much), [much](Args* a) { a->rows = much; });
    ExpectRefused("width", std::to_string(much), [much](Args* a) { a->width = much; });
    ExpectRefused("columns", std::to_string(much), [much](Args* a) { a->columns = much; });
  }
  ExpectRefused("hidden_stride", "2", [](Args* a) { a->hidden_stride = 2; });
  ExpectRefused("weight_stride", "-3", [](Args* a) { a->weight_stride = -3; });
  ExpectRefused("grad_hidden_stride", "1", [](Args* a) { a->grad_hidden_stride = 1; });
  ExpectRefused("grad_weight_stride", std::to_string(INT64_MAX), [](Args* a) { a->grad_weight_stride = INT64_MAX; });
  ExpectRefused("hidden", "NULL", [](Args* a) { a->hidden = nullptr; });
  ExpectRefused("weight", "NULL", [](Args* a) { a->weight = nullptr; });
  ExpectRefused("grad_bias", "pointer", [](Args* a) { a->bias = nullptr; });
  ExpectRefused("chunk_rows", "-1", [](Args* a) { a->chunk_rows = -1; });
  ExpectRefused("memory_budget", "-1", [](Args* a) { a->memory_budget = -1; });
  ExpectRefused("memory_budget", "100", [](Args* a) { a->memory_budget = 100; });
  ExpectRefused("workspace_bytes", "64", [](Args* a) { a->workspace_bytes = 64; });
  ExpectRefused("most_unmasked_rows", "-2", [](Args* a) { a->most_unmasked_rows = -2; });
  alignas(256) static unsigned char workspace[512];
  ExpectRefused("workspace: ", "256", [](Args* a) { a->workspace = workspace + 64, a->workspace_bytes = 448; });
  ExpectRefused("workspace_bytes", "512", [](Args* a) { a->workspace = workspace, a->workspace_bytes = 512; });
}

TEST_F(LinearArguments, ThoseOfTheLossAreRefusedAsElsewhere) {
  ExpectRefused("targets", "NULL", [](Args* a) { a->loss.targets = nullptr; });
  ExpectRefused("target_dtype", "0", [](Args* a) { a->loss.target_dtype = LG_FP32; });
  ExpectRefused("vocab_size", "5", [](Args* a) { a->loss.vocab_size = 5; });
  ExpectRefused("label_smoothing", "nan", [](Args* a) { a->loss.label_smoothing = std::nan(""); });
  ExpectRefused("denominator", "-8", [](Args* a) { a->loss.denominator = -8; });
  int not_a_stream = 0;
  ExpectRefused(
      "stream", "stream", [&](Args* a) { a->loss.stream = &not_a_stream; }, LG_UNIMPLEMENTED);
}

TEST_F(LinearArguments, WhatIsWrittenLiesApart) {
  ExpectRefused("grad_hidden", "hidden", [](Args* a) { a->grad_hidden = const_cast<void*>(a->hidden); });
  ExpectRefused("grad_weight", "weight", [this](Args* a) { a->grad_weight = weight_.data() + 11; });
  ExpectRefused("grad_weight", "grad_bias", [this](Args* a) { a->grad_bias = grad_weight_.data() + 8; });
  ExpectRefused("losses", "targets", [this](Args* a) { a->loss.losses = reinterpret_cast<float*>(targets_.data()); });
  ExpectRefused("grad_bias", "loss", [this](Args* a) { a->loss.loss = &grad_bias_[3]; });
  alignas(256) static unsigned char workspace[4096];
  ExpectRefused("grad_hidden", "workspace", [](Args* a) { a->workspace = workspace, a->workspace_bytes = 4096, a->grad_hidden = workspace + 4000; });
  // The gradient of a head may lie between the rows of another.
  std::vector<float> both(24, -7.0f);
  args_.grad_weight = both.data();
  args_.grad_weight_stride = 6;
  args_.grad_hidden = both.data() + 3;
  args_.grad_hidden_stride = 6;
  EXPECT_EQ(lg_linear_cross_entropy(&args_), LG_OK) << lg_last_error();
}

TEST_F(LinearArguments, AnUninitialisedStructureIsRefused) {
  ExpectRefused("args.struct_size", "0", [](Args* a) { a->struct_size = 0; });
  ExpectRefused("args.struct_size", "1000000", [](Args* a) { a->struct_size = 1000000; });
  ExpectRefused("args.loss.struct_size", "0", [](Args* a) { a->loss.struct_size = 0; });
  ExpectRefused("args.loss.struct_size", "204", [](Args* a) { a->loss.struct_size = 204; });  // ends within a pointer
  ExpectRefused("args.loss.struct_size", "5000", [](Args* a) { a->loss.struct_size = 5000; });
  EXPECT_EQ(lg_linear_cross_entropy(nullptr), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("NULL"));
  lg_linear_cross_entropy_args_init(nullptr);
}

TEST_F(LinearArguments, AnOlderCallersPartOfTheLossGetsDefaults) {
  args_.loss.struct_size = offsetof(lg_cross_entropy_args, stream);
  args_.loss.threads = -5;  // beyond its end
  EXPECT_EQ(lg_linear_cross_entropy(&args_), LG_OK) << lg_last_error();
}

TEST_F(LinearArguments, ANewerCallersStructureIsRead) {
  struct {
    Args args;
    std::int64_t more;
  } newer{args_, 0};
  newer.args.struct_size = sizeof newer;
  newer.args.loss.struct_size = sizeof newer.args.loss + sizeof newer.more;
  EXPECT_EQ(lg_linear_cross_entropy(&newer.args), LG_OK) << lg_last_error();
  newer.args.loss.struct_size += 1;  // beyond the whole
  EXPECT_EQ(lg_linear_cross_entropy(&newer.args), LG_INVALID_ARGUMENT);
}

TEST_F(LinearArguments, ASecondPassWantsAGradient) {
  args_.grad_hidden = args_.grad_weight = args_.grad_bias = nullptr;
  EXPECT_EQ(lg_linear_cross_entropy_backward(&args_), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("grad_hidden"));
}

TEST_F(LinearArguments, APlanNeedsNoTensors) {
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  Args args = args_;
  args.hidden = args.weight = args.bias = args.loss.targets = nullptr;
  args.grad_bias = nullptr;
  args.rows = 1000;
  args.columns = 32000;
  args.width = 64;
  ASSERT_EQ(lg_linear_cross_entropy_plan(&args, &plan), LG_OK) << lg_last_error();
  EXPECT_GT(plan.chunks, 1) << "a default that holds all logits at once";
  EXPECT_GE(plan.logits_bytes, plan.chunk_rows * 32000 * 4);
  EXPECT_GE(plan.workspace_bytes, plan.logits_bytes);
  EXPECT_EQ(lg_linear_cross_entropy_prepare(&args), LG_OK);
  plan.struct_size = 0;
  EXPECT_EQ(lg_linear_cross_entropy_plan(&args, &plan), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_linear_cross_entropy_plan(&args, nullptr), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("plan.struct_size"));
}

// The largest sizes there are: bytes that no number of 64 bits holds are refused, never wrapped round.
TEST_F(LinearArguments, APlanOfHugeSizesIsRightOrRefused) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const std::int64_t rows : {std::int64_t{8}, kMost}) {
    for (const std::int64_t width : {std::int64_t{1}, std::int64_t{1} << 20, kMost}) {
      for (const std::int32_t dtype : {LG_FP32, LG_BF16}) {
        Args args = args_;
        args.rows = rows;
        args.width = width;
        args.columns = kMost;
        args.dtype = args.head_grad_dtype = dtype;
        args.loss.logit_softcap = 30;
        lg_linear_plan plan{};
        plan.struct_size = sizeof plan;
        const int code = lg_linear_cross_entropy_plan(&args, &plan);
        ASSERT_TRUE(code == LG_OK || code == LG_INVALID_ARGUMENT) << code;
        if (code != LG_OK) continue;
        EXPECT_GE(plan.logits_bytes / plan.chunk_rows, kMost * (dtype == LG_FP32 ? 4 : 2));
        EXPECT_GT(plan.workspace_bytes, plan.logits_bytes) << "rows " << rows << " width " << width;
        EXPECT_GE(plan.chunks * plan.chunk_rows, rows);
      }
    }
  }
}

TEST_F(LinearArguments, AnOlderCallersPlanIsNotOverrun) {
  struct {
    lg_linear_plan plan;
  } older{};
  older.plan.struct_size = offsetof(lg_linear_plan, logits_bytes);
  older.plan.logits_bytes = -7;
  ASSERT_EQ(lg_linear_cross_entropy_plan(&args_, &older.plan), LG_OK) << lg_last_error();
  EXPECT_GT(older.plan.workspace_bytes, 0);
  EXPECT_EQ(older.plan.logits_bytes, -7);
}

TEST_F(LinearArguments, WhatIsRefusedNowhereRuns) {
  EXPECT_EQ(lg_linear_cross_entropy(&args_), LG_OK) << lg_last_error();
  EXPECT_NEAR(loss_, std::log(4.0), 1e-6);
}

}  // namespace
}  // namespace lossgauge
