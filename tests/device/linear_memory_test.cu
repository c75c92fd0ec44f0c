// The arithmetic of chunks on real allocations: 65,536 tokens at a vocabulary of 128,256 take the memory of one chunk of logits, not of all of them.
#include <gtest/gtest.h>

#include "tests/device/linear_tensors.cuh"

namespace lossgauge {
namespace {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_LG(x) ASSERT_EQ((x), LG_OK) << lg_last_error()

constexpr std::int64_t kRows = 65536, kWidth = 4096, kVocab = 128256, kChunk = 4096;
constexpr std::int64_t kTensorBytes = std::int64_t{6} << 30;  // of LinearTensors, and room

std::uint64_t PoolBytes(cudaMemPoolAttr attribute) {
  cudaMemPool_t pool;
  std::uint64_t bytes = 0;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolGetAttribute(pool, attribute, &bytes));
  return bytes;
}

TEST(LinearMemory, ThePeakIsOneChunkOfLogitsAndTheLossIsThatOfSmallCalls) {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) GTEST_SKIP() << "no GPU";
  if (static_cast<std::int64_t>(free) < kTensorBytes + (std::int64_t{2} << 30)) GTEST_SKIP() << "too little memory: " << free << " bytes";
  const LinearTensors head(kRows, kWidth, kVocab, 17);
  lg_linear_cross_entropy_args args = head.Args(nullptr, kChunk);
  args.bias = args.grad_bias = nullptr;
  args.loss.denominator = static_cast<double>(kRows);
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  ASSERT_LG(lg_linear_cross_entropy_plan(&args, &plan));
  EXPECT_EQ(plan.chunks, kRows / kChunk);
  EXPECT_LT(plan.workspace_bytes, kRows * kVocab * 4 / 25);

  const std::uint64_t before = PoolBytes(cudaMemPoolAttrUsedMemCurrent);
  ASSERT_LG(lg_linear_cross_entropy(&args));
  ASSERT_CUDA(cudaDeviceSynchronize());
  const auto peak = static_cast<std::int64_t>(PoolBytes(cudaMemPoolAttrUsedMemHigh) - before);
  EXPECT_GE(peak, plan.logits_bytes);
  EXPECT_LE(peak, plan.workspace_bytes + (1 << 20)) << "more than the plan says";
  std::printf("all logits in fp32: %.2f GB; peak of the call: %.2f GB (plan: %.2f, of which logits %.2f)\n", static_cast<double>(kRows * kVocab * 4) / 1e9,
              static_cast<double>(peak) / 1e9, static_cast<double>(plan.workspace_bytes) / 1e9, static_cast<double>(plan.logits_bytes) / 1e9);

  const std::vector<float> losses = head.losses.Read();
  const double loss = static_cast<double>(head.loss.Read()[0]);
  head.losses.Set(0xff);
  double sum = 0;
  for (std::int64_t begin = 0; begin < kRows; begin += kChunk) {
    lg_linear_cross_entropy_args part = head.Part(args, begin, kChunk);
    part.loss.log_z = nullptr;
    ASSERT_LG(lg_linear_cross_entropy(&part));
    sum += static_cast<double>(head.loss.Read()[0]);
  }
  EXPECT_TRUE(losses == head.losses.Read()) << "a token's loss depends on the call that it is in";
  EXPECT_NEAR(sum, loss, 1e-6 * loss);
  EXPECT_GT(loss, 10);
}

}  // namespace
}  // namespace lossgauge
