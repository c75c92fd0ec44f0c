// The CUDA backend behind the C ABI: which device, which stream, what cannot be captured, and the launch.
#include <cuda_runtime.h>

#include <cstring>
#include <mutex>

#include "kernels/cuda/agreement.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_arguments.h"
#include "kernels/cuda/device_gauge.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/pack_labels.h"
#include "kernels/cuda/scale.h"
#include "kernels/cuda/shard_arguments.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/tensor_span.h"
#include "kernels/host/vocab_parallel_linear_arguments.h"

namespace lossgauge::cuda {
namespace {

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
  // The device and the stream of a call, known and usable.
  struct Call {
    Device* device;
    cudaStream_t stream;
    unsigned long long capture_id;  // 0 = not capturing
    CudaGauge* gauge = nullptr;     // counts the call
    bool capturing() const { return capture_id != 0; }
  };

 public:
  int DeviceOf(const void* pointer) noexcept override { return cuda::DeviceOf(pointer); }

  bool IsCapturing(void* stream) noexcept override {
    unsigned long long id = 0;
    return CaptureId(static_cast<cudaStream_t>(stream), &id) == cudaSuccess && id != 0;
  }

  int Adopt(Gauge* gauge, void* given_stream, const void* memory) override {
    const auto stream = static_cast<cudaStream_t>(given_stream);
    int ordinal = cuda::DeviceOf(memory);
    cudaError_t error = cudaSuccess;
    if (ordinal < 0) error = stream == nullptr ? cudaGetDevice(&ordinal) : cudaStreamGetDevice(stream, &ordinal);
    if (error != cudaSuccess) return SetCudaError(error, "lg_gauge_observe", "stream");
    Device* device = Device::Get(ordinal, &error);
    if (device == nullptr) return SetCudaError(error, "lg_gauge_observe", "device");
    known_[ordinal].store(true, std::memory_order_release);
    if (GaugeOn(gauge, device, false) != nullptr) return LG_OK;
    return gauge->device_refused() ? gauge->SetDeviceError() : LG_UNAVAILABLE;
  }

