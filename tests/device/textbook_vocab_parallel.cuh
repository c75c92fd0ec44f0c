// The vocabulary-parallel loss as textbooks have it, for comparison: all-reduce of each row's maximum, then of its sum of exponentials and of the target's
// logit, then the gradient in place of the logits. Three reads of the shard and one write, and nothing that proves what was exchanged. bf16.
#ifndef LOSSGAUGE_TESTS_DEVICE_TEXTBOOK_VOCAB_PARALLEL_CUH_
#define LOSSGAUGE_TESTS_DEVICE_TEXTBOOK_VOCAB_PARALLEL_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace lossgauge::textbook {

constexpr int kThreads = 512;

struct Shard {
  __nv_bfloat16* logits;  // [rows, columns], columns a multiple of 8, rows aligned to 16 bytes; becomes the gradient
  const std::int64_t* targets;
  std::int64_t rows, columns, first;  // first: of these columns in the vocabulary
  float denominator;
  float* max;     // [rows]
  float* sums;    // [2, rows]: exponentials, target logits less the maximum
  float* losses;  // [rows]
};

template <class Combine>
__device__ __forceinline__ float OverCta(float x, Combine combine) {
  __shared__ float of_warps[kThreads / 32];
  for (int o = 16; o > 0; o /= 2) x = combine(x, __shfl_xor_sync(~0u, x, o));
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) x = combine(x, of_warps[warp]);
  __syncthreads();
  return x;
}

// use(values of 8 columns, first of them) for each vector of a row.
template <class Use>
__device__ __forceinline__ void ForRow(const __nv_bfloat16* row, std::int64_t columns, const Use& use) {
  const uint4* const from = reinterpret_cast<const uint4*>(row);
  for (std::int64_t i = threadIdx.x; i < columns / 8; i += kThreads) {
    const uint4 packed = from[i];
    const __nv_bfloat162* const pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
    float values[8];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      values[2 * pair] = __low2float(pairs[pair]);
      values[2 * pair + 1] = __high2float(pairs[pair]);
    }
    use(values, i * 8);
  }
}

static __global__ void __launch_bounds__(kThreads) MaxKernel(Shard s) {
  const std::int64_t row = blockIdx.x;
  float max = -INFINITY;
  ForRow(s.logits + row * s.columns, s.columns, [&](const float(&v)[8], std::int64_t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) max = fmaxf(max, v[i]);
  });
  max = OverCta(max, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) s.max[row] = max;
}
static __global__ void __launch_bounds__(kThreads) SumKernel(Shard s) {
  const std::int64_t row = blockIdx.x;
  const float max = s.max[row];
  float sum = 0.f;
  ForRow(s.logits + row * s.columns, s.columns, [&](const float(&v)[8], std::int64_t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += __expf(v[i] - max);
  });
  sum = OverCta(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x != 0) return;
  const std::int64_t local = s.targets[row] - s.first;
  s.sums[row] = sum;
  s.sums[s.rows + row] = local >= 0 && local < s.columns ? __bfloat162float(s.logits[row * s.columns + local]) - max : 0.f;
}
static __global__ void __launch_bounds__(kThreads) GradientKernel(Shard s) {
  const std::int64_t row = blockIdx.x, local = s.targets[row] - s.first;
  const float max = s.max[row], sum = s.sums[row], scale = 1.f / s.denominator, factor = scale / sum;
  if (threadIdx.x == 0) s.losses[row] = logf(sum) - s.sums[s.rows + row];
  __nv_bfloat16* const to = s.logits + row * s.columns;
  ForRow(to, s.columns, [&](const float(&v)[8], std::int64_t first) {
    uint4 packed;
    __nv_bfloat162* const pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float p[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) p[i] = __expf(v[2 * pair + i] - max) * factor - (first + 2 * pair + i == local ? scale : 0.f);
      pairs[pair] = __floats2bfloat162_rn(p[0], p[1]);
    }
    reinterpret_cast<uint4*>(to)[first / 8] = packed;
  });
}

// reduce(memory, count, is_max): in place over the ranks, on the stream.
template <class Reduce>
void Enqueue(const Shard& s, cudaStream_t stream, const Reduce& reduce) {
  const unsigned rows = static_cast<unsigned>(s.rows);
  MaxKernel<<<rows, kThreads, 0, stream>>>(s);
  reduce(s.max, s.rows, true);
  SumKernel<<<rows, kThreads, 0, stream>>>(s);
  reduce(s.sums, 2 * s.rows, false);
  GradientKernel<<<rows, kThreads, 0, stream>>>(s);
}

}  // namespace lossgauge::textbook

#endif  // LOSSGAUGE_TESTS_DEVICE_TEXTBOOK_VOCAB_PARALLEL_CUH_
