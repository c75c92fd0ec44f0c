// A benchmark ends with a sentence when a call to CUDA or to lossgauge fails.
#ifndef LOSSGAUGE_TESTS_DEVICE_BENCH_CHECK_H_
#define LOSSGAUGE_TESTS_DEVICE_BENCH_CHECK_H_

#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(x)                                                                                       \
  do {                                                                                                 \
    const cudaError_t error_ = (x);                                                                    \
    if (error_ != cudaSuccess) {                                                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(error_));     \
      std::exit(1);                                                                                    \
    }                                                                                                  \
  } while (0)
#define CHECK_LG(x)                                                                     \
  do {                                                                                  \
    if ((x) != LG_OK) {                                                                 \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, lg_last_error()); \
      std::exit(1);                                                                     \
    }                                                                                   \
  } while (0)

#endif  // LOSSGAUGE_TESTS_DEVICE_BENCH_CHECK_H_
