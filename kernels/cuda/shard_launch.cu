#include "kernels/cuda/shard_launch.h"

#include <algorithm>

#include "kernels/cuda/launch_reads.cuh"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

LogitMap MapOf(const CrossEntropyLaunch& a) {
  if (a.logit_softcap == 0.) return a.logit_scale == 1. ? LogitMap::kNone : LogitMap::kScale;
  return a.logit_softcap > kHighestCap ? LogitMap::kHighCap : LogitMap::kCap;
}
int ShapeOf(const CrossEntropyLaunch& a, int dtype) {
  const long long vectors = a.vocab_size * BytesOfType(dtype) / 16;
  return vectors <= 512 ? 0 : vectors <= 2048 ? 1 : 2;
}

// Unmasked rows of a launch that divides by their number.
__global__ void CountLive(const __grid_constant__ ShardLaunch a) {
  unsigned count = 0;
  for (long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; row < a.loss.rows; row += static_cast<long long>(gridDim.x) * blockDim.x) {
    const long long target = ReadTarget(a.loss, row);
    count += target != a.loss.ignore_index && target >= 0 && target < a.own.vocab_size;
  }
  count = __reduce_add_sync(~0u, count);
  if ((threadIdx.x & 31) == 0 && count != 0) atomicAdd(&a.loss.scratch->counted, static_cast<Word>(count));
}

}  // namespace

cudaError_t LaunchShardBegin(const DeviceFacts& device, int dtype, const ShardLaunch& launch, cudaStream_t stream) {
  const LogitMap map = MapOf(launch.loss);
  const int shape = ShapeOf(launch.loss, dtype);
  const KernelEntry& entry =
      dtype == 1 ? ShardBeginEntryBf16(map, shape) : dtype == 2 ? ShardBeginEntryFp16(map, shape) : ShardBeginEntryFp32(map, shape);
  void* arguments[] = {const_cast<ShardLaunch*>(&launch)};
  return LaunchPersistent(device, entry, launch.loss.rows, arguments, stream);
}

cudaError_t LaunchShardFinish(const DeviceFacts& device, int dtype, const ShardLaunch& launch, cudaStream_t stream) {
  const CrossEntropyLaunch& a = launch.loss;
  const bool counts = a.count_denominator && a.rows > 0;
  if (counts) {
    const unsigned ctas = static_cast<unsigned>(std::min<long long>((a.rows + 1023) / 1024, device.multiprocessors));
    CountLive<<<ctas, 256, 0, stream>>>(launch);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  const LogitMap map = MapOf(a);
  const int shape = ShapeOf(a, dtype);
  const bool signals = a.counters != nullptr;
  const KernelEntry& entry = dtype == 1   ? ShardFinishEntryBf16(map, shape, signals)
                             : dtype == 2 ? ShardFinishEntryFp16(map, shape, signals)
                                          : ShardFinishEntryFp32(map, shape, signals);
  void* arguments[] = {const_cast<ShardLaunch*>(&launch)};
  const cudaError_t error = LaunchPersistent(device, entry, a.rows, arguments, stream);
  // The scratch serves other launches later: nobody else takes back what has been counted.
  if (error != cudaSuccess && counts) (void)cudaMemsetAsync(&a.scratch->counted, 0, sizeof a.scratch->counted, stream);
  return error;
}

}  // namespace lossgauge::cuda
