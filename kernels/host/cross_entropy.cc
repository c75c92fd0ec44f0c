// The loss calls of the C ABI: arguments are checked here, all of them, before
// a byte is written; then the backend runs.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>

#include "kernels/cpu/job.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/variant.h"
#include "kernels/host/counter_block.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

// What one thread of a launch owns, on cache lines of its own.
struct alignas(64) CpuThread {
  LaunchCounters counters;
  cpu::RowScratch scratch{};
};

struct CpuLaunch {
  const cpu::Variant* variant;
  const cpu::CrossEntropyJob* job;
  CpuThread threads[cpu::kMostThreads];
};

// One row of scratch for each thread, taken before anything is written, so that
// a launch without memory has done nothing. Kept for the next launch: a
// training step shall not pay for fresh pages.
class CpuScratch {
 public:
  CpuScratch(const cpu::CrossEntropyJob& job, int threads, CpuLaunch* launch) {
    const auto columns = static_cast<std::size_t>(cpu::ScratchColumns(job.vocab_size));
    const std::size_t doubles = cpu::IsPlain(job) ? 0 : columns, floats = (job.grad != nullptr ? columns : 0) + doubles;
    const std::size_t bytes = doubles * sizeof(double) + floats * sizeof(float);
    if (bytes == 0) return;
    memory_ = cpu::TakeScratch(bytes * static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      unsigned char* own = memory_.data + bytes * static_cast<std::size_t>(i);
      auto* logits = reinterpret_cast<double*>(own);
      auto* exponentials = reinterpret_cast<float*>(own + doubles * sizeof(double));
      launch->threads[i].scratch = {exponentials, logits, exponentials + (floats - doubles)};
    }
  }
  CpuScratch(const CpuScratch&) = delete;
  CpuScratch& operator=(const CpuScratch&) = delete;
  ~CpuScratch() { cpu::KeepScratch(memory_); }

 private:
  cpu::Scratch memory_;
};

void RunCrossEntropyRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<CpuLaunch*>(context);
  CpuThread& own = launch.threads[thread];
  launch.variant->cross_entropy(*launch.job, begin, end, own.scratch, &own.counters);
}

void RunScaleRows(void* context, int, std::int64_t begin, std::int64_t end) {
  cpu::ChosenVariant().scale(*static_cast<const cpu::ScaleJob*>(context), begin, end);
}

// Unmasked, in-range targets: what a mean divides by when the caller gives no
// denominator.
std::int64_t CountUnmasked(const cpu::CrossEntropyJob& job, std::int64_t rows) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t target;
    const unsigned char* from = job.targets + row * job.target_stride_bytes;
    if (job.targets_are_int64) {
      std::memcpy(&target, from, sizeof target);
    } else {
      std::int32_t narrow;
      std::memcpy(&narrow, from, sizeof narrow);
      target = narrow;
    }
    if (target != job.ignore_index && target >= 0 && target < job.vocab_size) ++count;
  }
  return count;
}

// Bits of `present` that a launch of this kind can vouch for.
std::uint64_t PresentBits(const cpu::CrossEntropyJob& job) {
  std::uint64_t present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE;
  if (job.grad != nullptr) present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
  if (job.token_bytes != nullptr) present |= LG_HAS_TARGET_BYTES;
  return present;
}

