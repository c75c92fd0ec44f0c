// Buffers of a test on a device: each is copied into an allocation that ends (or begins) where the buffer does, so that compute-sanitizer sees every byte too
// many, and copied back after the call.
#ifndef LOSSGAUGE_TESTS_KERNELS_CUDA_PLACEMENT_H_
#define LOSSGAUGE_TESTS_KERNELS_CUDA_PLACEMENT_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/kernels/c_abi_backend.h"

namespace lossgauge::test {

inline void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

class CudaPlacement : public CAbiBackend {
 public:
  std::string Name() const override { return "cuda"; }
  bool HasSameBitsForAnyLayout() const override { return false; }
  bool IsDevice() const override { return true; }

 protected:
  unsigned char* Place(GuardedBuffer& buffer) override {
    Placed& placed = placed_[&buffer];
    if (placed.memory != nullptr) return placed.data;
    // Device allocations begin at a multiple of 256: the host's distance from one is kept in front.
    placed.front = reinterpret_cast<std::uintptr_t>(buffer.data()) % 256;
    placed.bytes = buffer.bytes();
    Check(cudaMalloc(&placed.memory, placed.front + placed.bytes + 1));
    placed.data = static_cast<unsigned char*>(placed.memory) + placed.front;
    Check(cudaMemset(placed.memory, 0xff, placed.front + placed.bytes + 1));
    Check(cudaMemcpy(placed.data, buffer.data(), placed.bytes, cudaMemcpyHostToDevice));
    placed.host = buffer.data();
    return placed.data;
  }
  void Collect() override {
    Check(cudaDeviceSynchronize());
    for (auto& [buffer, placed] : placed_) {
      std::vector<unsigned char> all(placed.front + placed.bytes + 1);
      Check(cudaMemcpy(all.data(), placed.memory, all.size(), cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; i < placed.front; ++i) EXPECT_EQ(all[i], 0xff) << "written before the buffer";
      EXPECT_EQ(all.back(), 0xff) << "written behind the buffer";
      // Inputs are write-protected on the host by now, and unchanged unless a kernel overstepped.
      if (std::memcmp(placed.host, all.data() + placed.front, placed.bytes) != 0) std::memcpy(placed.host, all.data() + placed.front, placed.bytes);
      Check(cudaFree(placed.memory));
    }
    placed_.clear();
  }
  void Finish() override { Check(cudaDeviceSynchronize()); }

 private:
  struct Placed {
    void* memory = nullptr;
    unsigned char* data = nullptr;
    unsigned char* host = nullptr;
    std::size_t front = 0, bytes = 0;
  };
  std::map<GuardedBuffer*, Placed> placed_;
};

// Without a device every test is skipped: it would be about a call that fails for want of one.
class SkipsWithoutDevice final : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo&) override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice);
  }
  static bool Install() {
    testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutDevice);
    return true;
  }
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_CUDA_PLACEMENT_H_
