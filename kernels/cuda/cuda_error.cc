#include "kernels/cuda/cuda_error.h"

#include "kernels/host/error.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

int SetCudaError(cudaError_t error, const char* where, const char* what) {
  (void)cudaGetLastError();
  return SetError(error == cudaErrorMemoryAllocation ? LG_RESOURCE_EXHAUSTED : LG_UNAVAILABLE, "%s: %s: %s", where, what, cudaGetErrorString(error));
}

}  // namespace lossgauge::cuda
