#include "kernels/cuda/shard_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardBeginEntryFp32(LogitMap map, int shape) { return ShardBeginEntryOf<float>(map, shape); }
const KernelEntry& ShardFinishEntryFp32(LogitMap map, int shape, bool signals) { return ShardFinishEntryOf<float>(map, shape, signals); }

}  // namespace lossgauge::cuda
