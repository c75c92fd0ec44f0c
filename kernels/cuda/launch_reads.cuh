// Reading what a launch is told: used by every kernel of the backend.
#ifndef LOSSGAUGE_KERNELS_CUDA_LAUNCH_READS_CUH_
#define LOSSGAUGE_KERNELS_CUDA_LAUNCH_READS_CUH_

#include "kernels/cuda/device_counters.h"

namespace lossgauge::cuda {

__device__ __forceinline__ long long ReadTarget(const CrossEntropyLaunch& a, long long row) {
  const int* const words = static_cast<const int*>(a.targets);
  if (!a.targets_are_int64) return words[row * a.target_stride];
  // In two halves: they may lie at a 4-byte boundary.
  const int* const word = words + row * a.target_stride * 2;
  return static_cast<long long>(static_cast<unsigned long long>(static_cast<unsigned>(word[1])) << 32 | static_cast<unsigned>(word[0]));
}
// Compared in 64 bits: 2^32 + 7 is not class 7.
__device__ __forceinline__ bool InVocabulary(const CrossEntropyLaunch& a, long long target) { return target >= 0 && target < a.vocab_size; }
__device__ __forceinline__ bool IsUnmasked(const CrossEntropyLaunch& a, long long target) {
  return target != a.ignore_index && InVocabulary(a, target);
}
__device__ __forceinline__ float ReadScale(const CrossEntropyLaunch& a, long long row) {
  float s = a.upstream != nullptr ? a.upstream[row * a.upstream_stride] : 1.f;
  if (a.grad_scale != nullptr) s *= *a.grad_scale;
  return s;
}
__device__ __forceinline__ double ReadDenominator(const CrossEntropyLaunch& a) {
  if (a.count_denominator) return static_cast<double>(a.scratch->counted);
  return a.denominator_pointer != nullptr ? *a.denominator_pointer : a.denominator;
}
__device__ __forceinline__ long long ReadPosition(const CrossEntropyLaunch& a, long long row) {
  return a.positions != nullptr ? a.positions[row] : a.position_base + row;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LAUNCH_READS_CUH_
