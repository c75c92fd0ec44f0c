#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryFp16(int shape, bool signals) { return RowsEntryOf<__half>(shape, signals); }
const KernelEntry& MappedRowsEntryFp16(LogitMap map, bool few_columns, bool signals) { return MappedRowsEntryOf<__half>(map, few_columns, signals); }

}  // namespace lossgauge::cuda
