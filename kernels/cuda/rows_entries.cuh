// The plain kernel's instances for one dtype.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROWS_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROWS_ENTRIES_CUH_

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows_kernel.cuh"

namespace lossgauge::cuda {

// warps of a row, vectors of a lane (0 = two reads), rows at once in a CTA
template <class T, int kShape, bool kSignals>
struct RowsShape;
template <class T, bool kSignals>
struct RowsShape<T, 0, kSignals> : RowsConfig<T, 16, 0, 1, kSignals, LogitMap::kNone> {};
template <class T, bool kSignals>
struct RowsShape<T, 1, kSignals> : RowsConfig<T, 1, 4, 8, kSignals, LogitMap::kNone> {};
template <class T, bool kSignals>
struct RowsShape<T, 2, kSignals> : RowsConfig<T, 2, 8, 4, kSignals, LogitMap::kNone> {};
template <class T, bool kSignals>
struct RowsShape<T, 3, kSignals> : RowsConfig<T, 4, 8, 2, kSignals, LogitMap::kNone> {};
template <class T, bool kSignals>
struct RowsShape<T, 4, kSignals> : RowsConfig<T, 8, 8, 1, kSignals, LogitMap::kNone> {};
// Two reads: arithmetic takes longer. Rows of up to kFewMappedColumns share a CTA.
template <class T, LogitMap kMap, bool kSignals>
struct LongMappedRows : RowsConfig<T, 8, 0, 1, kSignals, kMap> {};
template <class T, LogitMap kMap, bool kSignals>
struct ShortMappedRows : RowsConfig<T, 2, 0, 4, kSignals, kMap> {};

template <class C>
KernelEntry MakeRowsEntry() {
  return {reinterpret_cast<const void*>(&RowsKernel<C>), C::THREADS, 0, 1, C::GROUPS};
}

template <class T>
const KernelEntry& RowsEntryOf(int shape, bool signals) {
  static const KernelEntry entries[kRowsShapes][2] = {
      {MakeRowsEntry<RowsShape<T, 0, false>>(), MakeRowsEntry<RowsShape<T, 0, true>>()},
      {MakeRowsEntry<RowsShape<T, 1, false>>(), MakeRowsEntry<RowsShape<T, 1, true>>()},
      {MakeRowsEntry<RowsShape<T, 2, false>>(), MakeRowsEntry<RowsShape<T, 2, true>>()},
      {MakeRowsEntry<RowsShape<T, 3, false>>(), MakeRowsEntry<RowsShape<T, 3, true>>()},
      {MakeRowsEntry<RowsShape<T, 4, false>>(), MakeRowsEntry<RowsShape<T, 4, true>>()},
  };
  return entries[shape][signals];
}

template <class T, LogitMap kMap>
const KernelEntry& MappedRowsEntryOf(bool few_columns, bool signals) {
  static const KernelEntry entries[2][2] = {
      {MakeRowsEntry<LongMappedRows<T, kMap, false>>(), MakeRowsEntry<LongMappedRows<T, kMap, true>>()},
      {MakeRowsEntry<ShortMappedRows<T, kMap, false>>(), MakeRowsEntry<ShortMappedRows<T, kMap, true>>()},
  };
  return entries[few_columns][signals];
}
template <class T>
const KernelEntry& MappedRowsEntryOf(LogitMap map, bool few_columns, bool signals) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (map == LogitMap::kTable) return MappedRowsEntryOf<T, LogitMap::kTable>(few_columns, signals);
  }
  if (map == LogitMap::kScale) return MappedRowsEntryOf<T, LogitMap::kScale>(few_columns, signals);
  if (map == LogitMap::kCap) return MappedRowsEntryOf<T, LogitMap::kCap>(few_columns, signals);
  // Hardly a cap at all, and rare: one instance for all widths.
  static const KernelEntry high[2] = {MakeRowsEntry<LongMappedRows<T, LogitMap::kHighCap, false>>(), MakeRowsEntry<LongMappedRows<T, LogitMap::kHighCap, true>>()};
  return high[signals];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROWS_ENTRIES_CUH_
