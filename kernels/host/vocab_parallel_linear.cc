// The vocabulary-parallel linear calls of the C ABI: arguments are checked here, all of them, before a byte is written; then the backend runs.
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/host_tensors.h"
#include "kernels/host/linear_entry.h"
#include "kernels/host/vocab_parallel_linear_arguments.h"
#include "kernels/host/vocab_parallel_linear_cpu.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_linear_args;

int ReadAndCheck(const Args* given, LinearPurpose purpose, const char* function, ShardedLinear* call, DeviceBackend** backend) {
  if (const int code = ReadShardedLinear(given, function, call); code != LG_OK) return code;
  if (const int code = CheckShardedLinear(*call, purpose, function); code != LG_OK) return code;
  *backend = LinearBackendOf(call->linear);
  ResolveLogitsType(call, *backend != nullptr ? call->linear.dtype : static_cast<std::int32_t>(LG_FP32));
  if (*backend != nullptr) return LG_OK;
  if (const int code = CheckHostTensors(call->linear, function); code != LG_OK) return code;
  if (call->communicator != nullptr) {
    return SetError(LG_UNIMPLEMENTED, "%s: communicator: expected NULL for tensors in host memory (NCCL exchanges memory of devices only), got one", function);
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
  return Guarded(function, "the workspace; lg_vocab_parallel_linear_plan tells its size", [&] { return RunShardedLinearOnCpu(call, function); });
}

int Plan(const Args* given, lg_linear_plan* plan) noexcept {
  const char* function = "lg_vocab_parallel_linear_plan";
  return WriteLinearPlan(plan, function, [&](lg_linear_plan* made) {
    ShardedLinear call;
    DeviceBackend* backend = nullptr;
    if (const int code = ReadAndCheck(given, LinearPurpose::kPlan, function, &call, &backend); code != LG_OK) return code;
    if (backend == nullptr) return PlanShardedLinearOnCpu(call, function, made);
    return Guarded(function, kDeviceBookkeeping, [&] { return backend->PlanVocabParallelLinear(call, function, made); });
  });
}

int Prepare(const Args* given) noexcept {
  const char* function = "lg_vocab_parallel_linear_prepare";
  ShardedLinear call;
  DeviceBackend* backend = nullptr;
  if (const int code = ReadAndCheck(given, LinearPurpose::kPrepare, function, &call, &backend); code != LG_OK) return code;
  if (backend != nullptr) {
    if (const int code = CheckShardedLinear(call, LinearPurpose::kPrepareOnDevice, function); code != LG_OK) return code;
    return Guarded(function, kDeviceBookkeeping, [&] { return backend->PrepareVocabParallelLinear(call, function); });
  }
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
