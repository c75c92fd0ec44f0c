// A device's call of linear cross-entropy before anything is enqueued: which of its chunks have products of their own shapes, what a plan refuses, and where
// products are tried.
#include "kernels/cuda/linear_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lossgauge::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LinearChunks : public testing::Test {
 protected:
  LinearChunks() {
    call_.args = DefaultLinearArguments();
    lg_linear_cross_entropy_args& a = call_.args;
    a.dtype = a.logits_dtype = LG_BF16;
    a.rows = 1000;
    a.width = a.hidden_stride = a.weight_stride = a.grad_hidden_stride = a.grad_weight_stride = 64;
    a.columns = a.loss.columns = a.loss.vocab_size = 500;
    a.grad_hidden = a.grad_weight = any_;
    a.chunk_rows = 100;
  }
  int Plan() { return PlanLinearOnDevice(call_.args, nullptr, "f", &call_.plan); }
  void ExpectRefused(const char* argument, const std::function<void(lg_linear_cross_entropy_args*)>& spoil) {
    const lg_linear_cross_entropy_args before = call_.args;
    spoil(&call_.args);
    EXPECT_EQ(Plan(), LG_INVALID_ARGUMENT) << argument;
    EXPECT_THAT(lg_last_error(), HasSubstr(argument));
    call_.args = before;
  }
  std::vector<std::int64_t> Kinds() {
    EXPECT_EQ(Plan(), LG_OK) << lg_last_error();
    const Chunked chunked(call_, CrossEntropyLaunch{});
    std::int64_t kinds[Chunked::kKinds];
    const int count = chunked.Kinds(kinds);
    for (std::int64_t chunk = 0; chunk < chunked.chunks(); ++chunk) {
      for (const Product product : {Product::kLogits, Product::kGradWeight, Product::kGradHidden}) {
        int alike = 0;
        for (int i = 0; i < count; ++i) alike += chunked.HasSameShape(product, chunk, kinds[i]);
        EXPECT_GE(alike, 1) << "chunk " << chunk << " is like none";
      }
    }
    return {kinds, kinds + count};
  }

  unsigned char any_[1];
  LinearCall call_;
};

TEST_F(LinearChunks, FewChunksStandForAllOthers) {
  EXPECT_THAT(Kinds(), ElementsAre(0, 1, 9));
  call_.args.rows = 930;
  EXPECT_THAT(Kinds(), ElementsAre(0, 1, 9)) << "the last is shorter";
  call_.args.rows = 200;
  EXPECT_THAT(Kinds(), ElementsAre(0, 1));
  call_.args.rows = 100;
  EXPECT_THAT(Kinds(), ElementsAre(0));
  call_.args.most_unmasked_rows = 0;
  EXPECT_THAT(Kinds(), ElementsAre());
}

TEST_F(LinearChunks, ShapesDifferWhereProductsDo) {
  call_.args.rows = 930;
  ASSERT_EQ(Plan(), LG_OK);
  const Chunked chunked(call_, CrossEntropyLaunch{});
  EXPECT_TRUE(chunked.HasSameShape(Product::kLogits, 0, 1));
  EXPECT_FALSE(chunked.HasSameShape(Product::kGradWeight, 0, 1)) << "one overwrites, one adds";
  EXPECT_TRUE(chunked.HasSameShape(Product::kGradWeight, 1, 8));
  EXPECT_FALSE(chunked.HasSameShape(Product::kGradHidden, 1, 9)) << "100 rows and 64";
  EXPECT_EQ(chunked.RowsOf(9), 64) << "30, rounded up";
}

TEST_F(LinearChunks, ThereIsRoomForAsManyRowsAsWereTold) {
  call_.args.most_unmasked_rows = 130;
  ASSERT_EQ(Plan(), LG_OK);
  const Chunked chunked(call_, CrossEntropyLaunch{});
  EXPECT_EQ(chunked.chunks(), 2);
  EXPECT_EQ(chunked.RowsOf(0) + chunked.RowsOf(1), 164);
  EXPECT_EQ(chunked.rows().most_rows, 130) << "whatever the chunks could hold";
}

TEST_F(LinearChunks, RowsOf2GigabytesAreRefused) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  call_.args.rows = call_.args.chunk_rows = 1;
  call_.args.grad_weight = nullptr;
  lg_linear_cross_entropy_args& a = call_.args;
  a.width = a.hidden_stride = kMost / 2;
  EXPECT_EQ(Plan(), LG_OK) << lg_last_error();
  ExpectRefused("width: expected less than 2^31 bytes on a device, 1073741823 elements of 2, got 1073741824",
                [](auto* args) { ++args->width, ++args->hidden_stride; });
  ExpectRefused("width: expected less than 2^31 bytes on a device, 536870911 elements of 4", [](auto* args) { args->dtype = args->logits_dtype = LG_FP32; });
  ExpectRefused("hidden_stride: expected less than 2^31 bytes", [](auto* args) { ++args->hidden_stride; });
  a.width = a.hidden_stride = 64;
  a.grad_weight_stride = kMost / 4 + 1;  // of fp32
  EXPECT_EQ(Plan(), LG_OK) << "of a gradient that is not wanted";
  ExpectRefused("grad_weight_stride: expected less than 2^31 bytes", [this](auto* args) { args->grad_weight = any_; });
  ExpectRefused("columns: expected at most 2^30", [](auto* args) { args->columns = (1 << 30) + 1; });
}

TEST_F(LinearChunks, AlgorithmsAreTriedWhereMemoryIsAlignedAsTheCallersIs) {
  alignas(256) static unsigned char memory[1024];
  for (const std::size_t offset : {0, 4, 64, 100, 252, 256, 300}) {
    const auto* const like = memory + offset;
    const auto at = reinterpret_cast<std::uintptr_t>(AlignedLike(like, memory));
    EXPECT_EQ(at % 256, reinterpret_cast<std::uintptr_t>(like) % 256);
    EXPECT_LT(at, reinterpret_cast<std::uintptr_t>(memory) + 256);
  }
}

}  // namespace
}  // namespace lossgauge::cuda