  int CrossEntropy(const lg_cross_entropy_args& args, LossPurpose purpose, const char* function) override {
    const int ordinal = cuda::DeviceOf(args.rows > 0 ? args.logits : static_cast<const void*>(args.loss));
    if (const int code = CheckDevices(args, ordinal, function); code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    Call call;
    if (const int code = Begin(ordinal, args.stream, function, &call); code != LG_OK) return code;
    CrossEntropyLaunch launch = MakeLaunch(args, purpose);
    if (const int code = Equip(args, purpose, function, &call, &launch); code != LG_OK) return code;
    if (purpose == LossPurpose::kObserve && launch.counters == nullptr) return LG_OK;
    const cudaError_t error = LaunchCrossEntropy(call.device->facts(), args.logits_dtype, launch, call.stream);
    if (error != cudaSuccess) return SetCudaError(error, function, "launch");
    End(call, launch);
    return LG_OK;
  }

  int ScaleGradient(const lg_scale_gradient_args& args) override {
    const char* function = "lg_scale_gradient";
    const int ordinal = DeviceOf(args.grad);
    int code = CheckTensor({"grad", args.grad, static_cast<unsigned>(BytesOfType(args.dtype))}, ordinal, "grad", function);
    if (code == LG_OK) code = CheckTensor({"upstream", args.upstream, 4}, ordinal, "grad", function);
    if (code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    ScaleLaunch launch{};
    launch.grad = static_cast<unsigned char*>(args.grad);
    launch.dtype = args.dtype;
    launch.rows = args.rows;
    launch.columns = args.columns;
    launch.row_stride_bytes = args.row_stride * BytesOfType(args.dtype);
    launch.upstream = args.upstream;
    launch.upstream_stride = args.upstream_stride;
    const cudaError_t error = LaunchScale(launch, static_cast<cudaStream_t>(args.stream));
    return error == cudaSuccess ? LG_OK : SetCudaError(error, function, "launch");
  }

  int PackLabels(const lg_pack_labels_args& args) override {
    const char* function = "lg_pack_labels";
    const int ordinal = DeviceOf(args.cu_seqlens);
    const unsigned token_bytes = static_cast<unsigned>(BytesOfType(args.token_dtype)), length_bytes = static_cast<unsigned>(BytesOfType(args.length_dtype));
    const DeviceTensor tensors[] = {{"tokens", args.count > 0 ? args.tokens : nullptr, token_bytes},
                                    {"prompt_lengths", args.documents > 0 ? args.prompt_lengths : nullptr, length_bytes},
                                    {"labels", args.count > 0 ? args.labels : nullptr, 8},
                                    {"counts", args.counts, 8},
                                    {"cu_seqlens", args.cu_seqlens, length_bytes}};
    for (const DeviceTensor& tensor : tensors) {
      if (const int code = CheckTensor(tensor, ordinal, "cu_seqlens", function); code != LG_OK) return code;
    }
    const ScopedDevice current(ordinal);
    const cudaError_t error = LaunchPackLabels(args);
    return error == cudaSuccess ? LG_OK : SetCudaError(error, function, "launch");
  }

  int LinearCrossEntropy(const lg_linear_cross_entropy_args& args, LossPurpose purpose, const char* function) override {
    return RunLinear(args, nullptr, purpose, function);
  }
  int PlanLinear(const lg_linear_cross_entropy_args& args, const char* function, lg_linear_plan* plan) override {
#ifdef LOSSGAUGE_WITH_CUBLASLT
    return PlanLinearOnDevice(args, nullptr, function, plan);
#else
    (void)args, (void)plan;
    return NoProducts(function);
#endif
  }
  int PrepareLinear(const lg_linear_cross_entropy_args& args, const char* function) override { return TuneProducts(args, nullptr, function); }

  int VocabParallelLinear(const ShardedLinear& call, const char* function) override {
    if (const int code = CheckShardSizes(call.shard, function); code != LG_OK) return code;
    return RunLinear(call.linear, &call, LossPurpose::kForward, function);
  }
  int PlanVocabParallelLinear(const ShardedLinear& call, const char* function, lg_linear_plan* plan) override {
    if (const int code = CheckShardSizes(call.shard, function); code != LG_OK) return code;
#ifdef LOSSGAUGE_WITH_CUBLASLT
    return PlanLinearOnDevice(call.linear, &call, function, plan);
#else
    (void)plan;
    return NoProducts(function);
#endif
  }
  int PrepareVocabParallelLinear(const ShardedLinear& call, const char* function) override {
    if (const int code = CheckShardSizes(call.shard, function); code != LG_OK) return code;
    return TuneProducts(call.linear, &call, function);
  }

  int VocabParallelBegin(const lg_vocab_parallel_args& args, void* contribution, const char* function) override {
    const int ordinal = ShardDeviceOf(args, contribution);
    if (const int code = CheckShardDevices(args, contribution, "contribution", ordinal, function); code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    Call call;
    if (const int code = Begin(ordinal, args.loss.stream, function, &call); code != LG_OK) return code;
    return EnqueueShardBegin(args, call, contribution, function);
  }
  int VocabParallelFinish(const lg_vocab_parallel_args& args, const void* gathered, const char* function) override {
    const int ordinal = ShardDeviceOf(args, gathered);
    if (const int code = CheckShardDevices(args, gathered, "gathered", ordinal, function); code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    Call call;
    if (const int code = Begin(ordinal, args.loss.stream, function, &call); code != LG_OK) return code;
    return EnqueueShardFinish(args, &call, gathered, function);
  }
  int VocabParallelCrossEntropy(const lg_vocab_parallel_args& args, void* communicator, void* gathered, const char* function) override {
    const int ordinal = ShardDeviceOf(args, gathered);
    if (const int code = CheckShardDevices(args, gathered, "gathered", ordinal, function); code != LG_OK) return code;
    const Nccl* const nccl = Nccl::Get(function);
    if (nccl == nullptr) return LG_UNAVAILABLE;
    if (const int code = CheckCommunicator(*nccl, args, communicator, ordinal, function); code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    Call call;
    if (const int code = Begin(ordinal, args.loss.stream, function, &call); code != LG_OK) return code;
    if (!call.capturing() && agreements_.AwaitFirstCall(communicator)) {
      if (const int code = agreements_.Ask(*nccl, args, 0, communicator, function); code != LG_OK) return code;
    }
    unsigned char* const own = static_cast<unsigned char*>(gathered) + args.group_index * args.gathered_stride;
    if (const int code = EnqueueShardBegin(args, call, own, function); code != LG_OK) return code;
    const int error = nccl->AllGather(own, gathered, static_cast<std::size_t>(args.gathered_stride / 8), Nccl::kUint64, communicator, call.stream);
    if (error != 0) return nccl->SetError(error, function, "ncclAllGather");
    return EnqueueShardFinish(args, &call, gathered, function);
  }
  int MakeUniqueId(void* id, const char* function) override {
    const Nccl* const nccl = Nccl::Get(function);
    if (nccl == nullptr) return LG_UNAVAILABLE;
    const int error = nccl->GetUniqueId(static_cast<NcclUniqueId*>(id));
    return error == 0 ? LG_OK : nccl->SetError(error, function, "ncclGetUniqueId");
  }
  int OpenCommunicator(const void* id, std::int32_t group_size, std::int32_t group_index, void** communicator, const char* function) override {
    const Nccl* const nccl = Nccl::Get(function);
    if (nccl == nullptr) return LG_UNAVAILABLE;
    NcclUniqueId copy;
    std::memcpy(&copy, id, sizeof copy);
    const int error = nccl->CommInitRank(communicator, group_size, copy, group_index);
    if (error != 0) return nccl->SetError(error, function, "ncclCommInitRank");
    agreements_.Opened(*communicator);
    return LG_OK;
  }
  int CloseCommunicator(void* communicator, const char* function) override {
    const Nccl* const nccl = Nccl::Get(function);
    if (nccl == nullptr) return LG_UNAVAILABLE;
    agreements_.Closed(communicator);
    const int error = nccl->CommDestroy(communicator);
    return error == 0 ? LG_OK : nccl->SetError(error, function, "ncclCommDestroy");
  }

 private:
  static int ShardDeviceOf(const lg_vocab_parallel_args& args, const void* exchanged) {
    const int ordinal = args.loss.rows > 0 ? cuda::DeviceOf(args.loss.logits) : -1;
    return ordinal >= 0 ? ordinal : cuda::DeviceOf(exchanged);
  }
  // Of the same group as the arguments, and not known to have failed: then a collective would wait for nobody.
  static int CheckCommunicator(const Nccl& nccl, const lg_vocab_parallel_args& args, void* communicator, int ordinal, const char* function) {
    int ranks = 0, rank = 0, device = 0, state = 0;
    if (const int error = nccl.CommGetAsyncError(communicator, &state); error != 0) return nccl.SetError(error, function, "communicator");
    if (state != 0) return nccl.SetError(state, function, "communicator");
    if (const int error = nccl.CommCount(communicator, &ranks); error != 0) return nccl.SetError(error, function, "communicator");
    if (const int error = nccl.CommUserRank(communicator, &rank); error != 0) return nccl.SetError(error, function, "communicator");
    if (const int error = nccl.CommCuDevice(communicator, &device); error != 0) return nccl.SetError(error, function, "communicator");
    const auto differs = [function](const char* what, int expected, int got) {
      return SetError(LG_INVALID_ARGUMENT, "%s: communicator: expected %s %d, got %d", function, what, expected, got);
    };
    if (ranks != args.group_size) return differs("one of group_size ranks,", args.group_size, ranks);
    if (rank != args.group_index) return differs("this rank to be group_index", args.group_index, rank);
    if (device != ordinal) return differs("one of the tensors' device", ordinal, device);
    return LG_OK;
  }
  int EnqueueShardBegin(const lg_vocab_parallel_args& args, const Call& call, void* contribution, const char* function) {
    if (args.loss.gauge != nullptr) args.loss.gauge->NoteLossCall();  // who hangs in the exchange has entered the step
    ShardLaunch launch = MakeShardLaunch(args);
    launch.contribution = static_cast<unsigned char*>(contribution);
    const cudaError_t error = LaunchShardBegin(call.device->facts(), args.loss.logits_dtype, launch, call.stream);
    return error == cudaSuccess ? LG_OK : SetCudaError(error, function, "launch");
  }
  int EnqueueShardFinish(const lg_vocab_parallel_args& args, Call* call, const void* gathered, const char* function) {
    ShardLaunch launch = MakeShardLaunch(args);
    launch.gathered = static_cast<const unsigned char*>(gathered);
    launch.gathered_stride = args.gathered_stride;
    if (const int code = Equip(args.loss, LossPurpose::kForward, function, call, &launch.loss); code != LG_OK) return code;
    const cudaError_t error = LaunchShardFinish(call->device->facts(), args.loss.logits_dtype, launch, call->stream);
    if (error != cudaSuccess) return SetCudaError(error, function, "launch");
    End(*call, launch.loss);
    return LG_OK;
  }

#ifdef LOSSGAUGE_WITH_CUBLASLT
  // `sharded`: null, or the call of which `args` is a part.
  int RunLinear(const lg_linear_cross_entropy_args& args, const ShardedLinear* sharded, LossPurpose purpose, const char* function) {
    const int ordinal = LinearDeviceOf(args);
    if (const int code = CheckLinearDevices(args, ordinal, function); code != LG_OK) return code;
    LinearCall linear;
    linear.sharded = sharded;
    if (sharded != nullptr && sharded->communicator != nullptr) {
      linear.nccl = Nccl::Get(function);
      if (linear.nccl == nullptr) return LG_UNAVAILABLE;
      if (const int code = CheckCommunicator(*linear.nccl, sharded->shard, sharded->communicator, ordinal, function); code != LG_OK) return code;
    }
    const ScopedDevice current(ordinal);
    Call call;
    if (const int code = BeginLinearCall(args, ordinal, function, &call, &linear); code != LG_OK) return code;
    if (linear.nccl != nullptr && !call.capturing() && agreements_.AwaitFirstCall(sharded->communicator)) {
      if (const int code = agreements_.Ask(*linear.nccl, sharded->shard, linear.plan.chunk_rows, sharded->communicator, function); code != LG_OK) return code;
    }
    CrossEntropyLaunch loss = MakeLaunch(args.loss, purpose);
    // Of what nothing is divided by, the record tells nothing.
    const bool divides = args.loss.reduction == LG_MEAN && (args.loss.loss != nullptr || WantsGradient(args));
    loss.count_denominator = divides && loss.denominator == 0. && loss.denominator_pointer == nullptr;
    loss.present |= LinearPresent(linear);
    if (const int code = Equip(args.loss, purpose, function, &call, &loss); code != LG_OK) return code;
    const int code = EnqueueLinear(linear, loss);
    End(call, loss);
    return code;
  }
  int TuneProducts(const lg_linear_cross_entropy_args& args, const ShardedLinear* sharded, const char* function) {
    const int ordinal = LinearDeviceOf(args);
    if (const int code = CheckLinearDevices(args, ordinal, function); code != LG_OK) return code;
    const ScopedDevice current(ordinal);
    Call call;
    LinearCall linear;
    linear.sharded = sharded;
    if (const int code = BeginLinearCall(args, ordinal, function, &call, &linear); code != LG_OK) return code;
    if (call.capturing()) return SetError(LG_FAILED_PRECONDITION, "%s: stream: expected one that is not being captured: timing waits", function);
    return TuneLinear(linear);
  }
  static int LinearDeviceOf(const lg_linear_cross_entropy_args& args) { return cuda::DeviceOf(args.rows > 0 ? args.hidden : args.weight); }
  int BeginLinearCall(const lg_linear_cross_entropy_args& args, int ordinal, const char* function, Call* call, LinearCall* linear) {
    if (const int code = Begin(ordinal, args.loss.stream, function, call); code != LG_OK) return code;
    return BeginLinear(args, call->device, call->capturing(), function, linear);
  }
#else
  static int RunLinear(const lg_linear_cross_entropy_args&, const ShardedLinear*, LossPurpose, const char* function) { return NoProducts(function); }
  static int TuneProducts(const lg_linear_cross_entropy_args&, const ShardedLinear*, const char* function) { return NoProducts(function); }
  static int NoProducts(const char* function) {
    return SetError(LG_UNIMPLEMENTED, "%s: hidden: expected host memory, as this library was built without cublasLt.h; got a device's", function);
  }
#endif

  int Begin(int ordinal, void* stream, const char* function, Call* call) {
    call->stream = static_cast<cudaStream_t>(stream);
    cudaError_t error = CaptureId(call->stream, &call->capture_id);
    if (error != cudaSuccess) return SetCudaError(error, function, "stream");
    if (call->capturing() && !known_[ordinal].load(std::memory_order_acquire)) {
      return SetError(LG_FAILED_PRECONDITION, "%s: stream: the first call on a device allocates and cannot be captured; make one call before", function);
    }
    if (const int code = CheckStreamDevice(*call, ordinal, function); code != LG_OK) return code;
    call->device = Device::Get(ordinal, &error);
    if (call->device == nullptr) return SetCudaError(error, function, "device");
    known_[ordinal].store(true, std::memory_order_release);
    return LG_OK;
  }
  // A launch would fail there, but the stream's workspace would have been taken on its device before. What is being captured is not asked.
  static int CheckStreamDevice(const Call& call, int ordinal, const char* function) {
    const bool is_current_devices = call.stream == nullptr || call.stream == cudaStreamLegacy || call.stream == cudaStreamPerThread;
    if (is_current_devices || call.capturing()) return LG_OK;
    int device = ordinal;
    if (const cudaError_t error = cudaStreamGetDevice(call.stream, &device); error != cudaSuccess) return SetCudaError(error, function, "stream");
    if (device == ordinal) return LG_OK;
    return SetError(LG_INVALID_ARGUMENT, "%s: stream: expected one of device %d, where the tensors are, got one of device %d", function, ordinal, device);
  }
  // Scratch and counters of a launch. Without a gauge, or where the gauge cannot count, launch->counters stays null.
  int Equip(const lg_cross_entropy_args& args, LossPurpose purpose, const char* function, Call* call, CrossEntropyLaunch* launch) {
    launch->scratch = call->device->Scratch(call->capturing());
    if (launch->scratch == nullptr) {
      return SetError(LG_RESOURCE_EXHAUSTED, "%s: more loss calls were captured into graphs than there is scratch for", function);
    }
    if (args.gauge == nullptr || purpose == LossPurpose::kBackward) return LG_OK;
    args.gauge->NoteLossCall();
    const int block = args.gauge->BlockIndexForLaunch(args.block);
    if (block < 0) return LG_OK;
    call->gauge = GaugeOn(args.gauge, call->device, call->capturing());
    if (call->gauge != nullptr) {
      launch->counters = call->gauge->BeginLaunch(block, call->stream, call->capture_id);
      launch->token_bytes = call->gauge->token_bytes();
      launch->token_bytes_size = args.gauge->vocab_size();
      if (launch->token_bytes != nullptr) launch->present |= LG_HAS_TARGET_BYTES;
    }
    if (launch->counters == nullptr) args.gauge->CountDropped();
    return LG_OK;
  }
  static void End(const Call& call, const CrossEntropyLaunch& launch) {
    if (launch.counters != nullptr) call.gauge->EndLaunch(call.stream, call.capture_id);
  }

  std::atomic<bool> known_[64]{};
  Agreements agreements_;
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
