// Every argument of the loss calls that can be wrong is refused by name, before anything is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;

class Arguments : public testing::Test {
 protected:
  Arguments() {
    lg_cross_entropy_args_init(&args_);
    args_.logits = logits_.data();
    args_.rows = 2;
    args_.columns = 4;
    args_.targets = targets_.data();
    args_.losses = losses_.data();
    args_.log_z = log_z_.data();
    args_.loss = &loss_;
    args_.grad_logits = grad_.data();
  }

  void ExpectRefused(const char* argument, const char* got, const std::function<void(lg_cross_entropy_args*)>& spoil,
                     int code = LG_INVALID_ARGUMENT) {
    lg_cross_entropy_args args = args_;
    spoil(&args);
    EXPECT_EQ(lg_cross_entropy(&args), code) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(argument));
    EXPECT_THAT(lg_last_error(), HasSubstr("expected"));
    EXPECT_THAT(lg_last_error(), HasSubstr(got));
    for (const std::vector<float>* output : {&losses_, &log_z_, &grad_}) {
      for (const float value : *output) EXPECT_EQ(value, -7.0f) << argument << ": written before it was refused";
    }
    EXPECT_EQ(loss_, -7.0f);
  }

  std::vector<float> logits_ = std::vector<float>(8, 1.0f);
  std::vector<std::int64_t> targets_{1, 2};
  std::vector<float> losses_ = std::vector<float>(2, -7.0f), log_z_ = losses_, grad_ = std::vector<float>(8, -7.0f);
  float loss_ = -7;
  lg_cross_entropy_args args_;
};

TEST_F(Arguments, AreRefusedByName) {
  const double nan = std::nan("");
  ExpectRefused("logits_dtype", "17", [](auto* a) { a->logits_dtype = LG_INT64; });
  ExpectRefused("target_dtype", "0", [](auto* a) { a->target_dtype = LG_FP32; });
  ExpectRefused("rows", "-1", [](auto* a) { a->rows = -1; });
  ExpectRefused("columns", "0", [](auto* a) { a->columns = 0; });
  ExpectRefused("vocab_size", "5", [](auto* a) { a->vocab_size = 5; });
  ExpectRefused("vocab_size", "-3", [](auto* a) { a->vocab_size = -3; });
  ExpectRefused("logits", "NULL", [](auto* a) { a->logits = nullptr; });
  ExpectRefused("targets", "NULL", [](auto* a) { a->targets = nullptr; });
  ExpectRefused("label_smoothing", "1", [](auto* a) { a->label_smoothing = 1; });
  ExpectRefused("label_smoothing", "-0.1", [](auto* a) { a->label_smoothing = -0.1; });
  ExpectRefused("label_smoothing", "nan", [nan](auto* a) { a->label_smoothing = nan; });
  ExpectRefused("z_loss_weight", "-1", [](auto* a) { a->z_loss_weight = -1; });
  ExpectRefused("z_loss_weight", "inf", [](auto* a) { a->z_loss_weight = HUGE_VAL; });
  ExpectRefused("z_loss_weight", "1.1e+30", [](auto* a) { a->z_loss_weight = 1.1e30; });
  ExpectRefused("logit_scale", "0", [](auto* a) { a->logit_scale = 0; });
  ExpectRefused("logit_scale", "nan", [nan](auto* a) { a->logit_scale = nan; });
  ExpectRefused("logit_scale", "-1.1e+30", [](auto* a) { a->logit_scale = -1.1e30; });
  ExpectRefused("logit_scale", "1e-31", [](auto* a) { a->logit_scale = 1e-31; });
  ExpectRefused("logit_softcap", "-30", [](auto* a) { a->logit_softcap = -30; });
  ExpectRefused("logit_softcap", "nan", [nan](auto* a) { a->logit_softcap = nan; });
  ExpectRefused("logit_softcap", "1e-31", [](auto* a) { a->logit_softcap = 1e-31; });
  ExpectRefused("logit_softcap", "1.1e+30", [](auto* a) { a->logit_softcap = 1.1e30; });
  ExpectRefused("reduction", "3", [](auto* a) { a->reduction = 3; });
  ExpectRefused("denominator", "-8", [](auto* a) { a->denominator = -8; });
  ExpectRefused("denominator", "nan", [nan](auto* a) { a->denominator = nan; });
  ExpectRefused("denominator", "LG_SUM", [](auto* a) { a->reduction = LG_SUM, a->denominator = 8; });
  ExpectRefused("loss", "pointer", [](auto* a) { a->reduction = LG_NONE; });
  ExpectRefused("row_stride", std::to_string(INT64_MAX).c_str(), [](auto* a) { a->row_stride = INT64_MAX; });
  ExpectRefused("row_stride", std::to_string(INT64_MIN).c_str(), [](auto* a) { a->row_stride = INT64_MIN; });
  ExpectRefused("grad_row_stride", "3", [](auto* a) { a->grad_row_stride = 3; });
  ExpectRefused("target_stride", "rows", [](auto* a) { a->target_stride = INT64_MAX; });
  ExpectRefused("upstream_stride", "1", [](auto* a) { a->upstream_stride = 1; });
  ExpectRefused("position_base", "-1", [](auto* a) { a->position_base = -1; });
  ExpectRefused("threads", "-1", [](auto* a) { a->threads = -1; });
  int not_a_stream = 0;
  ExpectRefused(
      "stream", "stream", [&](auto* a) { a->stream = &not_a_stream; }, LG_UNIMPLEMENTED);
}

