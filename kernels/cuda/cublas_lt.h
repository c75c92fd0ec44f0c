// cuBLASLt, loaded when the linear path first needs it: the library itself links nothing of it, so it loads on machines that have none.
#ifndef LOSSGAUGE_KERNELS_CUDA_CUBLAS_LT_H_
#define LOSSGAUGE_KERNELS_CUDA_CUBLAS_LT_H_

#include <cublasLt.h>

namespace lossgauge::cuda {

// The functions that products use, by their own names.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  cublasLtHandle_t handle;

  // For the current device, which must not change between calls of one product. nullptr: not to be had, and `*why` says why.
  static const CublasLt* Get(int ordinal, const char** why);
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_CUBLAS_LT_H_
