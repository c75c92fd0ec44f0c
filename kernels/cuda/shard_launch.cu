#include "kernels/cuda/shard_launch.h"

#include "kernels/cuda/count_unmasked.h"
#include "kernels/cuda/logit_map.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

int ShapeOf(const CrossEntropyLaunch& a, int dtype) {
  const long long vectors = a.vocab_size * BytesOfType(dtype) / 16;
  return vectors <= 512 ? 0 : vectors <= 2048 ? 1 : 2;
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
  const LogitMap map = MapOf(a);
  const int shape = ShapeOf(a, dtype);
  const bool signals = a.counters != nullptr;
  const KernelEntry& entry = dtype == 1   ? ShardFinishEntryBf16(map, shape, signals)
                             : dtype == 2 ? ShardFinishEntryFp16(map, shape, signals)
                                          : ShardFinishEntryFp32(map, shape, signals);
  void* arguments[] = {const_cast<ShardLaunch*>(&launch)};
  return EnqueueCounted(device, a, static_cast<int>(launch.own.vocab_size), stream,
                        [&] { return LaunchPersistent(device, entry, a.rows, arguments, stream); });
}

}  // namespace lossgauge::cuda
