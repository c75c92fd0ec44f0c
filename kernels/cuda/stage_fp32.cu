#include "kernels/cuda/entries.h"
#include "kernels/cuda/stage_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& StageEntryFp32(int shape, bool signals, bool smoothing) { return StageEntryOf<float, false>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
