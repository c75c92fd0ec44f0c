#include "kernels/cuda/shard_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardBeginEntryBf16(LogitMap map, int shape) { return ShardBeginEntryOf<__nv_bfloat16>(map, shape); }
const KernelEntry& ShardFinishEntryBf16(LogitMap map, int shape, bool signals) { return ShardFinishEntryOf<__nv_bfloat16>(map, shape, signals); }

}  // namespace lossgauge::cuda
