#include "kernels/cuda/shard_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ShardBeginEntryFp16(LogitMap map, int shape) { return ShardBeginEntryOf<__half>(map, shape); }
const KernelEntry& ShardFinishEntryFp16(LogitMap map, int shape, bool signals) { return ShardFinishEntryOf<__half>(map, shape, signals); }

}  // namespace lossgauge::cuda
