// A gradient times an upstream gradient that came too late to be folded in.
#ifndef LOSSGAUGE_KERNELS_CUDA_SCALE_H_
#define LOSSGAUGE_KERNELS_CUDA_SCALE_H_

#include <cuda_runtime.h>

namespace lossgauge::cuda {

struct ScaleLaunch {
  unsigned char* grad;
  int dtype;  // 0 fp32, 1 bf16, 2 fp16
  long long rows, columns, row_stride_bytes;
  const float* upstream;
  long long upstream_stride;
};

// Reads the upstream value on the device: a row whose value is 1 costs nothing but that.
cudaError_t LaunchScale(const ScaleLaunch& launch, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SCALE_H_
