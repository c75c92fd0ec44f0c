// The ring kernel's instances for one dtype. Included by ring_bf16.cu and its like: separate units compile side by side.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ring_kernel.cuh"

namespace lossgauge::cuda {

// Shapes found by measurement on an H200: slots of 16 KB, four vectors for each lane of the reducers; a CTA's part of a row wants about 64 KB of ring
// beside it. Slots of 32 KB spare instructions, where the smaller ones would be left half empty or no ring is left to be had.
template <class T, int kShape, bool kSignals, bool kSmoothing, bool kScaled>
struct RingShape;
template <class T, bool kSignals, bool kSmoothing, bool kScaled>
struct RingShape<T, 0, kSignals, kSmoothing, kScaled> : RingConfig<T, 1, 8, 8, 32, 13, 3, kSignals, kSmoothing, kScaled> {};
template <class T, bool kSignals, bool kSmoothing, bool kScaled>
struct RingShape<T, 1, kSignals, kSmoothing, kScaled> : RingConfig<T, 2, 8, 8, 32, 13, 2, kSignals, kSmoothing, kScaled> {};
template <class T, bool kSignals, bool kSmoothing, bool kScaled>
struct RingShape<T, 2, kSignals, kSmoothing, kScaled> : RingConfig<T, 2, 8, 8, 64, 6, 2, kSignals, kSmoothing, kScaled> {};
template <class T, bool kSignals, bool kSmoothing, bool kScaled>
struct RingShape<T, 3, kSignals, kSmoothing, kScaled> : RingConfig<T, 4, 8, 8, 32, 13, 2, kSignals, kSmoothing, kScaled> {};

template <class T, int kShape, bool kSignals, bool kSmoothing, bool kScaled>
KernelEntry MakeRingEntry() {
  using C = RingShape<T, kShape, kSignals, kSmoothing, kScaled>;
  return {reinterpret_cast<const void*>(&RingKernel<C>), C::THREADS, static_cast<int>(C::BYTES), C::CL, 0};
}

template <class T, int kShape, bool kScaled>
struct RingEntries {
  KernelEntry of[2][2] = {{MakeRingEntry<T, kShape, false, false, kScaled>(), MakeRingEntry<T, kShape, false, true, kScaled>()},
                          {MakeRingEntry<T, kShape, true, false, kScaled>(), MakeRingEntry<T, kShape, true, true, kScaled>()}};
};

template <class T, bool kScaled>
const KernelEntry& RingEntryOf(int shape, bool signals, bool smoothing) {
  static const RingEntries<T, 0, kScaled> of0;
  static const RingEntries<T, 1, kScaled> of1;
  static const RingEntries<T, 2, kScaled> of2;
  static const RingEntries<T, 3, kScaled> of3;
  static_assert(kRingShapes == 4, "an instance for each shape");
  const KernelEntry(*of[])[2] = {of0.of, of1.of, of2.of, of3.of};
  return of[shape][signals][smoothing];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_ENTRIES_CUH_
