#include "kernels/cuda/entries.h"
#include "kernels/cuda/stage_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& StageEntryFp16(int shape, bool signals, bool smoothing) { return StageEntryOf<__half, false>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
