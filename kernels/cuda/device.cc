#include "kernels/cuda/device.h"

#include <array>
#include <memory>
#include <new>

namespace lossgauge::cuda {
namespace {

constexpr int kMostDevices = 64;

}  // namespace

ScopedDevice::ScopedDevice(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current != ordinal && cudaSetDevice(ordinal) == cudaSuccess) before_ = current;
}
ScopedDevice::~ScopedDevice() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
  if (!had_error_) (void)cudaGetLastError();
}

SetUpStream::SetUpStream() {
  error_ = cudaThreadExchangeStreamCaptureMode(&mode_);
  if (error_ == cudaSuccess) error_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
}
SetUpStream::~SetUpStream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}
cudaError_t SetUpStream::Finish() { return cudaStreamSynchronize(stream_); }

cudaError_t Device::SetUp(int ordinal) {
  const ScopedDevice current(ordinal);
  facts_.ordinal = ordinal;
  int major = 0, minor = 0;
  const auto read = [ordinal](int* value, cudaDeviceAttr attribute) { return cudaDeviceGetAttribute(value, attribute, ordinal); };
  cudaError_t error = read(&major, cudaDevAttrComputeCapabilityMajor);
  if (error == cudaSuccess) error = read(&minor, cudaDevAttrComputeCapabilityMinor);
  if (error == cudaSuccess) error = read(&facts_.multiprocessors, cudaDevAttrMultiProcessorCount);
  if (error == cudaSuccess) error = read(&facts_.shared_bytes_per_cta, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (error != cudaSuccess) return error;
  facts_.compute_capability = 10 * major + minor;
  if (facts_.compute_capability < 80) return cudaErrorNoKernelImageForDevice;
  SetUpStream stream;
  if (stream.error() != cudaSuccess) return stream.error();
  constexpr std::size_t bytes = sizeof(LaunchScratch) * (kRounds + kCaptured);
  void* memory = nullptr;
  error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(memory, 0, bytes, stream);
  if (error == cudaSuccess) error = stream.Finish();
  if (error != cudaSuccess) {
    (void)cudaFree(memory);
    return error;
  }
  scratch_ = static_cast<LaunchScratch*>(memory);
  return cudaSuccess;
}

Device* Device::Get(int ordinal, cudaError_t* error) {
  static std::mutex mutex;
  static std::array<std::atomic<Device*>, kMostDevices> devices{};
  *error = cudaSuccess;
  if (ordinal < 0 || ordinal >= kMostDevices) {
    *error = cudaErrorInvalidDevice;
    return nullptr;
  }
  if (Device* device = devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire)) return device;
  std::lock_guard<std::mutex> lock(mutex);
  if (Device* device = devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire)) return device;
  std::unique_ptr<Device> device(new (std::nothrow) Device());
  *error = device ? device->SetUp(ordinal) : cudaErrorMemoryAllocation;
  if (*error != cudaSuccess) {
    (void)cudaGetLastError();  // it is reported here; the job's own next check must not see it
    return nullptr;
  }
  devices[static_cast<std::size_t>(ordinal)].store(device.get(), std::memory_order_release);
  return device.release();
}

LaunchScratch* Device::Scratch(bool capturing) {
  if (!capturing) return scratch_ + next_.fetch_add(1, std::memory_order_relaxed) % kRounds;
  const unsigned index = next_captured_.fetch_add(1, std::memory_order_relaxed);
  if (index >= kCaptured) {
    next_captured_.store(kCaptured, std::memory_order_relaxed);
    return nullptr;
  }
  return scratch_ + kRounds + index;
}

}  // namespace lossgauge::cuda
