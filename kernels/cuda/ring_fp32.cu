#include "kernels/cuda/entries.h"
#include "kernels/cuda/ring_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RingEntryFp32(int shape, bool signals, bool smoothing) { return RingEntryOf<float, false>(shape, signals, smoothing); }

}  // namespace lossgauge::cuda
