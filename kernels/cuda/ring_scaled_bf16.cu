#include "kernels/cuda/entries.h"
#include "kernels/cuda/ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ScaledRingEntryBf16(int shape, bool signals, bool smoothing) { return RingEntryOf<__nv_bfloat16, true>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
