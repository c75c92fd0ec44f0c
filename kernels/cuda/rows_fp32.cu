#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryFp32(int shape, bool signals) { return RowsEntryOf<float>(shape, signals); }
const KernelEntry& MappedRowsEntryFp32(LogitMap map, bool few_columns, bool signals) { return MappedRowsEntryOf<float>(map, few_columns, signals); }

}  // namespace lossgauge::cuda
