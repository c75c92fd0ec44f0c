// The CUDA backend behind the C ABI: which device, which stream, what cannot be captured, and the launch.
#include <cuda_runtime.h>

#include <cstring>
#include <mutex>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_gauge.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scale.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"

namespace lossgauge::cuda {
namespace {

constexpr unsigned kBytesOf[] = {4, 2, 2};  // LG_FP32, LG_BF16, LG_FP16

int Failed(cudaError_t error, const char* function, const char* what) {
  (void)cudaGetLastError();  // reported here; the job's own next check must not see it
  const lg_code code = error == cudaErrorMemoryAllocation ? LG_RESOURCE_EXHAUSTED : LG_UNAVAILABLE;
  return SetError(code, "%s: %s: %s", function, what, cudaGetErrorString(error));
}

// The device's side of a gauge, made when it first meets a device. nullptr = the launch goes uncounted (convention 6).
CudaGauge* GaugeOn(Gauge* gauge, Device* device, bool capturing) {
  static std::mutex making;
  if (auto* made = static_cast<CudaGauge*>(gauge->device())) return made->ordinal() == device->facts().ordinal ? made : nullptr;
  if (capturing || gauge->device_refused()) return nullptr;  // it allocates
  std::lock_guard<std::mutex> lock(making);
  if (gauge->device() == nullptr) {
    if (gauge->device_refused()) return nullptr;
    std::unique_ptr<CudaGauge> made;
    if (const int code = CudaGauge::Create(gauge, device, &made); code != LG_OK) {
      gauge->RefuseDevice(code, LastError());
      return nullptr;
    }
    gauge->AdoptDevice(std::move(made));
  }
  return static_cast<CudaGauge*>(gauge->device());
}

class CudaBackend final : public DeviceBackend {
 public:
  int DeviceOf(const void* pointer) noexcept override {
    cudaPointerAttributes attributes{};
    if (pointer == nullptr || cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
      (void)cudaGetLastError();
      return -1;
    }
    return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
  }

  bool IsCapturing(void* stream) noexcept override {
    unsigned long long id = 0;
    return CaptureId(static_cast<cudaStream_t>(stream), &id) == cudaSuccess && id != 0;
  }

  int Adopt(Gauge* gauge, void* given_stream) override {
    const auto stream = static_cast<cudaStream_t>(given_stream);
    int ordinal = -1;
    cudaError_t error = stream == nullptr ? cudaGetDevice(&ordinal) : cudaStreamGetDevice(stream, &ordinal);
    if (error != cudaSuccess) return Failed(error, "lg_gauge_observe", "stream");
    Device* device = Device::Get(ordinal, &error);
    if (device == nullptr) return Failed(error, "lg_gauge_observe", "device");
    known_[ordinal].store(true, std::memory_order_release);
    if (GaugeOn(gauge, device, false) != nullptr) return LG_OK;
    return gauge->device_refused() ? gauge->SetDeviceError() : LG_UNAVAILABLE;
  }

  int CrossEntropy(const lg_cross_entropy_args& args, LossPurpose purpose, const char* function) override {
    const int ordinal = DeviceOf(args.rows > 0 ? args.logits : static_cast<const void*>(args.loss));
    if (const int code = CheckDevices(args, ordinal, function); code != LG_OK) return code;
    const auto stream = static_cast<cudaStream_t>(args.stream);
    const ScopedDevice current(ordinal);
    unsigned long long capture_id = 0;
    cudaError_t error = CaptureId(stream, &capture_id);
    if (error != cudaSuccess) return Failed(error, function, "stream");
    const bool capturing = capture_id != 0;
    if (capturing && !known_[ordinal].load(std::memory_order_acquire)) {
      return SetError(LG_FAILED_PRECONDITION, "%s: stream: the first call on a device allocates and cannot be captured; make one call before", function);
    }
    Device* device = Device::Get(ordinal, &error);
    if (device == nullptr) return Failed(error, function, "device");
    known_[ordinal].store(true, std::memory_order_release);

    CrossEntropyLaunch launch = MakeLaunch(args, purpose);
    launch.scratch = device->Scratch(capturing);
    if (launch.scratch == nullptr) {
      return SetError(LG_RESOURCE_EXHAUSTED, "%s: more loss calls were captured into graphs than there is scratch for", function);
    }
    CudaGauge* gauge = nullptr;
    if (args.gauge != nullptr && purpose != LossPurpose::kBackward) {
      args.gauge->NoteLossCall();
      const int block = args.gauge->BlockIndexForLaunch(args.block);
      if (block >= 0) gauge = GaugeOn(args.gauge, device, capturing);
      if (gauge != nullptr) {
        launch.counters = gauge->BeginLaunch(block, stream, capture_id);
        launch.token_bytes = gauge->token_bytes();
        launch.token_bytes_size = args.gauge->vocab_size();
        if (launch.token_bytes != nullptr) launch.present |= LG_HAS_TARGET_BYTES;
      }
      if (block >= 0 && launch.counters == nullptr) args.gauge->CountDropped();
    }
    if (purpose == LossPurpose::kObserve && launch.counters == nullptr) return LG_OK;
    error = LaunchCrossEntropy(device->facts(), args.logits_dtype, launch, stream);
    if (error != cudaSuccess) return Failed(error, function, "launch");
    if (launch.counters != nullptr) gauge->EndLaunch(stream, capture_id);
    return LG_OK;
  }

