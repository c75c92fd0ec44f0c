// Instances for one dtype of the vocabulary-parallel kernels that stream long rows through a ring of slots.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_RING_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_RING_ENTRIES_CUH_

#include "kernels/cuda/shard_ring_begin.cuh"
#include "kernels/cuda/shard_ring_finish.cuh"

namespace lossgauge::cuda {

template <class C>
KernelEntry MakeShardRingBeginEntry() {
  return {reinterpret_cast<const void*>(&ShardRingBeginKernel<C>), C::THREADS, static_cast<int>(C::BEGIN_BYTES), 1, 1};
}
template <class C>
KernelEntry MakeShardRingFinishEntry() {
  return {reinterpret_cast<const void*>(&ShardRingFinishKernel<C>), C::THREADS, static_cast<int>(C::FINISH_BYTES), 1, 1};
}

template <class T>
const KernelEntry& ShardRingBeginEntryOf() {
  static const KernelEntry entry = MakeShardRingBeginEntry<ShardRing<T, 16, 64, 6, true>>();
  return entry;
}
template <class T>
const KernelEntry& ShardRingFinishEntryOf(bool signals) {
  static const KernelEntry entries[2] = {MakeShardRingFinishEntry<ShardRing<T, 16, 64, 6, false>>(), MakeShardRingFinishEntry<ShardRing<T, 16, 64, 6, true>>()};
  return entries[signals];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_RING_ENTRIES_CUH_
