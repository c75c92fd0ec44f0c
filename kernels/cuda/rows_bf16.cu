#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryBf16(int shape, bool signals) { return RowsEntryOf<__nv_bfloat16>(shape, signals); }
const KernelEntry& MappedRowsEntryBf16(bool signals) { return MappedRowsEntryOf<__nv_bfloat16>(signals); }

}  // namespace lossgauge::cuda
