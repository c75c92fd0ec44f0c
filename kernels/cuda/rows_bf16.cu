#include "kernels/cuda/entries.h"
#include "kernels/cuda/rows_entries.cuh"

namespace lossgauge::cuda {

const KernelEntry& RowsEntryBf16(int shape, bool signals) { return RowsEntryOf<__nv_bfloat16>(shape, signals); }
const KernelEntry& MappedRowsEntryBf16(LogitMap map, bool few_columns, bool signals) { return MappedRowsEntryOf<__nv_bfloat16>(map, few_columns, signals); }

}  // namespace lossgauge::cuda
