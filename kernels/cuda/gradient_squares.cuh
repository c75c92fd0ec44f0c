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

// Squares of a row whose gradient came times scale / denominator: at upstream 1 and before the denominator. False where that cannot be undone.
__device__ __forceinline__ bool Restore(float scale, double denominator, double* squares) {
  const double restore = denominator / scale;
  *squares *= restore * restore;
  const float as_float = static_cast<float>(restore);
  return fabsf(as_float) < INFINITY && as_float != 0.f;
}

// Sums of one thread on their way into the counters.
class SquaresSum {
 public:
  // What Restore made of a row, or of two whose difference counts.
  __device__ __forceinline__ void Add(double x) {
    if (fabs(x) > kLargestSquare) {
      x = copysign(kLargestSquare, x);
      ++clamped_;
    }
    const lg_fixed128 fixed = FixedFrom(x);
    low_ += fixed.lo;
    high_ += static_cast<Word>(fixed.hi) + (low_ < fixed.lo);
  }
  __device__ __forceinline__ void AddTo(DeviceCounters* counters, GradientSum sum) const {
    if (clamped_ != 0) atomicAdd(&counters->counts[kClampedRows], clamped_);
    auto& to = counters->gradient_sums[sum];
    Word high = high_;
    if (low_ != 0 && atomicAdd(&to.lo, low_) + low_ < low_) ++high;
    if (high != 0) atomicAdd(&to.hi, high);
  }

 private:
  Word low_ = 0, high_ = 0, clamped_ = 0;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_GRADIENT_SQUARES_CUH_
