// How many rows a chunk of linear cross-entropy has, and what memory that takes. Pure arithmetic, the same for every backend.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_PLAN_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_PLAN_H_

#include <cstdint>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

inline std::int64_t RoundUp(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// What a backend needs beyond the call's tensors, in bytes.
struct LinearMemory {
  std::int64_t logits_row = 0;      // a row of logits
  std::int64_t other_row = 0;       // what else a row of a chunk takes: its hidden state, its gradient, its place
  std::int64_t fixed = 0;           // whatever the chunk
  std::int64_t several_chunks = 0;  // only if there is more than one chunk: the head's gradient, if it is not summed where it goes
};

struct LinearLimits {
  std::int64_t rows = 0;          // most that can be unmasked
  std::int64_t default_rows = 1;  // of a chunk where neither chunk_rows nor a budget is given; >= 1
  std::int64_t granule = 1;       // a chunk chosen here is a multiple of it where that leaves any; >= 1
};

// Chosen in this order: args.chunk_rows, as many as args.memory_budget allows (in few chunks of about equal size), the default; never more than
// limits.rows. Workspace and budget that are given are held against it: LG_INVALID_ARGUMENT, naming what would do. `plan` is whole on LG_OK only.
// args were checked. Sizes beyond 62 bits count as too large for any budget.
int PlanLinear(const lg_linear_cross_entropy_args& args, const LinearMemory& memory, const LinearLimits& limits, const char* function,
               lg_linear_plan* plan) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_PLAN_H_