int Run(const lg_cross_entropy_args& args, LossPurpose purpose) {
  cpu::CrossEntropyJob job = MakeCpuJob(args);
  Gauge* gauge = purpose == LossPurpose::kBackward ? nullptr : args.gauge;
  CounterBlock* block = nullptr;
  if (gauge != nullptr) {
    gauge->NoteLossCall();
    block = gauge->BlockForLaunch(args.block);
    if (block != nullptr) {
      job.signals = true;
      job.token_bytes = gauge->token_bytes();
      job.token_bytes_size = gauge->vocab_size();
    }
  }
  if (purpose == LossPurpose::kObserve && block == nullptr) return LG_OK;

  // The denominator of the loss, and the one that this launch vouches for.
  double denominator = 1;
  double announced = 0;
  if (args.reduction == LG_MEAN) {
    const bool given = args.denominator_pointer != nullptr || args.denominator != 0;
    denominator = args.denominator_pointer != nullptr ? *args.denominator_pointer
                  : args.denominator != 0             ? args.denominator
                                                      : static_cast<double>(CountUnmasked(job, args.rows));
    if (given || purpose != LossPurpose::kObserve) announced = denominator;
  }
  job.denominator = denominator;

  constexpr double kBytesWorthStreaming = 16 << 20;
  job.stream_grad = job.grad != nullptr && job.grad != job.logits &&
                    static_cast<double>(args.rows) * static_cast<double>(args.columns) * 4 > kBytesWorthStreaming;
  const int threads = cpu::ThreadsFor(args.threads, args.rows, args.columns);
  CpuLaunch launch;
  launch.variant = &cpu::ChosenVariant();
  launch.job = &job;
  const CpuScratch scratch(job, threads, &launch);
  if (args.rows > 0) cpu::ForRows(threads, args.rows, args.columns, &launch, RunCrossEntropyRows);

  LaunchCounters total;
  for (int thread = 0; thread < threads; ++thread) Merge(launch.threads[thread].counters, &total);
  if (args.loss != nullptr) {
    const double sum = lg_fixed128_to_double(total.objective_sum);
    if (total.nonfinite_rows != 0) {
      *args.loss = std::nanf("");
    } else if (total.unmasked_tokens == 0) {
      *args.loss = 0;  // whatever the denominator: 0 / 0 must not be NaN
    } else {
      *args.loss = static_cast<float>(sum / denominator);
    }
  }
  if (block != nullptr) {
    total.present = PresentBits(job);
    total.denominator = std::isfinite(announced) && announced > 0 ? announced : 0;
    block->Add(total);
  }
  return LG_OK;
}

int Guarded(const lg_cross_entropy_args* given, LossPurpose purpose, const char* function) noexcept {
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
  if (args.gauge != nullptr && args.gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  if (DeviceBackend* backend = FindDeviceBackend()) {
    const void* where = args.rows > 0 ? args.logits : args.loss;
    if (backend->DeviceOf(where) >= 0) return backend->CrossEntropy(args, purpose, function);
  }
  if (args.stream != nullptr) {
    return SetError(LG_UNIMPLEMENTED, "%s: stream: expected NULL for tensors in host memory, got a stream", function);
  }
  try {
    return Run(args, purpose);
  } catch (const std::bad_alloc&) {
    return SetError(LG_RESOURCE_EXHAUSTED,
                    "%s: no memory for the scratch of one row (%lld columns) "
                    "for each thread",
                    function, static_cast<long long>(args.columns));
  } catch (const std::exception& error) {
    return SetError(LG_INTERNAL, "%s: %s", function, error.what());
  }
}

}  // namespace
}  // namespace lossgauge

extern "C" {

const char* lg_cpu_variant(void) { return lossgauge::cpu::ChosenVariant().name; }

void lg_cross_entropy_args_init(lg_cross_entropy_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultArguments();
}

int lg_cross_entropy(const lg_cross_entropy_args* args) {
  return lossgauge::Guarded(args, lossgauge::LossPurpose::kForward, "lg_cross_entropy");
}

int lg_cross_entropy_backward(const lg_cross_entropy_args* args) {
  return lossgauge::Guarded(args, lossgauge::LossPurpose::kBackward, "lg_cross_entropy_backward");
}

int lg_observe_logits(const lg_cross_entropy_args* args) {
  return lossgauge::Guarded(args, lossgauge::LossPurpose::kObserve, "lg_observe_logits");
}

void lg_scale_gradient_args_init(lg_scale_gradient_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultScaleArguments();
}

int lg_scale_gradient(const lg_scale_gradient_args* given) {
  lg_scale_gradient_args args;
  if (const int code = lossgauge::ReadScaleArguments(given, &args); code != LG_OK) return code;
  if (args.rows == 0) return LG_OK;
  if (lossgauge::DeviceBackend* backend = lossgauge::FindDeviceBackend()) {
    if (backend->DeviceOf(args.grad) >= 0) return backend->ScaleGradient(args);
  }
  if (args.stream != nullptr) {
    return lossgauge::SetError(LG_UNIMPLEMENTED, "lg_scale_gradient: stream: expected NULL for a gradient in host memory, got a stream");
  }
  lossgauge::cpu::ScaleJob job = lossgauge::MakeScaleJob(args);
  const int threads = lossgauge::cpu::ThreadsFor(args.threads, args.rows, args.columns);
  lossgauge::cpu::ForRows(threads, args.rows, args.columns, &job, lossgauge::RunScaleRows);
  return LG_OK;
}

}  // extern "C"
