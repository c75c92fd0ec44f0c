// CUDA's errors as ours.
#ifndef LOSSGAUGE_KERNELS_CUDA_CUDA_ERROR_H_
#define LOSSGAUGE_KERNELS_CUDA_CUDA_ERROR_H_

#include <cuda_runtime.h>

namespace lossgauge::cuda {

// Sets this thread's error to "<where>: <what>: <CUDA's words>" and returns its lg_code. Takes CUDA's last error away: it is reported here, and the job's own
// next check must not see it.
int SetCudaError(cudaError_t error, const char* where, const char* what);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_CUDA_ERROR_H_
