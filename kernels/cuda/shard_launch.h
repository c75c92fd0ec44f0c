// The vocabulary-parallel loss on a device: what its kernels are told, and their launches. Host side and plain data.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_LAUNCH_H_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_LAUNCH_H_

#include <cuda_runtime.h>

#include "kernels/cuda/device_counters.h"
#include "kernels/cuda/launch.h"
#include "kernels/host/vocab_parallel_contribution.h"

namespace lossgauge::cuda {

// Every CTA of the second kernel judges all headers and keeps what they say in shared memory.
constexpr int kMostRanks = 256;

struct ShardLaunch {
  CrossEntropyLaunch loss;  // vocab_size: this rank's real columns
  lg_shard_header own;
  // first kernel
  unsigned char* contribution;
  // second kernel
  const unsigned char* gathered;
  long long gathered_stride;
};

// Entries. map: LogitMap but kTable. shape: 0.. by rising length of rows; of mapped rows 0.
constexpr int kShardShapes = 3;
const KernelEntry& ShardBeginEntryBf16(LogitMap map, int shape);
const KernelEntry& ShardBeginEntryFp16(LogitMap map, int shape);
const KernelEntry& ShardBeginEntryFp32(LogitMap map, int shape);
const KernelEntry& ShardFinishEntryBf16(LogitMap map, int shape, bool signals);
const KernelEntry& ShardFinishEntryFp16(LogitMap map, int shape, bool signals);
const KernelEntry& ShardFinishEntryFp32(LogitMap map, int shape, bool signals);
// Long rows whose logits are not mapped, with a gradient in the second kernel: shard_ring_layout.cuh.
const KernelEntry& ShardRingBeginEntryBf16();
const KernelEntry& ShardRingBeginEntryFp16();
const KernelEntry& ShardRingBeginEntryFp32();
const KernelEntry& ShardRingFinishEntryBf16(bool signals);
const KernelEntry& ShardRingFinishEntryFp16(bool signals);
const KernelEntry& ShardRingFinishEntryFp32(bool signals);

// Of checked arguments; nothing waits. dtype: LG_FP32, LG_BF16, LG_FP16.
cudaError_t LaunchShardBegin(const DeviceFacts& device, int dtype, const ShardLaunch& launch, cudaStream_t stream);
cudaError_t LaunchShardFinish(const DeviceFacts& device, int dtype, const ShardLaunch& launch, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_LAUNCH_H_
