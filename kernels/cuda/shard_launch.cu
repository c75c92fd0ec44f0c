#include "kernels/cuda/shard_launch.h"

#include "kernels/cuda/count_unmasked.h"
#include "kernels/cuda/logit_map.h"
#include "kernels/cuda/same_alignment.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

int ShapeOf(const CrossEntropyLaunch& a, int dtype) {
  const long long vectors = a.vocab_size * BytesOfType(dtype) / 16;
  return vectors <= 512 ? 0 : vectors <= 2048 ? 1 : 2;
}

// Bulk copies and 227 KB of shared memory, as for the ring kernel (launch.cu), and rows that are worth their while.
bool StreamsRows(const DeviceFacts& device, int dtype, const CrossEntropyLaunch& a) {
  return device.compute_capability >= 90 && device.shared_bytes_per_cta >= 227 * 1024 && MapOf(a) == LogitMap::kNone && ShapeOf(a, dtype) == 2 &&
         a.rows < (1ll << 31);
}

}  // namespace

cudaError_t LaunchShardBegin(const DeviceFacts& device, int dtype, const ShardLaunch& launch, cudaStream_t stream) {
  const LogitMap map = MapOf(launch.loss);
  const int shape = ShapeOf(launch.loss, dtype);
  void* arguments[] = {const_cast<ShardLaunch*>(&launch)};
  if (StreamsRows(device, dtype, launch.loss)) {
    const KernelEntry& ring = dtype == 1 ? ShardRingBeginEntryBf16() : dtype == 2 ? ShardRingBeginEntryFp16() : ShardRingBeginEntryFp32();
    return LaunchPersistent(device, ring, launch.loss.rows, arguments, stream);
  }
  const KernelEntry& entry =
      dtype == 1 ? ShardBeginEntryBf16(map, shape) : dtype == 2 ? ShardBeginEntryFp16(map, shape) : ShardBeginEntryFp32(map, shape);
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
  const KernelEntry& ring = dtype == 1 ? ShardRingFinishEntryBf16(signals) : dtype == 2 ? ShardRingFinishEntryFp16(signals) : ShardRingFinishEntryFp32(signals);
  const KernelEntry& chosen = a.grad != nullptr && SameAlignment(a) && StreamsRows(device, dtype, a) ? ring : entry;
  void* arguments[] = {const_cast<ShardLaunch*>(&launch)};
  return EnqueueCounted(device, a, static_cast<int>(launch.own.vocab_size), stream,
                        [&] { return LaunchPersistent(device, chosen, a.rows, arguments, stream); });
}

}  // namespace lossgauge::cuda
