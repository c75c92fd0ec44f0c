#include "kernels/cuda/entries.h"
#include "kernels/cuda/ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& ScaledRingEntryFp16(int shape, bool signals, bool smoothing) { return RingEntryOf<__half, true>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
