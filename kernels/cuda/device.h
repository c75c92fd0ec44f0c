// A CUDA device as the backend uses it: facts read once, and a pool of launch scratch.
#ifndef LOSSGAUGE_KERNELS_CUDA_DEVICE_H_
#define LOSSGAUGE_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>

#include "kernels/cuda/launch.h"

namespace lossgauge::cuda {

// Makes `ordinal` current for its scope, and leaves the thread as it was: cuBLASLt and NCCL leave behind errors that they got over, which the job's own next
// cudaGetLastError() would take for its own.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  const bool had_error_ = cudaPeekAtLastError() != cudaSuccess;  // the job's
  int before_ = -1;                                              // -1 = nothing to restore
};

// A private stream for setting up, in a thread that may allocate although some stream, of any thread, is being captured in global mode: with the legacy
// stream and the usual mode, that capture would be lost.
class SetUpStream {
 public:
  SetUpStream();
  ~SetUpStream();
  SetUpStream(const SetUpStream&) = delete;
  SetUpStream& operator=(const SetUpStream&) = delete;
  // Waits. Once in a device's or a gauge's life, never on the path of a step.
  cudaError_t Finish();
  operator cudaStream_t() const { return stream_; }
  cudaError_t error() const { return error_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  cudaStream_t stream_ = nullptr;
  cudaError_t error_;
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
