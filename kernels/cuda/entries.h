// Where each dtype's kernel instances are found: one translation unit each.
#ifndef LOSSGAUGE_KERNELS_CUDA_ENTRIES_H_
#define LOSSGAUGE_KERNELS_CUDA_ENTRIES_H_

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

const KernelEntry& RingEntryBf16(int shape, bool signals, bool smoothing);
const KernelEntry& RingEntryFp16(int shape, bool signals, bool smoothing);
const KernelEntry& RingEntryFp32(int shape, bool signals, bool smoothing);
const KernelEntry& StageEntryBf16(int shape, bool signals, bool smoothing);
const KernelEntry& StageEntryFp16(int shape, bool signals, bool smoothing);
const KernelEntry& StageEntryFp32(int shape, bool signals, bool smoothing);
// With a logit scale.
const KernelEntry& ScaledRingEntryBf16(int shape, bool signals, bool smoothing);
const KernelEntry& ScaledRingEntryFp16(int shape, bool signals, bool smoothing);
const KernelEntry& ScaledRingEntryFp32(int shape, bool signals, bool smoothing);
const KernelEntry& ScaledStageEntryBf16(int shape, bool signals, bool smoothing);
const KernelEntry& RowsEntryBf16(int shape, bool signals);
const KernelEntry& RowsEntryFp16(int shape, bool signals);
const KernelEntry& RowsEntryFp32(int shape, bool signals);
const KernelEntry& MappedRowsEntryBf16(LogitMap map, bool few_columns, bool signals);
const KernelEntry& MappedRowsEntryFp16(LogitMap map, bool few_columns, bool signals);
const KernelEntry& MappedRowsEntryFp32(LogitMap map, bool few_columns, bool signals);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ENTRIES_H_
