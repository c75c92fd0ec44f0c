// Instances of the vocabulary-parallel kernels for one dtype.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_

#include "kernels/cuda/shard_begin.cuh"
#include "kernels/cuda/shard_finish.cuh"

namespace lossgauge::cuda {

// warps of a row, rows at once in a CTA: by rising length of rows
template <class T, int kWarps, int kGroups, bool kSignals>
struct PlainShard : RowsConfig<T, kWarps, 0, kGroups, kSignals, LogitMap::kNone> {
  static constexpr int IN_FLIGHT = 4;
};
template <class T, int kShape, bool kSignals>
struct ShardShape;
template <class T, bool kSignals>
struct ShardShape<T, 0, kSignals> : PlainShard<T, 1, 8, kSignals> {};
template <class T, bool kSignals>
struct ShardShape<T, 1, kSignals> : PlainShard<T, 4, 2, kSignals> {};
template <class T, bool kSignals>
struct ShardShape<T, 2, kSignals> : PlainShard<T, 8, 1, kSignals> {};
template <class T, LogitMap kMap, bool kSignals>
struct MappedShard : RowsConfig<T, 8, 0, 1, kSignals, kMap> {};

template <class C>
KernelEntry MakeShardBeginEntry() {
  return {reinterpret_cast<const void*>(&ShardBeginKernel<C>), C::THREADS, 0, 1, C::GROUPS};
}
template <class C>
KernelEntry MakeShardFinishEntry() {
  return {reinterpret_cast<const void*>(&ShardFinishKernel<C>), C::THREADS, 0, 1, C::GROUPS};
}

template <class T>
const KernelEntry& ShardBeginEntryOf(LogitMap map, int shape) {
  static const KernelEntry plain[kShardShapes] = {MakeShardBeginEntry<ShardShape<T, 0, true>>(), MakeShardBeginEntry<ShardShape<T, 1, true>>(),
                                                  MakeShardBeginEntry<ShardShape<T, 2, true>>()};
  static const KernelEntry scaled = MakeShardBeginEntry<MappedShard<T, LogitMap::kScale, true>>();
  static const KernelEntry capped = MakeShardBeginEntry<MappedShard<T, LogitMap::kCap, true>>();
  static const KernelEntry high = MakeShardBeginEntry<MappedShard<T, LogitMap::kHighCap, true>>();
  if (map == LogitMap::kNone) return plain[shape];
  return map == LogitMap::kScale ? scaled : map == LogitMap::kCap ? capped : high;
}

template <class T, bool kSignals>
const KernelEntry& ShardFinishEntryOf(LogitMap map, int shape) {
  static const KernelEntry plain[kShardShapes] = {MakeShardFinishEntry<ShardShape<T, 0, kSignals>>(), MakeShardFinishEntry<ShardShape<T, 1, kSignals>>(),
                                                  MakeShardFinishEntry<ShardShape<T, 2, kSignals>>()};
  static const KernelEntry scaled = MakeShardFinishEntry<MappedShard<T, LogitMap::kScale, kSignals>>();
  static const KernelEntry capped = MakeShardFinishEntry<MappedShard<T, LogitMap::kCap, kSignals>>();
  static const KernelEntry high = MakeShardFinishEntry<MappedShard<T, LogitMap::kHighCap, kSignals>>();
  if (map == LogitMap::kNone) return plain[shape];
  return map == LogitMap::kScale ? scaled : map == LogitMap::kCap ? capped : high;
}
template <class T>
const KernelEntry& ShardFinishEntryOf(LogitMap map, int shape, bool signals) {
  return signals ? ShardFinishEntryOf<T, true>(map, shape) : ShardFinishEntryOf<T, false>(map, shape);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_
