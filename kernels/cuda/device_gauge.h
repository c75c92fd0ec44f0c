// A gauge's counters on one device, and the order between the streams that add to them and the one that publishes.
#ifndef LOSSGAUGE_KERNELS_CUDA_DEVICE_GAUGE_H_
#define LOSSGAUGE_KERNELS_CUDA_DEVICE_GAUGE_H_

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/publish.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/gauge.h"

namespace lossgauge::cuda {

// State of a stream with respect to graph capture; 0 = not capturing.
cudaError_t CaptureId(cudaStream_t stream, unsigned long long* id);

class CudaGauge final : public DeviceGauge {
 public:
  // Allocates, and maps the gauge's ring for the device: not while anything is being captured. Returns an lg_code.
  static int Create(Gauge* gauge, Device* device, std::unique_ptr<CudaGauge>* made);
  ~CudaGauge() override;

  int ordinal() const noexcept override { return device_->facts().ordinal; }
  const unsigned char* token_bytes() const { return token_bytes_; }

  // Before a launch on `stream`: makes it wait for the last publish. nullptr: no room for another stream, the launch goes uncounted.
  DeviceCounters* BeginLaunch(int block, cudaStream_t stream, unsigned long long capture_id);
  // After it.
  void EndLaunch(cudaStream_t stream, unsigned long long capture_id);

  int Publish(const StepEnd& end, void* stream) override;
  int Observe(std::int32_t block, const Observed& observed, void* stream) override;

 private:
  // A stream that loss calls have used. Claimed once, by compare and exchange of `key`; never given up.
  struct StreamSlot {
    std::atomic<std::uintptr_t> key{0};    // KeyOf; 0 = free
    std::atomic<std::uint64_t> thread{0};  // whose, of cudaStreamPerThread: its key may be another thread's, when the first has ended
    std::atomic<bool> used{false};         // since the last publish
    std::atomic<bool> recorded{false};     // `event` stands behind its last launch
    std::atomic<unsigned long long> capture_id{0};
    std::atomic<std::uint64_t> seen_publish{0};  // number of the publish that it has waited for
    std::atomic<cudaEvent_t> event{nullptr};     // EventOf
  };
  static constexpr std::size_t kMostStreams = 64;

  CudaGauge(Device* device, int block_count) : device_(device), block_count_(block_count) {}
  int SetUp(Gauge* gauge);
  StreamSlot* Find(cudaStream_t stream);
  // The calling thread's own stream comes behind what the slot's last thread has launched and published on its, if that was another.
  cudaError_t TakeOver(StreamSlot* slot, unsigned long long capture_id);
  cudaError_t WaitForPublish(cudaStream_t stream, unsigned long long capture_id);
  // Made when first asked for, by whichever of the stream's threads that is.
  static cudaError_t EventOf(StreamSlot* slot, cudaEvent_t* event);

  Device* const device_;
  const int block_count_;
  DeviceCounters* counters_ = nullptr;
  PublisherState* state_ = nullptr;
  unsigned char* token_bytes_ = nullptr;
  void* registered_ = nullptr;
  PublishLaunch launch_{};
  std::array<StreamSlot, kMostStreams> slots_;
  std::atomic<std::uintptr_t> publish_stream_{0};  // its key
  std::atomic<std::uint64_t> publishes_{0};
  std::atomic<unsigned long long> publish_capture_id_{0};
  cudaEvent_t published_ = nullptr;
  std::atomic<bool> captured_{false};  // graphs may know addresses of ours, and be replayed after the gauge is closed
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_DEVICE_GAUGE_H_
