#include "kernels/cuda/entries.h"
#include "kernels/cuda/stage_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& StageEntryBf16(int shape, bool signals, bool smoothing) { return StageEntryOf<__nv_bfloat16, false>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
