// Instances of the vocabulary-parallel kernels for one dtype.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_

#include "kernels/cuda/shard_begin.cuh"
#include "kernels/cuda/shard_finish.cuh"

namespace lossgauge::cuda {

// warps of a row, rows at once in a CTA: by rising length of rows
template <class T, int kWarps, int kGroups, bool kSignals, int kInFlight>
struct PlainShard : RowsConfig<T, kWarps, 0, kGroups, kSignals, LogitMap::kNone> {
  static constexpr int IN_FLIGHT = kInFlight;
};
template <class T, int kShape, bool kSignals, int kInFlight>
struct ShardShape;
template <class T, bool kSignals, int kInFlight>
struct ShardShape<T, 0, kSignals, kInFlight> : PlainShard<T, 1, 8, kSignals, kInFlight> {};
template <class T, bool kSignals, int kInFlight>
struct ShardShape<T, 1, kSignals, kInFlight> : PlainShard<T, 4, 2, kSignals, kInFlight> {};
template <class T, bool kSignals, int kInFlight>
struct ShardShape<T, 2, kSignals, kInFlight> : PlainShard<T, 8, 1, kSignals, kInFlight> {};
// Four CTAs a multiprocessor: the second kernel writes as much as it reads, and has fewer registers to spare.
template <class T, int kShape>
using BeginShape = ShardShape<T, kShape, true, 4>;
template <class T, int kShape, bool kSignals>
using FinishShape = ShardShape<T, kShape, kSignals, 2>;
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
  static const KernelEntry plain[kShardShapes] = {MakeShardBeginEntry<BeginShape<T, 0>>(), MakeShardBeginEntry<BeginShape<T, 1>>(),
                                                  MakeShardBeginEntry<BeginShape<T, 2>>()};
  static const KernelEntry scaled = MakeShardBeginEntry<MappedShard<T, LogitMap::kScale, true>>();
  static const KernelEntry capped = MakeShardBeginEntry<MappedShard<T, LogitMap::kCap, true>>();
  static const KernelEntry high = MakeShardBeginEntry<MappedShard<T, LogitMap::kHighCap, true>>();
  if (map == LogitMap::kNone) return plain[shape];
  return map == LogitMap::kScale ? scaled : map == LogitMap::kCap ? capped : high;
}

template <class T, bool kSignals>
const KernelEntry& ShardFinishEntryOf(LogitMap map, int shape) {
  static const KernelEntry plain[kShardShapes] = {MakeShardFinishEntry<FinishShape<T, 0, kSignals>>(), MakeShardFinishEntry<FinishShape<T, 1, kSignals>>(),
                                                  MakeShardFinishEntry<FinishShape<T, 2, kSignals>>()};
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
