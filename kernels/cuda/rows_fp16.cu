#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryFp16(int shape, bool signals) { return RowsEntryOf<__half>(shape, signals); }
const KernelEntry& MappedRowsEntryFp16(bool signals) { return MappedRowsEntryOf<__half>(signals); }

}  // namespace lossgauge::cuda
