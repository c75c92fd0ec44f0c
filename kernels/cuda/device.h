// A CUDA device as the backend uses it: facts read once, and a pool of launch scratch.
#ifndef LOSSGAUGE_KERNELS_CUDA_DEVICE_H_
#define LOSSGAUGE_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

// Makes `ordinal` current for its scope.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  int before_ = -1;  // -1 = nothing to restore
};

// Thread-safe. Never destroyed: CUDA may be gone before static destructors run.
class Device {
 public:
  // nullptr if the device cannot be used; *error then says why.
  static Device* Get(int ordinal, cudaError_t* error);

  const DeviceFacts& facts() const { return facts_; }
  // Scratch for one launch, all zero. Launches outside of graphs share kRounds blocks in turn: a block comes round again only after so many launches
  // that the first has long ended. A captured launch keeps its block for good, since its graph may be replayed at any time; nullptr when those are used up.
  LaunchScratch* Scratch(bool capturing);

 private:
  static constexpr unsigned kRounds = 4096;
  static constexpr unsigned kCaptured = 65536;
  Device() = default;
  cudaError_t SetUp(int ordinal);

  DeviceFacts facts_{};
  LaunchScratch* scratch_ = nullptr;
  std::atomic<unsigned> next_{0};
  std::atomic<unsigned> next_captured_{0};
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_DEVICE_H_
