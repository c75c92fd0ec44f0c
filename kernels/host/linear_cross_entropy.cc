// The linear cross-entropy calls of the C ABI: arguments are checked here, all of them, before a byte is written; then the backend runs.
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/host_tensors.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/linear_cpu.h"
#include "kernels/host/linear_entry.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using Args = lg_linear_cross_entropy_args;

int ReadAndCheck(const Args* given, LinearPurpose purpose, const char* function, Args* args, DeviceBackend** backend) {
  if (const int code = ReadLinearArguments(given, function, args); code != LG_OK) return code;
  if (const int code = CheckLinearArguments(*args, purpose, function); code != LG_OK) return code;
  *backend = LinearBackendOf(*args);
  ResolveLogitsType(args, *backend != nullptr ? args->dtype : static_cast<std::int32_t>(LG_FP32));
  return *backend == nullptr ? CheckHostTensors(*args, function) : static_cast<int>(LG_OK);
}

int Run(const Args* given, LossPurpose purpose, const char* function) noexcept {
  Args args;
  DeviceBackend* backend = nullptr;
  const LinearPurpose checked_for = purpose == LossPurpose::kBackward ? LinearPurpose::kBackward : LinearPurpose::kForward;
  if (const int code = ReadAndCheck(given, checked_for, function, &args, &backend); code != LG_OK) return code;
  if (args.loss.gauge != nullptr && args.loss.gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  if (purpose == LossPurpose::kBackward) {
    args.loss.gauge = nullptr;
    args.loss.losses = args.loss.log_z = args.loss.loss = nullptr;
  }
  if (backend != nullptr) return Guarded(function, kDeviceBookkeeping, [&] { return backend->LinearCrossEntropy(args, purpose, function); });
  return Guarded(function, "the workspace; lg_linear_cross_entropy_plan tells its size, memory_budget bounds it",
                 [&] { return RunLinearOnCpu(args, purpose, function); });
}

int Plan(const Args* given, lg_linear_plan* plan) noexcept {
  const char* function = "lg_linear_cross_entropy_plan";
  return WriteLinearPlan(plan, function, [&](lg_linear_plan* made) {
    Args args;
    DeviceBackend* backend = nullptr;
    if (const int code = ReadAndCheck(given, LinearPurpose::kPlan, function, &args, &backend); code != LG_OK) return code;
    if (backend == nullptr) return PlanLinearOnCpu(args, function, made);
    return Guarded(function, kDeviceBookkeeping, [&] { return backend->PlanLinear(args, function, made); });
  });
}

int Prepare(const Args* given) noexcept {
  const char* function = "lg_linear_cross_entropy_prepare";
  Args args;
  DeviceBackend* backend = nullptr;
  if (const int code = ReadAndCheck(given, LinearPurpose::kPrepare, function, &args, &backend); code != LG_OK) return code;
  if (backend != nullptr) {
    if (const int code = CheckLinearArguments(args, LinearPurpose::kPrepareOnDevice, function); code != LG_OK) return code;
    return Guarded(function, kDeviceBookkeeping, [&] { return backend->PrepareLinear(args, function); });
  }
  lg_linear_plan plan{};  // nothing to choose and nothing kept on the CPU, but what a call would refuse is refused
  return PlanLinearOnCpu(args, function, &plan);
}

}  // namespace
}  // namespace lossgauge

extern "C" {

void lg_linear_cross_entropy_args_init(lg_linear_cross_entropy_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultLinearArguments();
}

int lg_linear_cross_entropy(const lg_linear_cross_entropy_args* args) {
  return lossgauge::Run(args, lossgauge::LossPurpose::kForward, "lg_linear_cross_entropy");
}

int lg_linear_cross_entropy_backward(const lg_linear_cross_entropy_args* args) {
  return lossgauge::Run(args, lossgauge::LossPurpose::kBackward, "lg_linear_cross_entropy_backward");
}

int lg_linear_cross_entropy_plan(const lg_linear_cross_entropy_args* args, lg_linear_plan* plan) { return lossgauge::Plan(args, plan); }

int lg_linear_cross_entropy_prepare(const lg_linear_cross_entropy_args* args) { return lossgauge::Prepare(args); }

}  // extern "C"
