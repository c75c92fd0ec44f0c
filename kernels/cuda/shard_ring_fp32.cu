#include "kernels/cuda/shard_ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardRingBeginEntryFp32() { return ShardRingBeginEntryOf<float>(); }
const KernelEntry& ShardRingFinishEntryFp32(bool signals) { return ShardRingFinishEntryOf<float>(signals); }

}  // namespace lossgauge::cuda
