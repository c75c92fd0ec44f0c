// The vocabulary-parallel linear calls of the C ABI: arguments are checked here, all of them, before a byte is written; then the backend runs.
#include <cstring>

#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/host_tensors.h"
#include "kernels/host/vocab_parallel_linear_arguments.h"
#include "kernels/host/vocab_parallel_linear_cpu.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_linear_args;

// The device that the tensors are on; nullptr = host memory.
DeviceBackend* BackendOf(const ShardedLinear& call) {
  DeviceBackend* backend = FindDeviceBackend();
  if (backend == nullptr) return nullptr;
  const void* const places[] = {call.linear.hidden, call.linear.weight, call.linear.grad_weight, call.linear.loss.loss};
  for (const void* place : places) {
    if (place != nullptr) return backend->DeviceOf(place) >= 0 ? backend : nullptr;
  }
  return nullptr;
}

int ReadAndCheck(const Args* given, LinearPurpose purpose, const char* function, ShardedLinear* call, DeviceBackend** backend) {
  if (const int code = ReadShardedLinear(given, function, call); code != LG_OK) return code;
  if (const int code = CheckShardedLinear(*call, purpose, function); code != LG_OK) return code;
  *backend = BackendOf(*call);
  ResolveLogitsType(call, *backend != nullptr ? call->linear.dtype : static_cast<std::int32_t>(LG_FP32));
  if (*backend != nullptr) return LG_OK;
  if (call->communicator != nullptr) {
    return SetError(LG_UNIMPLEMENTED, "%s: communicator: expected NULL for tensors in host memory (NCCL exchanges memory of devices only), got one", function);
  }
  if (call->linear.loss.stream != nullptr) {
    return SetError(LG_UNIMPLEMENTED, "%s: stream: expected NULL for tensors in host memory, got a stream", function);
  }
  return LG_OK;
}

int Run(const Args* given) noexcept {
  const char* function = "lg_vocab_parallel_linear_cross_entropy";
  ShardedLinear call;
  DeviceBackend* backend = nullptr;
  if (const int code = ReadAndCheck(given, LinearPurpose::kForward, function, &call, &backend); code != LG_OK) return code;
  Gauge* const gauge = call.linear.loss.gauge;
  if (gauge != nullptr && gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  if (backend != nullptr) return Guarded(function, kDeviceBookkeeping, [&] { return backend->VocabParallelLinear(call, function); });
  if (const int code = CheckHostTensors(call.linear, function); code != LG_OK) return code;
  return Guarded(function, "the workspace; lg_vocab_parallel_linear_plan tells its size", [&] { return RunShardedLinearOnCpu(call, function); });
}

int Plan(const Args* given, lg_linear_plan* plan) noexcept {
  const char* function = "lg_vocab_parallel_linear_plan";
  std::size_t size = 0;
  if (plan != nullptr) std::memcpy(&size, plan, sizeof size);
  if (size < sizeof size || size > 64 * 1024) {
    return SetError(LG_INVALID_ARGUMENT, "%s: plan.struct_size: expected sizeof(lg_linear_plan), got %zu%s", function, size, plan == nullptr ? " (NULL)" : "");
  }
  ShardedLinear call;
  DeviceBackend* backend = nullptr;
  if (const int code = ReadAndCheck(given, LinearPurpose::kPlan, function, &call, &backend); code != LG_OK) return code;
  lg_linear_plan made{};
  const auto plan_on_device = [&] { return backend->PlanVocabParallelLinear(call, function, &made); };
  const int code = backend != nullptr ? Guarded(function, kDeviceBookkeeping, plan_on_device) : PlanShardedLinearOnCpu(call, function, &made);
  if (code != LG_OK) return code;
  made.struct_size = size;
  std::memcpy(plan, &made, size < sizeof made ? size : sizeof made);
  return LG_OK;
}

int Prepare(const Args* given) noexcept {
  const char* function = "lg_vocab_parallel_linear_prepare";
  ShardedLinear call;
  DeviceBackend* backend = nullptr;
  if (const int code = ReadAndCheck(given, LinearPurpose::kPrepare, function, &call, &backend); code != LG_OK) return code;
  if (backend != nullptr) return Guarded(function, kDeviceBookkeeping, [&] { return backend->PrepareVocabParallelLinear(call, function); });
  lg_linear_plan plan{};  // nothing to choose and nothing kept on the CPU, but what a call would refuse is refused
  return PlanShardedLinearOnCpu(call, function, &plan);
}

}  // namespace
}  // namespace lossgauge

extern "C" {

void lg_vocab_parallel_linear_args_init(lg_vocab_parallel_linear_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultShardedLinearArguments();
}

int lg_vocab_parallel_linear_cross_entropy(const lg_vocab_parallel_linear_args* args) { return lossgauge::Run(args); }

int lg_vocab_parallel_linear_plan(const lg_vocab_parallel_linear_args* args, lg_linear_plan* plan) { return lossgauge::Plan(args, plan); }

int lg_vocab_parallel_linear_prepare(const lg_vocab_parallel_linear_args* args) { return lossgauge::Prepare(args); }

}  // extern "C"
