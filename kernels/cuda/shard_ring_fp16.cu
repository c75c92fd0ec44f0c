#include "kernels/cuda/shard_ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardRingBeginEntryFp16() { return ShardRingBeginEntryOf<__half>(); }
const KernelEntry& ShardRingFinishEntryFp16(bool signals) { return ShardRingFinishEntryOf<__half>(signals); }

}  // namespace lossgauge::cuda
