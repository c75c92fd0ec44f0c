// Work of others for a test: a kernel that keeps multiprocessors and their shared memory for a while.
#ifndef LOSSGAUGE_TESTS_DEVICE_OTHER_WORK_CUH_
#define LOSSGAUGE_TESTS_DEVICE_OTHER_WORK_CUH_

#include <cuda_runtime.h>

#include "tests/device/bench_check.h"

namespace lossgauge {

static __global__ void Spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// 256 threads a CTA, `shared_bytes` of dynamic shared memory (up to 227 KB). A CUDA error ends the program: a launch that was refused would leave the test alone.
inline void LaunchOtherWork(int ctas, int shared_bytes, long long cycles, cudaStream_t stream) {
  CHECK(cudaFuncSetAttribute(Spin, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
  Spin<<<static_cast<unsigned>(ctas), 256, static_cast<std::size_t>(shared_bytes), stream>>>(cycles);
  CHECK(cudaGetLastError());
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_DEVICE_OTHER_WORK_CUH_
