#include "kernels/cuda/count_unmasked.h"

#include <algorithm>

#include "kernels/cuda/launch_reads.cuh"

namespace lossgauge::cuda {
namespace {

__global__ void CountRows(const __grid_constant__ CrossEntropyLaunch a) {
  unsigned count = 0;
  for (long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; row < a.rows; row += static_cast<long long>(gridDim.x) * blockDim.x) {
    count += IsUnmasked(a, ReadTarget(a, row));
  }
  count = __reduce_add_sync(~0u, count);
  if ((threadIdx.x & 31) == 0 && count != 0) atomicAdd(&a.scratch->counted, static_cast<Word>(count));
}

}  // namespace

cudaError_t CountUnmasked(const DeviceFacts& device, const CrossEntropyLaunch& launch, int classes, cudaStream_t stream) {
  CrossEntropyLaunch counted = launch;
  counted.vocab_size = classes;
  const unsigned ctas = static_cast<unsigned>(std::min<long long>((launch.rows + 1023) / 1024, device.multiprocessors));
  CountRows<<<ctas, 256, 0, stream>>>(counted);
  return cudaGetLastError();
}

void TakeBackCount(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  (void)cudaMemsetAsync(&launch.scratch->counted, 0, sizeof launch.scratch->counted, stream);
}

}  // namespace lossgauge::cuda
