// What a chunk of linear cross-entropy on the CPU takes: how its logits lie, scratch of its threads, its workspace.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_SIZES_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_SIZES_H_

#include <cstdint>

#include "kernels/cpu/job.h"
#include "kernels/cpu/linear_job.h"
#include "kernels/host/linear_plan.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

inline constexpr std::int64_t kLine = 64;  // bytes; parts of a workspace begin at one

// Elements between rows of a chunk's logits.
std::int64_t LogitsStride(const lg_linear_cross_entropy_args& args);

// The row loops' job over a chunk whose logits are at `logits`, but for its other tensors.
cpu::CrossEntropyJob ChunkJob(const lg_linear_cross_entropy_args& args, unsigned char* logits);

struct LinearSizes {
  cpu::LinearScratchSizes scratch;  // of a thread
  std::int64_t thread_bytes;        // of all that a thread has
  int threads;
  LinearMemory memory;
};
LinearSizes SizesOf(const lg_linear_cross_entropy_args& args);

// As PlanLinear. Where nothing else is given, chunks have as many rows as the default takes of `logits_row` bytes.
int PlanWith(const lg_linear_cross_entropy_args& args, const LinearSizes& sizes, std::int64_t logits_row, const char* function, lg_linear_plan* plan) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_SIZES_H_
