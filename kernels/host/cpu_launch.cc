#include "kernels/host/cpu_launch.h"

#include <cmath>
#include <cstring>

#include "kernels/host/gauge.h"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

struct RowScratchSizes {
  std::size_t doubles, floats;
};
RowScratchSizes SizesOf(const cpu::CrossEntropyJob& job) {
  const auto columns = static_cast<std::size_t>(cpu::ScratchColumns(job.vocab_size));
  const std::size_t mapped = cpu::IsPlain(job) ? 0 : columns;
  return {mapped, (job.grad != nullptr ? columns : 0) + mapped};
}

}  // namespace

void RunCrossEntropyRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<CpuLaunch*>(context);
  CpuThread& own = launch.threads[thread];
  launch.variant->cross_entropy(*launch.job, begin, end, own.scratch, &own.counters);
}

std::size_t RowScratchBytes(const cpu::CrossEntropyJob& job) noexcept {
  const RowScratchSizes sizes = SizesOf(job);
  return sizes.doubles * sizeof(double) + sizes.floats * sizeof(float);
}

cpu::RowScratch CarveRowScratch(const cpu::CrossEntropyJob& job, unsigned char* memory) noexcept {
  if (memory == nullptr) return {};
  const RowScratchSizes sizes = SizesOf(job);
  auto* logits = reinterpret_cast<double*>(memory);
  auto* exponentials = reinterpret_cast<float*>(memory + sizes.doubles * sizeof(double));
  return {exponentials, logits, exponentials + (sizes.floats - sizes.doubles)};
}

std::int64_t TargetOf(const cpu::CrossEntropyJob& job, std::int64_t row, TargetKind* kind) noexcept {
  std::int64_t target;
  const unsigned char* from = job.targets + row * job.target_stride_bytes;
  if (job.targets_are_int64) {
    std::memcpy(&target, from, sizeof target);
  } else {
    std::int32_t narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    target = narrow;
  }
  *kind = target == job.ignore_index            ? TargetKind::kMasked
          : target < 0 || target >= job.classes ? TargetKind::kBad
                                                : TargetKind::kLive;
  return target;
}

std::int64_t CountLive(const cpu::CrossEntropyJob& job, std::int64_t rows) noexcept {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    TargetKind kind;
    TargetOf(job, row, &kind);
    count += kind == TargetKind::kLive;
  }
  return count;
}

bool StreamsGradient(const lg_cross_entropy_args& args) noexcept {
  constexpr double kBytesWorthStreaming = 16 << 20;
  return args.grad_logits != nullptr && args.grad_logits != args.logits &&
         static_cast<double>(args.rows) * static_cast<double>(args.columns) * 4 > kBytesWorthStreaming;
}

Denominator DenominatorOf(const lg_cross_entropy_args& args, const cpu::CrossEntropyJob& job, LossPurpose purpose) noexcept {
  Denominator denominator;
  if (args.reduction != LG_MEAN) return denominator;
  const bool given = args.denominator_pointer != nullptr || args.denominator != 0;
  if (args.denominator_pointer != nullptr) {
    denominator.value = *args.denominator_pointer;
  } else if (args.denominator != 0) {
    denominator.value = args.denominator;
  } else {
    denominator.value = static_cast<double>(CountLive(job, args.rows));
  }
  if (given || purpose != LossPurpose::kObserve) denominator.announced = denominator.value;
  return denominator;
}

CounterBlock* AttachGauge(const lg_cross_entropy_args& args, LossPurpose purpose, cpu::CrossEntropyJob* job) noexcept {
  Gauge* gauge = purpose == LossPurpose::kBackward ? nullptr : args.gauge;
  if (gauge == nullptr) return nullptr;
  gauge->NoteLossCall();
  CounterBlock* block = gauge->BlockForLaunch(args.block);
  if (block != nullptr) {
    job->signals = true;
    job->token_bytes = gauge->token_bytes();
    job->token_bytes_size = gauge->vocab_size();
  }
  return block;
}

void FinishLaunch(const lg_cross_entropy_args& args, const cpu::CrossEntropyJob& job, const Denominator& denominator, LaunchCounters total,
                  CounterBlock* block) noexcept {
  if (args.loss != nullptr) {
    const double sum = lg_fixed128_to_double(total.objective_sum);
    if (total.nonfinite_rows != 0 || total.unproven_rows != 0) {
      *args.loss = std::nanf("");
    } else if (total.unmasked_tokens == 0) {
      *args.loss = 0;  // whatever the denominator: 0 / 0 must not be NaN
    } else {
      *args.loss = static_cast<float>(sum / denominator.value);
    }
  }
  if (block == nullptr) return;
  total.present |= LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE;
  if (job.grad != nullptr) total.present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
  if (job.token_bytes != nullptr) total.present |= LG_HAS_TARGET_BYTES;
  total.denominator = std::isfinite(denominator.announced) && denominator.announced > 0 ? denominator.announced : 0;
  block->Add(total);
}

}  // namespace lossgauge
