// The counters of one step and one block. Loss calls add to it from any thread; publish folds it into a step record and zeroes it.
// Every sum is an integer sum, so the order of additions never shows. The CUDA backend keeps the same layout in device memory.
#ifndef LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_
#define LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_

#include <cstdint>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

// What one launch (or one thread of it) has to add. Plain data: kernels fill it privately, AddTo merges it at the end.
struct LaunchCounters {
  std::uint64_t present = 0;  // LG_HAS_*
  std::uint64_t tokens = 0;
  std::uint64_t unmasked_tokens = 0;
  std::uint64_t finite_tokens = 0;
  std::uint64_t nonfinite_rows = 0;
  std::uint64_t bad_targets = 0;
  std::uint64_t clamped_rows = 0;
  std::uint64_t target_bytes = 0;
  std::uint64_t nonfinite_grad_rows = 0;
  std::uint64_t mass_error_rows = 0;
  std::uint64_t target_hits = 0;
  std::uint64_t correct_tokens = 0;
  std::uint64_t mask_fingerprint = 0;
  std::uint64_t target_fingerprint = 0;
  lg_fixed128 nll_sum{};
  lg_fixed128 objective_sum{};
  lg_fixed128 z_loss_sum{};
  lg_fixed128 scored_nll_sum{};
  lg_fixed128 log_z_sum{};
  lg_fixed128 log_z_sq_sum{};
  lg_fixed128 logit_grad_sq_sum{};  // of (g * denominator)^2
  lg_fixed128 probability_mass{};
  float log_z_max = 0;  // valid if finite_tokens > 0
  // Places. Ties go to the lowest position, then the lowest column.
  float max_abs_logit = 0;
  std::int64_t worst_logit_position = 0;
  std::int64_t worst_logit_column = 0;
  float worst_row_nll = 0;
  std::int64_t worst_row_position = 0;
  std::int64_t worst_row_target = 0;
  std::int64_t first_nonfinite_row = -1;  // -1 = none
  // Of the whole launch, set once by the caller; 0 = no denominator (sum reduction).
  double denominator = 0;
};

class CounterBlock;  // counter_block.cc: atomic accumulation over launches, Fold() into lg_step_record, Reset()

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_