  int ScaleGradient(const lg_scale_gradient_args& args) override {
    const char* function = "lg_scale_gradient";
    const int ordinal = DeviceOf(args.grad);
    if (DeviceOf(args.upstream) != ordinal) {
      return SetError(LG_INVALID_ARGUMENT, "%s: upstream: expected memory of device %d, where grad is", function, ordinal);
    }
    int code = CheckAligned(args.grad, kBytesOf[args.dtype], function, "grad");
    if (code == LG_OK) code = CheckAligned(args.upstream, 4, function, "upstream");
    if (code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    ScaleLaunch launch{};
    launch.grad = static_cast<unsigned char*>(args.grad);
    launch.dtype = args.dtype;
    launch.rows = args.rows;
    launch.columns = args.columns;
    launch.row_stride_bytes = args.row_stride * kBytesOf[args.dtype];
    launch.upstream = args.upstream;
    launch.upstream_stride = args.upstream_stride;
    const cudaError_t error = LaunchScale(launch, static_cast<cudaStream_t>(args.stream));
    return error == cudaSuccess ? LG_OK : Failed(error, function, "launch");
  }

  int LinearCrossEntropy(const lg_linear_cross_entropy_args&, LossPurpose, const char* function) override { return NotYet(function); }
  int PlanLinear(const lg_linear_cross_entropy_args&, const char* function, lg_linear_plan*) override { return NotYet(function); }
  int PrepareLinear(const lg_linear_cross_entropy_args&, const char* function) override { return NotYet(function); }

 private:
  static int NotYet(const char* function) { return SetError(LG_UNIMPLEMENTED, "%s: hidden: expected host memory in this version, got a device's", function); }

  // Every tensor where the logits are, and aligned to its elements (64-bit targets are read in halves): what a kernel cannot read ends the job's CUDA context.
  int CheckDevices(const lg_cross_entropy_args& args, int ordinal, const char* function) {
    const unsigned bytes = kBytesOf[args.logits_dtype];
    const struct {
      const char* name;
      const void* pointer;
      unsigned alignment;
    } tensors[] = {{"logits", args.logits, bytes},        {"targets", args.targets, 4},
                   {"losses", args.losses, 4},            {"log_z", args.log_z, 4},
                   {"loss", args.loss, 4},                {"grad_logits", args.grad_logits, bytes},
                   {"upstream", args.upstream, 4},        {"grad_scale", args.grad_scale, 4},
                   {"positions", args.positions, 8},      {"denominator_pointer", args.denominator_pointer, 8}};
    for (const auto& tensor : tensors) {
      if (tensor.pointer == nullptr || (args.rows == 0 && tensor.pointer != args.loss)) continue;
      if (const int code = CheckAligned(tensor.pointer, tensor.alignment, function, tensor.name); code != LG_OK) return code;
      const int device = tensor.pointer == args.logits ? ordinal : DeviceOf(tensor.pointer);
      if (device == ordinal) continue;
      if (device < 0) {
        return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected memory of device %d, where logits is, got host memory", function, tensor.name, ordinal);
      }
      return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected memory of device %d, where logits is, got device %d", function, tensor.name, ordinal, device);
    }
    if (args.columns > (1ll << 30)) {
      return SetError(LG_INVALID_ARGUMENT, "%s: columns: expected at most 2^30 on a device, got %lld", function, static_cast<long long>(args.columns));
    }
    return LG_OK;
  }

  static int CheckAligned(const void* pointer, unsigned bytes, const char* function, const char* name) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0) return LG_OK;
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected a pointer aligned to its %u-byte elements, got %p", function, name, bytes, pointer);
  }

  static CrossEntropyLaunch MakeLaunch(const lg_cross_entropy_args& args, LossPurpose purpose) {
    const long long bytes = kBytesOf[args.logits_dtype];
    CrossEntropyLaunch a{};
    a.logits = static_cast<const unsigned char*>(args.logits);
    a.grad = static_cast<unsigned char*>(args.grad_logits);
    a.row_stride_bytes = args.row_stride * bytes;
    a.grad_stride_bytes = args.grad_row_stride * bytes;
    a.rows = args.rows;
    a.columns = static_cast<int>(args.columns);
    a.vocab_size = static_cast<int>(args.vocab_size);
    a.targets = args.targets;
    a.targets_are_int64 = args.target_dtype == LG_INT64;
    a.target_stride = args.target_stride;
    a.ignore_index = args.ignore_index;
    a.label_smoothing = static_cast<float>(args.label_smoothing);
    a.z_loss_weight = static_cast<float>(args.z_loss_weight);
    a.logit_scale = args.logit_scale;
    a.logit_softcap = args.logit_softcap;
    a.losses = args.losses;
    a.log_z = args.log_z;
    a.loss = args.loss;
    a.denominator = 1.;
    if (args.reduction == LG_MEAN) {
      const bool given = args.denominator_pointer != nullptr || args.denominator != 0;
      a.denominator_pointer = args.denominator_pointer;
      a.denominator = args.denominator;
      a.count_denominator = !given && (args.grad_logits != nullptr || args.loss != nullptr);
      a.announce_denominator = given || purpose != LossPurpose::kObserve;
    }
    a.upstream = args.upstream;
    a.upstream_stride = args.upstream_stride;
    a.grad_scale = args.grad_scale;
    a.position_base = args.position_base;
    a.positions = reinterpret_cast<const long long*>(args.positions);
    a.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE;
    if (a.grad != nullptr) a.present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
    return a;
  }

  std::atomic<bool> known_[64]{};
};

}  // namespace
}  // namespace lossgauge::cuda

namespace lossgauge {

DeviceBackend* FindDeviceBackend() noexcept {
  static DeviceBackend* const backend = []() -> DeviceBackend* {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      (void)cudaGetLastError();
      return nullptr;
    }
    static cuda::CudaBackend made;
    return &made;
  }();
  return backend;
}

}  // namespace lossgauge
