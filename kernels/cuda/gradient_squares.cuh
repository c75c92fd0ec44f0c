// Squares of gradients that are products (of hidden states and head) into the step's counters.
#ifndef LOSSGAUGE_KERNELS_CUDA_GRADIENT_SQUARES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_GRADIENT_SQUARES_CUH_

#include "kernels/cuda/tally.cuh"

namespace lossgauge::cuda {

// Sum over a CTA's threads, always in the same order; valid in thread 0. Ends behind a barrier.
template <int kThreads>
__device__ __forceinline__ double CtaSum(double x) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps");
  __shared__ double of_warps[kThreads / 32];
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / 32; ++warp) x += of_warps[warp];
  }
  __syncthreads();  // the next call writes the same words
  return x;
}

// Of a row whose gradient came times scale / denominator: at upstream 1 and before the denominator. A row whose factor is 0 has nothing left to tell. One thread.
__device__ __forceinline__ void AddSquares(DeviceCounters* counters, GradientSum sum, double squares, float scale, double denominator) {
  const double restore = denominator / scale;
  double x = squares * restore * restore;
  if (!(fabs(restore) < INFINITY) || !(x == x)) return;
  if (x > kLargestSquare) {
    x = kLargestSquare;
    atomicAdd(&counters->counts[kClampedRows], Word{1});
  }
  const lg_fixed128 fixed = FixedFrom(x);
  auto& to = counters->gradient_sums[sum];
  Word high = static_cast<Word>(fixed.hi);
  if (fixed.lo != 0 && atomicAdd(&to.lo, fixed.lo) + fixed.lo < fixed.lo) ++high;
  if (high != 0) atomicAdd(&to.hi, high);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_GRADIENT_SQUARES_CUH_
