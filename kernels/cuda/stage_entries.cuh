// The stage kernel's instances for one dtype. Included by stage_bf16.cu and its like.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_ENTRIES_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_ENTRIES_CUH_

#include "kernels/cuda/launch.h"
#include "kernels/cuda/stage_kernel.cuh"

namespace lossgauge::cuda {

template <class T, int kShape, bool kSignals, bool kSmoothing, bool kScaled>
KernelEntry MakeStageEntry() {
  return {reinterpret_cast<const void*>(&StageKernel<StageConfig<T, kShape, kSignals, kSmoothing, kScaled>>), kStageThreads, kStageSharedBytes, 1, 0};
}
template <class T, int kShape, bool kScaled>
struct StageEntries {
  KernelEntry of[2][2] = {{MakeStageEntry<T, kShape, false, false, kScaled>(), MakeStageEntry<T, kShape, false, true, kScaled>()},
                          {MakeStageEntry<T, kShape, true, false, kScaled>(), MakeStageEntry<T, kShape, true, true, kScaled>()}};
};

template <class T, bool kScaled>
const KernelEntry& StageEntryOf(int shape, bool signals, bool smoothing) {
  static const StageEntries<T, 0, kScaled> of0;
  static const StageEntries<T, 1, kScaled> of1;
  static const StageEntries<T, 2, kScaled> of2;
  static const StageEntries<T, 3, kScaled> of3;
  static const StageEntries<T, 4, kScaled> of4;
  static const StageEntries<T, 5, kScaled> of5;
  static_assert(kStageShapes == 6, "an instance for each shape");
  const KernelEntry(*of[])[2] = {of0.of, of1.of, of2.of, of3.of, of4.of, of5.of};
  return of[shape][signals][smoothing];
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_ENTRIES_CUH_