TEST_F(Arguments, AnUninitialisedStructureIsRefused) {
  ExpectRefused("struct_size", "0", [](auto* a) { a->struct_size = 0; });
  ExpectRefused("struct_size", "204", [](auto* a) { a->struct_size = 204; });  // ends within a pointer
  ExpectRefused("struct_size", "1000000", [](auto* a) { a->struct_size = 1000000; });
  EXPECT_EQ(lg_cross_entropy(nullptr), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("NULL"));
}

TEST_F(Arguments, AnOlderCallersStructureGetsDefaults) {
  lg_cross_entropy_args older = args_;
  older.struct_size = offsetof(lg_cross_entropy_args, stream);
  older.threads = -5;  // beyond its end
  EXPECT_EQ(lg_cross_entropy(&older), LG_OK) << lg_last_error();
}

TEST_F(Arguments, AGradientThatOverlapsTheLogitsIsRefused) {
  ExpectRefused("grad_logits", "stride",
                [](auto* a) { a->grad_logits = const_cast<void*>(a->logits), a->grad_row_stride = 5; });
  ExpectRefused("grad_logits", "stride", [this](auto* a) { a->grad_logits = logits_.data() + 1; });
  // Between the rows of one buffer there is room for both.
  std::vector<float> both(16, 1.0f);
  args_.logits = both.data();
  args_.grad_logits = both.data() + 4;
  args_.row_stride = args_.grad_row_stride = 8;
  EXPECT_EQ(lg_cross_entropy(&args_), LG_OK) << lg_last_error();
}

TEST_F(Arguments, WhatIsWrittenLiesApart) {
  ExpectRefused("losses", "logits", [this](auto* a) { a->losses = logits_.data() + 7; });
  ExpectRefused("log_z", "targets", [this](auto* a) { a->log_z = reinterpret_cast<float*>(targets_.data()); });
  ExpectRefused("losses", "log_z", [](auto* a) { a->log_z = a->losses; });
  ExpectRefused("grad_logits", "losses", [this](auto* a) { a->losses = grad_.data() + 6; });
  ExpectRefused("losses", "loss", [this](auto* a) { a->loss = &losses_[1]; });
  ExpectRefused("losses", "upstream", [](auto* a) { a->upstream = a->losses, a->upstream_stride = 1; });
  ExpectRefused("loss", "grad_scale", [](auto* a) { a->grad_scale = a->loss; });
  ExpectRefused("grad_logits", "positions", [this](auto* a) { a->positions = reinterpret_cast<const std::int64_t*>(grad_.data()); });
  // In place, outputs must lie apart from the gradient still.
  ExpectRefused("grad_logits", "log_z", [this](auto* a) { a->grad_logits = logits_.data(), a->log_z = logits_.data() + 2; });
}

// What a framework hands over of an empty batch: no tensor has memory, so that none tells of a device, but a stream is there all the same.
TEST_F(Arguments, NoRowsNeedNoTensorsWhateverTheStream) {
  lg_cross_entropy_args empty;
  lg_cross_entropy_args_init(&empty);
  int stream = 0;
  empty.columns = 4;
  empty.reduction = LG_NONE;
  empty.stream = &stream;
  EXPECT_EQ(lg_cross_entropy(&empty), LG_OK) << lg_last_error();
}

TEST_F(Arguments, BackwardWantsAGradientAndObserveWantsNone) {
  args_.grad_logits = nullptr;
  EXPECT_EQ(lg_cross_entropy_backward(&args_), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("grad_logits"));
  EXPECT_EQ(lg_observe_logits(&args_), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("losses"));
}

TEST(ScaleArguments, AreRefusedByName) {
  std::vector<float> grad(8, 1.0f);
  const float upstream = 2;
  lg_scale_gradient_args good;
  lg_scale_gradient_args_init(&good);
  good.grad = grad.data();
  good.rows = 2;
  good.columns = 4;
  good.upstream = &upstream;
  const auto refused = [&](const char* argument, const std::function<void(lg_scale_gradient_args*)>& spoil) {
    lg_scale_gradient_args args = good;
    spoil(&args);
    EXPECT_EQ(lg_scale_gradient(&args), LG_INVALID_ARGUMENT) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(argument));
    for (const float value : grad) EXPECT_EQ(value, 1.0f);
  };
  refused("struct_size", [](auto* a) { a->struct_size = 1; });
  refused("dtype", [](auto* a) { a->dtype = LG_FP64; });
  refused("rows", [](auto* a) { a->rows = -1; });
  refused("columns", [](auto* a) { a->columns = -1; });
  refused("row_stride", [](auto* a) { a->row_stride = 2; });
  refused("grad", [](auto* a) { a->grad = nullptr; });
  refused("upstream", [](auto* a) { a->upstream = nullptr; });
  refused("apart from upstream", [](auto* a) { a->upstream = static_cast<float*>(a->grad) + 7; });
  refused("threads", [](auto* a) { a->threads = -2; });
  EXPECT_EQ(lg_scale_gradient(&good), LG_OK);
  EXPECT_EQ(grad[7], 2.0f);
}

TEST(CpuVariant, HasAName) {
  EXPECT_THAT(std::string(lg_cpu_variant()), testing::AnyOf("baseline", "avx2", "avx512"));
  if (const char* wish = std::getenv("LOSSGAUGE_TEST_EXPECT_ISA")) {
    EXPECT_STREQ(lg_cpu_variant(), wish);
  }
}

}  // namespace
}  // namespace lossgauge
