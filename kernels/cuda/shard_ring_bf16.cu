#include "kernels/cuda/shard_ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardRingBeginEntryBf16() { return ShardRingBeginEntryOf<__nv_bfloat16>(); }
const KernelEntry& ShardRingFinishEntryBf16(bool signals) { return ShardRingFinishEntryOf<__nv_bfloat16>(signals); }

}  // namespace lossgauge::cuda
