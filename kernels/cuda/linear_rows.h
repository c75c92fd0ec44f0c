// Rows of the linear path on their way between the caller's tensors and a chunk: masked rows are left out before the products, and what belongs to a row is
// put back where it belongs afterwards.
#ifndef LOSSGAUGE_KERNELS_CUDA_LINEAR_ROWS_H_
#define LOSSGAUGE_KERNELS_CUDA_LINEAR_ROWS_H_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

// Device memory, written by CompactRows.
struct alignas(16) TakenRows {
  double denominator;  // unmasked rows
  int count;           // those of them that there is room for
};

// What these kernels know of a call. At most 2^30 rows.
struct LinearRows {
  // The caller's. Strides in bytes but for targets and upstream.
  const unsigned char* hidden;
  unsigned char* grad_hidden;  // null = not wanted
  long long hidden_stride_bytes, grad_hidden_stride_bytes;
  int dtype;  // 0 fp32, 1 bf16, 2 fp16
  int rows, width;
  float *losses, *log_z;  // null = not wanted
  const CrossEntropyLaunch* loss;  // host memory: targets, ignore_index, vocab_size, upstream, grad_scale, denominators, positions, counters, scratch
  int most_rows;                   // that there is room for, in the order of rows
  bool counts_hidden;              // squares of grad_hidden are a signal
  // The workspace's.
  TakenRows* taken;
  int* row_of;   // [rows] of the taken rows, in order
  int* slot_of;  // [rows] where a row went; -1 = left out
  // Of one chunk.
  unsigned char* chunk_hidden;  // [chunk, width], packed; the gradient after the products
  int* chunk_targets;           // -1 = no row
  long long* chunk_positions;
  float *chunk_upstream, *chunk_losses, *chunk_log_z;
};

// Numbers the unmasked rows in order, and counts those left out as tokens seen. Those beyond most_rows count as rows that are not finite, the launch's loss
// becomes NaN, and the squares of the head's gradient, which lacks them, are absent. One CTA: a long scan, but the order makes the products' sums the same on
// every run.
cudaError_t CompactRows(const LinearRows& a, cudaStream_t stream);
// losses, log_z and grad_hidden of the rows left out: 0; NaN where there was no room.
cudaError_t ClearLeftOut(const DeviceFacts& device, const LinearRows& a, cudaStream_t stream);
// Taken rows [begin, begin + rows) into the chunk; beyond the last one: zeros and no target.
cudaError_t GatherRows(const LinearRows& a, int begin, int rows, cudaStream_t stream);
// The chunk's losses, log_z and gradient of hidden states to where they belong; the squares of the latter into the counters, if there are any: then
// chunk_losses must have been written, wanted or not.
cudaError_t ScatterRows(const LinearRows& a, int begin, int rows, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LINEAR_ROWS_H_
