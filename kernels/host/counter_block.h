// The counters of one step and one block. Loss calls add to it from any thread; publish folds it into a step record and zeroes
// it. Every sum is an integer sum, so the order of additions never shows. The CUDA backend keeps the same layout in device
// memory.
#ifndef LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_
#define LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_

#include <atomic>
#include <cstdint>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

// What one launch (or one thread of it) has to add. Plain data: kernels fill it privately and Merge the threads' shares; the
// launch then goes into the block by one CounterBlock::Add.
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
  lg_fixed128 hidden_grad_sq_sum{};  // linear path: of (g * denominator)^2, as emitted
  lg_fixed128 head_grad_sq_sum{};    // may be negative: what a call leaves less what it found
  float log_z_max = 0;  // valid if finite_tokens > 0
  // Places. Ties go to the lowest position, then the lowest column.
  float max_abs_logit = 0;
  std::int64_t worst_logit_position = 0;
  std::int64_t worst_logit_column = 0;
  float worst_row_nll = 0;
  std::int64_t worst_row_position = 0;
  std::int64_t worst_row_target = 0;
  std::int64_t first_nonfinite_row = -1;  // -1 = none
  // Of vocabulary-parallel launches (LG_HAS_EXCHANGE).
  std::uint64_t exchange_bad_rows = 0;   // contributions of rows that are not proven
  std::uint64_t exchange_worst_rows = 0; // those of exchange_bad_sender, who has most of them; the lowest index of several. Set once by the caller
  std::uint64_t exchange_bad_sender = 0;
  std::uint64_t unproven_rows = 0;  // rows without a loss, since the ranks' contributions are not proven or disagree. For the caller, in no record
  // Of the whole launch, set once by the caller; 0 = no denominator (sum reduction).
  double denominator = 0;
};

// Adds what another thread of the same launch counted. Gives the same result in any order.
void Merge(const LaunchCounters& part, LaunchCounters* into) noexcept;

// Counters of a step. Add from any thread at any time, without locks; Fold and Reset from one thread at a time.
//
// A launch is never split between two steps: there are two banks; Fold turns new launches to the other bank, waits for the few
// additions already under way in the old one (each about a hundred atomic additions, microseconds), then reads and zeroes it.
//
// Positions, columns and targets are kept in 48 bits; a position outside of [0, 2^48) is counted as the nearest end.
class CounterBlock {
 public:
  CounterBlock() = default;
  CounterBlock(const CounterBlock&) = delete;
  CounterBlock& operator=(const CounterBlock&) = delete;

  void Add(const LaunchCounters& launch) noexcept;

  // Writes every word that stems from loss calls (micro_batches to first_nonfinite_row, and their bits of `present`), zeroes
  // the counters, and says whether any launch had been added. Other words of the record stay as they are; `present` is or-ed
  // into.
  //
  // A term that must cover every finite token to mean anything (mass, gradient squares, what needs logits, objective,
  // denominator) is present only if every launch with unmasked tokens had it.
  bool Fold(lg_step_record* record) noexcept;

  // Nothing was added since the last Fold, as far as one look can tell.
  bool IsEmpty() const noexcept;

  // Forgets what was added since the last Fold.
  void Reset() noexcept;

 private:
  struct Sum {  // of lg_fixed128: the carry of lo is passed on to hi, so the pair is right once no Add is under way
    std::atomic<std::uint64_t> lo{0};
    std::atomic<std::uint64_t> hi{0};
  };
  // Keys whose unsigned order is the order of the maximum: value, then lowest position, then third word.
  struct alignas(16) Place {
    unsigned __int128 key = 0;
  };
  struct alignas(64) Bank {
    std::atomic<std::uint64_t> adding{0};  // Adds under way in this bank
    std::atomic<std::uint64_t> micro_batches{0};
    std::atomic<std::uint64_t> present{0};  // by any launch
    std::atomic<std::uint64_t> absent{0};   // by a launch with unmasked tokens
    std::atomic<std::uint64_t> counts[14]{};
    Sum sums[10];
    std::atomic<std::uint64_t> log_z_max{0};        // ordered bits; 0 = none
    std::atomic<std::uint64_t> denominator_min{0};  // complement of the bits of a positive double; 0 = none
    std::atomic<std::uint64_t> denominator_max{0};
    std::atomic<std::uint64_t> first_nonfinite_row{0};  // 2^48 - position; 0 = none
    std::atomic<std::uint64_t> exchange_worst{0};       // rows << 32 | complement of the sender's index, of the launch that has most; 0 = none
    Place worst_logit;
    Place worst_row;
  };

  Bank* Close() noexcept;
  static void Zero(Bank* bank) noexcept;

  Bank banks_[2];
  std::atomic<std::uint32_t> open_{0};
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_COUNTER_BLOCK_H_
