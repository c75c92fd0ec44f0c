// The ring kernel's instances for one dtype. Included by ring_bf16.cu, ring_fp16.cu, ring_fp32.cu: separate units compile side by side.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ring_kernel.cuh"

namespace lossgauge::cuda {

// Shapes found by measurement on an H200: slots of 16 KB, four vectors for each lane of the reducers; a CTA's part of a row wants about 64 KB of ring
// beside it. Slots of 32 KB spare instructions, where the smaller ones would be left half empty or no ring is left to be had.
template <class T, int kShape, bool kSignals, bool kSmoothing>
struct RingShape;
template <class T, bool kSignals, bool kSmoothing>
struct RingShape<T, 0, kSignals, kSmoothing> : RingConfig<T, 1, 8, 8, 32, 13, 3, kSignals, kSmoothing> {};
template <class T, bool kSignals, bool kSmoothing>
struct RingShape<T, 1, kSignals, kSmoothing> : RingConfig<T, 2, 8, 8, 32, 13, 2, kSignals, kSmoothing> {};
template <class T, bool kSignals, bool kSmoothing>
struct RingShape<T, 2, kSignals, kSmoothing> : RingConfig<T, 2, 8, 8, 64, 6, 2, kSignals, kSmoothing> {};
template <class T, bool kSignals, bool kSmoothing>
struct RingShape<T, 3, kSignals, kSmoothing> : RingConfig<T, 4, 8, 8, 32, 13, 2, kSignals, kSmoothing> {};

template <class T, int kShape, bool kSignals, bool kSmoothing>
KernelEntry MakeRingEntry() {
  using C = RingShape<T, kShape, kSignals, kSmoothing>;
  return {reinterpret_cast<const void*>(&RingKernel<C>), C::THREADS, static_cast<int>(C::BYTES), C::CL, 0};
}

template <class T>
const KernelEntry& RingEntryOf(int shape, bool signals, bool smoothing) {
  static const KernelEntry entries[kRingShapes][2][2] = {
      {{MakeRingEntry<T, 0, false, false>(), MakeRingEntry<T, 0, false, true>()}, {MakeRingEntry<T, 0, true, false>(), MakeRingEntry<T, 0, true, true>()}},
      {{MakeRingEntry<T, 1, false, false>(), MakeRingEntry<T, 1, false, true>()}, {MakeRingEntry<T, 1, true, false>(), MakeRingEntry<T, 1, true, true>()}},
      {{MakeRingEntry<T, 2, false, false>(), MakeRingEntry<T, 2, false, true>()}, {MakeRingEntry<T, 2, true, false>(), MakeRingEntry<T, 2, true, true>()}},
      {{MakeRingEntry<T, 3, false, false>(), MakeRingEntry<T, 3, false, true>()}, {MakeRingEntry<T, 3, true, false>(), MakeRingEntry<T, 3, true, true>()}},
  };
  return entries[shape][signals][smoothing];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_
