// The head's gradients beside the products: sums of the bias, and the end of a gradient that was summed in fp32.
#ifndef LOSSGAUGE_KERNELS_CUDA_LINEAR_HEAD_H_
#define LOSSGAUGE_KERNELS_CUDA_LINEAR_HEAD_H_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

struct ColumnSumLaunch {
  const unsigned char* grad;  // [rows, columns] of `dtype`
  long long row_stride_bytes;
  int dtype;  // 0 fp32, 1 bf16, 2 fp16
  int rows, columns;
  float* sums;  // [columns]
  bool add;     // to what is there
};
// Every column's sum in the order of the rows.
cudaError_t SumColumns(const ColumnSumLaunch& a, cudaStream_t stream);

// A gradient [rows, width] summed in fp32.
struct FinishGradientLaunch {
  const float* sums;
  long long sums_stride;  // elements
  void* out;              // rounded into here; null = `sums` is what is emitted
  long long out_stride;   // elements
  int out_dtype;          // 1 bf16, 2 fp16
  bool add;               // to what is there, before the one rounding
  long long rows;
  int width;
  // The call's: one upstream scalar for all, denominator, counters. With counters, the squares of what is emitted, less of what was there with `add` and `out`.
  CrossEntropyLaunch loss;
  int sign;          // 1, or -1: they come off
  const int* taken;  // rows that went into the gradient: with none, there is nothing to count
};
cudaError_t FinishGradient(const DeviceFacts& device, const FinishGradientLaunch& a, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LINEAR_HEAD_H_
