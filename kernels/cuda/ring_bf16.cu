#include "kernels/cuda/entries.h"
#include "kernels/cuda/ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RingEntryBf16(int shape, bool signals, bool smoothing) { return RingEntryOf<__nv_bfloat16, false>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
