#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryFp32(int shape, bool signals) { return RowsEntryOf<float>(shape, signals); }
const KernelEntry& MappedRowsEntryFp32(bool signals) { return MappedRowsEntryOf<float>(signals); }

}  // namespace lossgauge::cuda
