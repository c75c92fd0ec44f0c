// Where tensors in device memory go. Exactly one of kernels/cuda/backend.cc and kernels/host/no_device_backend.cc is linked.
#ifndef LOSSGAUGE_KERNELS_HOST_DEVICE_BACKEND_H_
#define LOSSGAUGE_KERNELS_HOST_DEVICE_BACKEND_H_

#include <cstdint>
#include <memory>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_abi.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge {

class Gauge;
struct Observed;
struct ShardedLinear;  // vocab_parallel_linear_arguments.h

// What a loss call does, once its arguments stand.
enum class LossPurpose { kForward, kBackward, kObserve };

// A value handed over for the step: given by the host, or where to read it when the step ends.
struct HandedOver {
  bool given = false;
  double value = 0;
  const void* pointer = nullptr;
  std::int32_t dtype = LG_FP64;  // of *pointer
};

// What a step ends with, beside its counters.
struct StepEnd {
  HandedOver grad_norm, learning_rate, denominator;
  bool reported_given = false;
  lg_reported_loss reported{};
  std::uint64_t phase = LG_PHASE_TRAIN;
  std::int64_t set_step = -1;  // number of the step if the host set it since the last publish; -1 = count on
};

// The device's side of a gauge: counters, totals and step number in device memory, the ring mapped for the device's writes. Loss calls come from any
// thread, Publish from one.
class DeviceGauge {
 public:
  virtual ~DeviceGauge() = default;
  // Enqueues the fold behind everything that loss calls have enqueued since the last one; their next launches wait for it. Returns an lg_code.
  virtual int Publish(const StepEnd& end, void* stream) = 0;
  // Adds what the job counted itself to the step, on `stream`. From any thread. Returns an lg_code.
  virtual int Observe(std::int32_t block, const Observed& observed, void* stream) = 0;
  virtual int ordinal() const noexcept = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  // Ordinal of the device that holds `pointer`; -1 for host memory, managed memory and pointers that no driver knows.
  virtual int DeviceOf(const void* pointer) noexcept = 0;
  // Of checked arguments with tensors on a device. Return an lg_code; nothing is launched on failure.
  virtual int CrossEntropy(const lg_cross_entropy_args& args, LossPurpose purpose, const char* function) = 0;
  virtual int ScaleGradient(const lg_scale_gradient_args& args) = 0;
  // Of checked arguments whose logits_dtype is resolved (linear_arguments.h), hidden or weight on a device. purpose: kForward, or kBackward, for which
  // args.loss has no gauge and no outputs.
  virtual int LinearCrossEntropy(const lg_linear_cross_entropy_args& args, LossPurpose purpose, const char* function) = 0;
  // Inputs, targets and workspace may be null. `plan` is written whole, on LG_OK.
  virtual int PlanLinear(const lg_linear_cross_entropy_args& args, const char* function, lg_linear_plan* plan) = 0;
  virtual int PrepareLinear(const lg_linear_cross_entropy_args& args, const char* function) = 0;
  // Of checked arguments, with contribution or gathered, or else the logits, on a device. The third: begin, an all-gather over `communicator` (an ncclComm_t)
  // within `gathered`, finish; gathered_stride is a contribution's bytes.
  virtual int VocabParallelBegin(const lg_vocab_parallel_args& args, void* contribution, const char* function) = 0;
  virtual int VocabParallelFinish(const lg_vocab_parallel_args& args, const void* gathered, const char* function) = 0;
  virtual int VocabParallelCrossEntropy(const lg_vocab_parallel_args& args, void* communicator, void* gathered, const char* function) = 0;
  // Of checked arguments whose logits_dtype is resolved, hidden or weight on a device. As LinearCrossEntropy, PlanLinear and PrepareLinear.
  virtual int VocabParallelLinear(const ShardedLinear& call, const char* function) = 0;
  virtual int PlanVocabParallelLinear(const ShardedLinear& call, const char* function, lg_linear_plan* plan) = 0;
  virtual int PrepareVocabParallelLinear(const ShardedLinear& call, const char* function) = 0;
  // An ncclComm_t on the current device, from the 128 bytes that NCCL makes up on one rank for all.
  virtual int MakeUniqueId(void* id, const char* function) = 0;
  virtual int OpenCommunicator(const void* id, std::int32_t group_size, std::int32_t group_index, void** communicator, const char* function) = 0;
  virtual int CloseCommunicator(void* communicator, const char* function) = 0;
  // True while `stream` is being captured into a graph.
  virtual bool IsCapturing(void* stream) noexcept = 0;
  // Gives the gauge counters on the device of `memory`, or of the stream if that is null, unless it has some on a device already. Returns an lg_code.
  virtual int Adopt(Gauge* gauge, void* stream, const void* memory) = 0;
  // Of checked arguments with tokens on a device.
  virtual int PackLabels(const lg_pack_labels_args& args) = 0;
};

// nullptr: built without one, or no driver or device on this machine.
DeviceBackend* FindDeviceBackend() noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_DEVICE_BACKEND_H_
