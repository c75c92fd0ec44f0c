// Instances of the vocabulary-parallel kernels for one dtype.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_ENTRIES_CUH_

#include "kernels/cuda/shard_begin.cuh"
#include "kernels/cuda/shard_finish.cuh"

namespace lossgauge::cuda {

// warps of a row, rows at once in a CTA: by rising length of rows
template <class T, int kWarps, int kGroups, bool kSignals, int kCtas>
struct PlainShard : RowsConfig<T, kWarps, 0, kGroups, kSignals, LogitMap::kNone> {
  static constexpr int IN_FLIGHT = 4, CTAS = kCtas;  // CTAS: of a multiprocessor, at least
};
template <class T, int kShape>
struct BeginShape;
template <class T>
struct BeginShape<T, 0> : PlainShard<T, 1, 8, true, 4> {};
template <class T>
struct BeginShape<T, 1> : PlainShard<T, 4, 2, true, 4> {};
template <class T>
struct BeginShape<T, 2> : PlainShard<T, 8, 1, true, 4> {};
// Where as much is written as is read, few rows at once are better than many small groups of warps (measured), unless signals need the registers.
template <class T, int kShape, bool kSignals>
struct FinishShape;
template <class T, bool kSignals>
struct FinishShape<T, 0, kSignals> : PlainShard<T, 1, 8, kSignals, 3> {};
template <class T, bool kSignals>
struct FinishShape<T, 1, kSignals> : PlainShard<T, 4, 2, kSignals, 3> {};
template <class T>
struct FinishShape<T, 2, false> : PlainShard<T, 16, 1, false, 2> {};
template <class T>
struct FinishShape<T, 2, true> : PlainShard<T, 8, 1, true, 3> {};
template <class T, LogitMap kMap, bool kSignals>
struct MappedShard : RowsConfig<T, 8, 0, 1, kSignals, kMap> {
  static constexpr int CTAS = 2;
};

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
