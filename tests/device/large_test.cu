// Tensors of more than 2^32 logits through each of the three kernels: rows on both sides of element 2^32 and the last ones, against float64 on the host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())

__global__ void Fill(__nv_bfloat16* p, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    p[i] = __float2bfloat16(static_cast<float>(x >> 40) * (16.f / 16777216.f) - 8.f);
  }
}

float ToFloat(unsigned short bits) {
  const unsigned word = static_cast<unsigned>(bits) << 16;
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

struct Shape {
  const char* kernel;
  size_t rows, columns;
};
void PrintTo(const Shape& s, std::ostream* to) { *to << s.kernel << " kernel, " << s.rows << " x " << s.columns; }

class Large : public testing::TestWithParam<Shape> {
 protected:
  static int TargetOf(size_t row, size_t columns) { return row % 7 == 3 ? -100 : static_cast<int>((row * 2654435761u + 12345) % columns); }
  void TearDown() override {
    for (void* p : {static_cast<void*>(logits_), static_cast<void*>(targets_), static_cast<void*>(losses_)}) cudaFree(p);
  }
  std::vector<unsigned short> Row(size_t row) const {
    std::vector<unsigned short> bits(GetParam().columns);
    EXPECT_EQ(cudaMemcpy(bits.data(), logits_ + row * bits.size(), bits.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    return bits;
  }
  __nv_bfloat16* logits_ = nullptr;  // and their gradient
  int* targets_ = nullptr;
  float* losses_ = nullptr;  // one for each row, then their mean
};

void CheckMaskedRow(const std::vector<unsigned short>& gradient, float loss) {
  EXPECT_EQ(loss, 0.f);
  EXPECT_EQ(std::count_if(gradient.begin(), gradient.end(), [](unsigned short g) { return (g & 0x7fff) != 0; }), 0);
}

void CheckRow(const std::vector<unsigned short>& logits, const std::vector<unsigned short>& gradient, size_t target, float loss) {
  double total = 0;
  for (const unsigned short z : logits) total += std::exp(static_cast<double>(ToFloat(z)));  // |z| <= 8
  const double nll = std::log(total) - static_cast<double>(ToFloat(logits[target]));
  EXPECT_NEAR(loss, nll, 1e-6 * nll);
  size_t wrong = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double exact = std::exp(static_cast<double>(ToFloat(logits[i]))) / total - (i == target ? 1. : 0.);
    const double found = static_cast<double>(ToFloat(gradient[i]));
    // Half an ulp and a little: at most 2^-8 of the value.
    if (!(std::abs(found - exact) <= 0.00395 * std::abs(exact)) && wrong++ == 0) ADD_FAILURE() << "column " << i << ": " << found << ", not " << exact;
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(Large, RowsBeyondElement2To32) {
  const auto [kernel, rows, columns] = GetParam();
  ASSERT_GT(rows * columns, size_t{1} << 32);
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) GTEST_SKIP() << "no GPU";
  if (free < rows * columns * 2 + rows * 8 + (size_t{1} << 30)) GTEST_SKIP() << "too little memory: " << free << " bytes";
  ASSERT_CUDA(cudaMalloc(&logits_, rows * columns * 2));
  ASSERT_CUDA(cudaMalloc(&targets_, rows * 4));
  ASSERT_CUDA(cudaMalloc(&losses_, rows * 4 + 4));
  std::vector<int> targets(rows);
  for (size_t r = 0; r < rows; ++r) targets[r] = TargetOf(r, columns);
  ASSERT_CUDA(cudaMemcpy(targets_, targets.data(), rows * 4, cudaMemcpyHostToDevice));
  std::vector<float> losses(rows + 1, std::numeric_limits<float>::quiet_NaN());
  ASSERT_CUDA(cudaMemcpy(losses_, losses.data(), losses.size() * 4, cudaMemcpyHostToDevice));
  Fill<<<1024, 256>>>(logits_, rows * columns);
  ASSERT_CUDA(cudaDeviceSynchronize());

  const size_t middle = (size_t{1} << 32) / columns;
  std::vector<size_t> checked = {0, middle - 1, middle, middle + 1};
  for (size_t r = rows - 8; r < rows; ++r) checked.push_back(r);  // one of them masked
  std::vector<std::vector<unsigned short>> logits;
  for (const size_t r : checked) logits.push_back(Row(r));

  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = logits_;
  args.logits_dtype = LG_BF16;
  args.rows = static_cast<int64_t>(rows);
  args.columns = static_cast<int64_t>(columns);
  args.targets = targets_;
  args.target_dtype = LG_INT32;
  args.denominator = 1;
  args.losses = losses_;
  args.loss = losses_ + rows;
  args.grad_logits = logits_;
  ASSERT_EQ(lg_cross_entropy(&args), LG_OK) << lg_last_error();
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaMemcpy(losses.data(), losses_, losses.size() * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < checked.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "row " << checked[i]);
    const std::vector<unsigned short> gradient = Row(checked[i]);
    const int target = targets[checked[i]];
    if (target < 0) CheckMaskedRow(gradient, losses[checked[i]]);
    else CheckRow(logits[i], gradient, static_cast<size_t>(target), losses[checked[i]]);
  }
  // Every row has a loss, and each of them counts once.
  double sum = 0;
  for (size_t r = 0; r < rows; ++r) sum += static_cast<double>(losses[r]);
  EXPECT_NEAR(losses[rows], sum, 1e-6 * sum);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Large, testing::Values(Shape{"stage", 1100000, 4096}, Shape{"ring", 20000, 262144}, Shape{"rows", 4500, 1000000}),
                         [](const auto& of) { return std::string(of.param.kernel); });

}  // namespace
