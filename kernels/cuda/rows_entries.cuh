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
struct RowsShape<T, 0, kSignals> : RowsConfig<T, 16, 0, 1, kSignals, false> {};
template <class T, bool kSignals>
struct RowsShape<T, 1, kSignals> : RowsConfig<T, 1, 4, 8, kSignals, false> {};
template <class T, bool kSignals>
struct RowsShape<T, 2, kSignals> : RowsConfig<T, 2, 8, 4, kSignals, false> {};
template <class T, bool kSignals>
struct RowsShape<T, 3, kSignals> : RowsConfig<T, 4, 8, 2, kSignals, false> {};
template <class T, bool kSignals>
struct RowsShape<T, 4, kSignals> : RowsConfig<T, 8, 8, 1, kSignals, false> {};
template <class T, bool kSignals>
struct MappedRowsShape : RowsConfig<T, 16, 0, 1, kSignals, true> {};

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

template <class T>
const KernelEntry& MappedRowsEntryOf(bool signals) {
  static const KernelEntry entries[2] = {MakeRowsEntry<MappedRowsShape<T, false>>(), MakeRowsEntry<MappedRowsShape<T, true>>()};
  return entries[signals];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROWS_ENTRIES_CUH_
