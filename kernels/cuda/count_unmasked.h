// Unmasked rows of a launch that divides by their number: counted on its stream before it, into its scratch.
#ifndef LOSSGAUGE_KERNELS_CUDA_COUNT_UNMASKED_H_
#define LOSSGAUGE_KERNELS_CUDA_COUNT_UNMASKED_H_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

// Targets are classes of [0, classes).
cudaError_t CountUnmasked(const DeviceFacts& device, const CrossEntropyLaunch& launch, int classes, cudaStream_t stream);
void TakeBackCount(const CrossEntropyLaunch& launch, cudaStream_t stream);
// Counts if `launch` is told to, then calls enqueue(), which returns a cudaError_t. If that fails, the count is taken back: the scratch serves other launches
// later, and nobody else would.
template <class Enqueue>
cudaError_t EnqueueCounted(const DeviceFacts& device, const CrossEntropyLaunch& launch, int classes, cudaStream_t stream, const Enqueue& enqueue) {
  const bool counts = launch.count_denominator && launch.rows > 0;
  if (counts) {
    if (const cudaError_t error = CountUnmasked(device, launch, classes, stream); error != cudaSuccess) return error;
  }
  const cudaError_t error = enqueue();
  if (error != cudaSuccess && counts) TakeBackCount(launch, stream);
  return error;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_COUNT_UNMASKED_H_
