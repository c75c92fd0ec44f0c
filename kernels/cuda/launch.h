// Choosing and launching kernels. Host side, no CUDA kernels in sight: what runs where is one table in launch.cu.
#ifndef LOSSGAUGE_KERNELS_CUDA_LAUNCH_H_
#define LOSSGAUGE_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_counters.h"

namespace lossgauge::cuda {

// What a launch needs to know of a device; read once.
struct DeviceFacts {
  int ordinal;
  int multiprocessors;
  int compute_capability;  // 10 * major + minor
  int shared_bytes_per_cta;  // with opt-in
};

// A kernel with what depends on the device filled in at its first launch there.
struct KernelEntry {
  const void* kernel;
  int threads;
  int shared_bytes;
  int cluster;       // CTAs; 1 = no clusters
  int rows_per_cta;  // plain kernel
};

// dtype: 0 fp32, 1 bf16, 2 fp16 (LG_FP32, LG_BF16, LG_FP16). scaled: with a logit scale.
// Entry of the ring kernel; shapes by rising length of rows: clusters of 1, 2, 2, 4.
constexpr int kRingShapes = 4;
const KernelEntry& RingEntry(int dtype, int shape, bool signals, bool smoothing, bool scaled);
// Stage kernel, for rows that share a multiprocessor's memory with others; shapes: stage_plan.h. Scaled: bf16 only, whatever `dtype` says.
const KernelEntry& StageEntry(int dtype, int shape, bool signals, bool smoothing, bool scaled);
// Plain kernel: 0 = two reads, 1.. = rows held in registers, of rising capacity.
constexpr int kRowsShapes = 5;
const KernelEntry& RowsEntry(int dtype, int shape, bool signals);
// Vectors that the shape can hold; 0 = any number.
int RowsCapacity(int shape);
// With a soft cap, or a scale that the others do not take; for few columns, with which rows share a CTA, or for any number of them. kTable: bf16 only.
constexpr int kFewMappedColumns = 4096;
const KernelEntry& MappedRowsEntry(int dtype, LogitMap map, bool few_columns, bool signals);

// A kernel whose CTAs share `rows` rows, as many CTAs as run at once.
cudaError_t LaunchPersistent(const DeviceFacts& device, const KernelEntry& entry, long long rows, void** arguments, cudaStream_t stream);

// Enqueues forward (and gradient, if launch.grad is set) of checked arguments. Nothing waits.
cudaError_t LaunchCrossEntropy(const DeviceFacts& device, int dtype, const CrossEntropyLaunch& launch, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LAUNCH_H_
