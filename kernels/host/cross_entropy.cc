// The loss calls of the C ABI: arguments are checked here, all of them, before
// a byte is written; then the backend runs.
#include <cstddef>

#include "kernels/cpu/job.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/variant.h"
#include "kernels/host/counter_block.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/host_tensors.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

void RunScaleRows(void* context, int, std::int64_t begin, std::int64_t end) {
  cpu::ChosenVariant().scale(*static_cast<const cpu::ScaleJob*>(context), begin, end);
}

int Run(const lg_cross_entropy_args& args, LossPurpose purpose) {
  cpu::CrossEntropyJob job = MakeCpuJob(args);
  CounterBlock* block = AttachGauge(args, purpose, &job);
  if (purpose == LossPurpose::kObserve && block == nullptr) return LG_OK;
  const Denominator denominator = DenominatorOf(args, job, purpose);
  job.denominator = denominator.value;
  job.stream_grad = StreamsGradient(args);
  const int threads = cpu::ThreadsFor(args.threads, args.rows, args.columns);
  CpuLaunch launch;
  launch.variant = &cpu::ChosenVariant();
  launch.job = &job;
  const CpuScratch scratch(job, threads, &launch);
  if (args.rows > 0) cpu::ForRows(threads, args.rows, args.columns, &launch, RunCrossEntropyRows);

  LaunchCounters total;
  for (int thread = 0; thread < threads; ++thread) Merge(launch.threads[thread].counters, &total);
  FinishLaunch(args, job, denominator, total, block);
  return LG_OK;
}

int CheckAndRun(const lg_cross_entropy_args* given, LossPurpose purpose, const char* function) noexcept {
  lg_cross_entropy_args args;
  if (const int code = ReadArguments(given, function, &args); code != LG_OK) return code;
  if (const int code = CheckArguments(args, function); code != LG_OK) return code;
  if (purpose == LossPurpose::kBackward && args.grad_logits == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: grad_logits: expected where to write the gradient, got NULL", function);
  }
  if (purpose == LossPurpose::kObserve &&
      (args.grad_logits != nullptr || args.losses != nullptr || args.log_z != nullptr || args.loss != nullptr)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: grad_logits, losses, log_z, loss: expected NULL (it "
                    "has no outputs), got a pointer",
                    function);
  }
  if (const int code = CheckOverlaps(args, function); code != LG_OK) return code;
  if (args.gauge != nullptr && args.gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  if (DeviceBackend* backend = FindDeviceBackend()) {
    const void* where = args.rows > 0 ? args.logits : args.loss;
    if (backend->DeviceOf(where) >= 0) return Guarded(function, kDeviceBookkeeping, [&] { return backend->CrossEntropy(args, purpose, function); });
  }
  if (const int code = CheckHostTensors(args, function); code != LG_OK) return code;
  return Guarded(function, "the scratch of a row for each thread", [&] { return Run(args, purpose); });
}

}  // namespace
}  // namespace lossgauge

extern "C" {

const char* lg_cpu_variant(void) { return lossgauge::cpu::ChosenVariant().name; }

void lg_cross_entropy_args_init(lg_cross_entropy_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultArguments();
}

int lg_cross_entropy(const lg_cross_entropy_args* args) {
  return lossgauge::CheckAndRun(args, lossgauge::LossPurpose::kForward, "lg_cross_entropy");
}

int lg_cross_entropy_backward(const lg_cross_entropy_args* args) {
  return lossgauge::CheckAndRun(args, lossgauge::LossPurpose::kBackward, "lg_cross_entropy_backward");
}

int lg_observe_logits(const lg_cross_entropy_args* args) {
  return lossgauge::CheckAndRun(args, lossgauge::LossPurpose::kObserve, "lg_observe_logits");
}

void lg_scale_gradient_args_init(lg_scale_gradient_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultScaleArguments();
}

int lg_scale_gradient(const lg_scale_gradient_args* given) {
  lg_scale_gradient_args args;
  if (const int code = lossgauge::ReadScaleArguments(given, &args); code != LG_OK) return code;
  if (args.rows == 0) return LG_OK;
  if (lossgauge::DeviceBackend* backend = lossgauge::FindDeviceBackend()) {
    if (backend->DeviceOf(args.grad) >= 0) {
      return lossgauge::Guarded("lg_scale_gradient", lossgauge::kDeviceBookkeeping, [&] { return backend->ScaleGradient(args); });
    }
  }
  if (const int code = lossgauge::CheckHostTensors(args, "lg_scale_gradient"); code != LG_OK) return code;
  lossgauge::cpu::ScaleJob job = lossgauge::MakeScaleJob(args);
  const int threads = lossgauge::cpu::ThreadsFor(args.threads, args.rows, args.columns);
  lossgauge::cpu::ForRows(threads, args.rows, args.columns, &job, lossgauge::RunScaleRows);
  return LG_OK;
}

}  // extern "C"
