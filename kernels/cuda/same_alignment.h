// Whether kernels that move whole vectors may write a launch's gradient. Host side.
#ifndef LOSSGAUGE_KERNELS_CUDA_SAME_ALIGNMENT_H_
#define LOSSGAUGE_KERNELS_CUDA_SAME_ALIGNMENT_H_

#include <cstdint>

#include "kernels/cuda/device_counters.h"

namespace lossgauge::cuda {

// True if gradient vectors are 16-byte aligned wherever the logits' are, in every row.
inline bool SameAlignment(const CrossEntropyLaunch& a) {
  if (a.grad == nullptr) return true;
  const auto difference = reinterpret_cast<std::uintptr_t>(a.grad) - reinterpret_cast<std::uintptr_t>(a.logits);
  return difference % 16 == 0 && (a.grad_stride_bytes - a.row_stride_bytes) % 16 == 0;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SAME_ALIGNMENT_H_
