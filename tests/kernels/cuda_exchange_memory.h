// Contributions in a device's memory, filled with what no contribution looks like.
#ifndef LOSSGAUGE_TESTS_KERNELS_CUDA_EXCHANGE_MEMORY_H_
#define LOSSGAUGE_TESTS_KERNELS_CUDA_EXCHANGE_MEMORY_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

namespace lossgauge::test {

class CudaExchangeMemory {
 public:
  CudaExchangeMemory() = default;
  explicit CudaExchangeMemory(std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xa5, bytes), cudaSuccess);
  }
  CudaExchangeMemory(const CudaExchangeMemory&) = delete;
  CudaExchangeMemory& operator=(CudaExchangeMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~CudaExchangeMemory() { (void)cudaFree(data_); }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_CUDA_EXCHANGE_MEMORY_H_
