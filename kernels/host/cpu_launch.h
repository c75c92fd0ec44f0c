// What the loss calls on the CPU share: the counters and scratch of their threads, the gauge's block, what a mean divides by, and the scalar loss.
#ifndef LOSSGAUGE_KERNELS_HOST_CPU_LAUNCH_H_
#define LOSSGAUGE_KERNELS_HOST_CPU_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/job.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/variant.h"
#include "kernels/host/counter_block.h"
#include "kernels/host/device_backend.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

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

// Work for cpu::ForRows over a CpuLaunch: loss, gradient and signals of rows.
void RunCrossEntropyRows(void* launch, int thread, std::int64_t begin, std::int64_t end);

// Bytes of one thread's row scratch, a multiple of a cache line, and where its parts are.
std::size_t RowScratchBytes(const cpu::CrossEntropyJob& job) noexcept;
cpu::RowScratch CarveRowScratch(const cpu::CrossEntropyJob& job, unsigned char* memory) noexcept;

// One row of scratch for each thread, taken before anything is written, so that
// a launch without memory has done nothing. Kept for the next launch: a
// training step shall not pay for fresh pages.
class CpuScratch {
 public:
  CpuScratch(const cpu::CrossEntropyJob& job, int threads, CpuLaunch* launch) {
    const std::size_t bytes = RowScratchBytes(job);
    if (bytes == 0) return;
    memory_ = cpu::TakeScratch(bytes * static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) launch->threads[i].scratch = CarveRowScratch(job, memory_.data + bytes * static_cast<std::size_t>(i));
  }
  CpuScratch(const CpuScratch&) = delete;
  CpuScratch& operator=(const CpuScratch&) = delete;
  ~CpuScratch() { cpu::KeepScratch(memory_); }

 private:
  cpu::Scratch memory_;
};

enum class TargetKind { kMasked, kBad, kLive };
// Target of a row, and what it is.
std::int64_t TargetOf(const cpu::CrossEntropyJob& job, std::int64_t row, TargetKind* kind) noexcept;

// Rows whose target is live.
std::int64_t CountLive(const cpu::CrossEntropyJob& job, std::int64_t rows) noexcept;

// The gradient is not the logits' memory, and larger than the caches.
bool StreamsGradient(const lg_cross_entropy_args& args) noexcept;

struct Denominator {
  double value = 1;      // of the loss
  double announced = 0;  // what the launch vouches for; 0 = nothing
};
// Counts the unmasked rows if nothing else is given.
Denominator DenominatorOf(const lg_cross_entropy_args& args, const cpu::CrossEntropyJob& job, LossPurpose purpose) noexcept;

// Notes the call, and turns the job's signals on if there is a block that takes them. nullptr = nothing is counted.
CounterBlock* AttachGauge(const lg_cross_entropy_args& args, LossPurpose purpose, cpu::CrossEntropyJob* job) noexcept;

// The scalar loss, if it is wanted, of all that the launch counted; then the counts into `block`, if there is one. `total.present` says what the
// launch vouches for beyond the loss itself.
void FinishLaunch(const lg_cross_entropy_args& args, const cpu::CrossEntropyJob& job, const Denominator& denominator, LaunchCounters total,
                  CounterBlock* block) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_CPU_LAUNCH_H_
