#include "kernels/host/counter_block.h"

#include <initializer_list>
#include <iterator>
#include <sched.h>

#include <algorithm>
#include <bit>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

constexpr std::int64_t kLargestPlace = (std::int64_t{1} << 48) - 1;
constexpr std::uint64_t kPlaceMask = static_cast<std::uint64_t>(kLargestPlace);

// Absent unless every launch with unmasked tokens had it.
constexpr std::uint64_t kNeedsEveryLaunch = LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD |
                                            LG_HAS_MASS | LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD;

struct CountField {
  std::uint64_t LaunchCounters::*from;
  std::uint64_t lg_step_record::*to;
};
constexpr CountField kCounts[] = {
    {&LaunchCounters::tokens, &lg_step_record::tokens},
    {&LaunchCounters::unmasked_tokens, &lg_step_record::unmasked_tokens},
    {&LaunchCounters::finite_tokens, &lg_step_record::finite_tokens},
    {&LaunchCounters::nonfinite_rows, &lg_step_record::nonfinite_rows},
    {&LaunchCounters::bad_targets, &lg_step_record::bad_targets},
    {&LaunchCounters::clamped_rows, &lg_step_record::clamped_rows},
    {&LaunchCounters::target_bytes, &lg_step_record::target_bytes},
    {&LaunchCounters::nonfinite_grad_rows, &lg_step_record::nonfinite_grad_rows},
    {&LaunchCounters::mass_error_rows, &lg_step_record::mass_error_rows},
    {&LaunchCounters::target_hits, &lg_step_record::target_hits},
    {&LaunchCounters::correct_tokens, &lg_step_record::correct_tokens},
    {&LaunchCounters::mask_fingerprint, &lg_step_record::mask_fingerprint},
    {&LaunchCounters::target_fingerprint, &lg_step_record::target_fingerprint},
    {&LaunchCounters::exchange_bad_rows, &lg_step_record::exchange_bad_rows},
};

struct SumField {
  lg_fixed128 LaunchCounters::*from;
  lg_fixed128 lg_step_record::*to;
};
constexpr SumField kSums[] = {
    {&LaunchCounters::nll_sum, &lg_step_record::nll_sum},
    {&LaunchCounters::objective_sum, &lg_step_record::objective_sum},
    {&LaunchCounters::z_loss_sum, &lg_step_record::z_loss_sum},
    {&LaunchCounters::scored_nll_sum, &lg_step_record::scored_nll_sum},
    {&LaunchCounters::log_z_sum, &lg_step_record::log_z_sum},
    {&LaunchCounters::log_z_sq_sum, &lg_step_record::log_z_sq_sum},
    {&LaunchCounters::logit_grad_sq_sum, &lg_step_record::logit_grad_sq_sum},
    {&LaunchCounters::probability_mass, &lg_step_record::probability_mass},
    {&LaunchCounters::hidden_grad_sq_sum, &lg_step_record::hidden_grad_sq_sum},
    {&LaunchCounters::head_grad_sq_sum, &lg_step_record::head_grad_sq_sum},
};

// Bits whose unsigned order is the order of the floats; never 0.
std::uint64_t OrderedBits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
float FromOrderedBits(std::uint64_t ordered) {
  const auto bits = static_cast<std::uint32_t>(ordered);
  return std::bit_cast<float>((bits >> 31) != 0 ? bits & 0x7fffffffu : ~bits);
}

std::uint64_t InPlaceRange(std::int64_t value) {
  return static_cast<std::uint64_t>(value < 0 ? 0 : value > kLargestPlace ? kLargestPlace : value);
}

// The value is >= 0, so its bits are already in order. The position is complemented: of equal values the lowest position wins.
unsigned __int128 PlaceKey(float value, std::int64_t position, std::uint64_t third) {
  const auto bits = static_cast<unsigned __int128>(std::bit_cast<std::uint32_t>(value));
  return bits << 96 | static_cast<unsigned __int128>(kPlaceMask - InPlaceRange(position)) << 48 | third;
}
float PlaceValue(unsigned __int128 key) { return std::bit_cast<float>(static_cast<std::uint32_t>(key >> 96)); }
std::int64_t PlacePosition(unsigned __int128 key) {
  return static_cast<std::int64_t>(kPlaceMask - (static_cast<std::uint64_t>(key >> 48) & kPlaceMask));
}
std::uint64_t PlaceThird(unsigned __int128 key) { return static_cast<std::uint64_t>(key) & kPlaceMask; }

// Relaxed throughout: what Add wrote is published by the release on Bank::adding.
void AtomicMax(std::atomic<std::uint64_t>* to, std::uint64_t value) {
  std::uint64_t seen = to->load(std::memory_order_relaxed);
  while (seen < value && !to->compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// One word of 16 bytes: value, position and column must change together, or a maximum would be shown at another's place.
#if defined(__x86_64__) || defined(__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16)
#if defined(__x86_64__)
#define LOSSGAUGE_CX16 __attribute__((target("cx16")))  // every x86-64 processor since 2006
#else
#define LOSSGAUGE_CX16
#endif
LOSSGAUGE_CX16 void AtomicMax(unsigned __int128* to, unsigned __int128 value) {
  unsigned __int128 seen = __sync_val_compare_and_swap(to, 0, 0);
  while (seen < value) {
    const unsigned __int128 found = __sync_val_compare_and_swap(to, seen, value);
    if (found == seen) return;
    seen = found;
  }
}
LOSSGAUGE_CX16 unsigned __int128 Take(unsigned __int128* from) {
  unsigned __int128 seen = __sync_val_compare_and_swap(from, 0, 0);
  for (;;) {
    const unsigned __int128 found = __sync_val_compare_and_swap(from, seen, 0);
    if (found == seen) return seen;
    seen = found;
  }
}
#else
std::atomic_flag place_guard = ATOMIC_FLAG_INIT;  // no 16-byte exchange on this machine: a few instructions under a spin flag
void AtomicMax(unsigned __int128* to, unsigned __int128 value) {
  while (place_guard.test_and_set(std::memory_order_acquire)) sched_yield();
  if (*to < value) *to = value;
  place_guard.clear(std::memory_order_release);
}
unsigned __int128 Take(unsigned __int128* from) {
  while (place_guard.test_and_set(std::memory_order_acquire)) sched_yield();
  const unsigned __int128 value = *from;
  *from = 0;
  place_guard.clear(std::memory_order_release);
  return value;
}
#endif

}  // namespace

void Merge(const LaunchCounters& part, LaunchCounters* into) noexcept {
  into->present |= part.present;
  for (const CountField& field : kCounts) into->*field.from += part.*field.from;
  for (const SumField& field : kSums) into->*field.from = lg_fixed128_add(into->*field.from, part.*field.from);
  const std::uint64_t finite_before = into->finite_tokens - part.finite_tokens;
  if (part.finite_tokens != 0) {
    if (finite_before == 0 || part.log_z_max > into->log_z_max) into->log_z_max = part.log_z_max;
    const auto logit =
        PlaceKey(part.max_abs_logit, part.worst_logit_position, kPlaceMask - InPlaceRange(part.worst_logit_column));
    const auto into_logit =
        PlaceKey(into->max_abs_logit, into->worst_logit_position, kPlaceMask - InPlaceRange(into->worst_logit_column));
    if (finite_before == 0 || logit > into_logit) {
      into->max_abs_logit = part.max_abs_logit;
      into->worst_logit_position = part.worst_logit_position;
      into->worst_logit_column = part.worst_logit_column;
    }
    const auto row = PlaceKey(part.worst_row_nll, part.worst_row_position, 0);
    const auto into_row = PlaceKey(into->worst_row_nll, into->worst_row_position, 0);
    if (finite_before == 0 || row > into_row) {
      into->worst_row_nll = part.worst_row_nll;
      into->worst_row_position = part.worst_row_position;
      into->worst_row_target = part.worst_row_target;
    }
  }
  if (part.first_nonfinite_row >= 0 &&
      (into->first_nonfinite_row < 0 || part.first_nonfinite_row < into->first_nonfinite_row)) {
    into->first_nonfinite_row = part.first_nonfinite_row;
  }
  into->unproven_rows += part.unproven_rows;
}

void CounterBlock::Add(const LaunchCounters& launch) noexcept {
  static_assert(sizeof kCounts / sizeof kCounts[0] == sizeof(Bank::counts) / sizeof(Bank::counts[0]));
  static_assert(sizeof kSums / sizeof kSums[0] == sizeof(Bank::sums) / sizeof(Bank::sums[0]));
  // Enter the open bank. Announce first, then look again: Close turns open_ first, then waits for the announced. Both are
  // sequentially consistent, so either we see the turn, or Close sees us.
  Bank* bank;
  for (;;) {
    const std::uint32_t open = open_.load(std::memory_order_seq_cst);
    bank = &banks_[open];
    bank->adding.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst) == open) break;
    bank->adding.fetch_sub(1, std::memory_order_release);
  }

  std::uint64_t present = launch.present;
  for (std::size_t i = 0; i < std::size(kCounts); ++i) {
    if (const std::uint64_t count = launch.*kCounts[i].from) bank->counts[i].fetch_add(count, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < std::size(kSums); ++i) {
    const lg_fixed128 term = launch.*kSums[i].from;
    const std::uint64_t before = bank->sums[i].lo.fetch_add(term.lo, std::memory_order_relaxed);
    const std::uint64_t carry = before + term.lo < before ? 1 : 0;
    const std::uint64_t high = static_cast<std::uint64_t>(term.hi) + carry;
    if (high != 0) bank->sums[i].hi.fetch_add(high, std::memory_order_relaxed);
  }
  if (launch.finite_tokens != 0 && (present & LG_HAS_LOGITS) != 0) {
    AtomicMax(&bank->log_z_max, OrderedBits(launch.log_z_max));
    AtomicMax(&bank->worst_logit.key, PlaceKey(launch.max_abs_logit, launch.worst_logit_position,
                                               kPlaceMask - InPlaceRange(launch.worst_logit_column)));
    AtomicMax(&bank->worst_row.key,
              PlaceKey(launch.worst_row_nll, launch.worst_row_position, InPlaceRange(launch.worst_row_target)));
    present |= LG_HAS_WORST_LOGIT | LG_HAS_WORST_ROW;
  }
  if (launch.first_nonfinite_row >= 0) {
    AtomicMax(&bank->first_nonfinite_row, kPlaceMask + 1 - InPlaceRange(launch.first_nonfinite_row));
    present |= LG_HAS_FIRST_NONFINITE_ROW;
  }
  if (launch.exchange_worst_rows != 0) {
    const std::uint64_t rows = std::min<std::uint64_t>(launch.exchange_worst_rows, 0xffffffffu);
    AtomicMax(&bank->exchange_worst, rows << 32 | (0xffffffffu - launch.exchange_bad_sender));
  }
  if (launch.denominator > 0) {
    const auto bits = std::bit_cast<std::uint64_t>(launch.denominator);
    AtomicMax(&bank->denominator_min, ~bits);
    AtomicMax(&bank->denominator_max, bits);
    present |= LG_HAS_DENOMINATOR;
  }
  bank->present.fetch_or(present, std::memory_order_relaxed);
  if (launch.unmasked_tokens != 0) bank->absent.fetch_or(~present & kNeedsEveryLaunch, std::memory_order_relaxed);
  bank->micro_batches.fetch_add(1, std::memory_order_relaxed);

  bank->adding.fetch_sub(1, std::memory_order_release);  // publishes everything above to Close
}

CounterBlock::Bank* CounterBlock::Close() noexcept {
  const std::uint32_t closed = open_.load(std::memory_order_relaxed);
  open_.store(1 - closed, std::memory_order_seq_cst);
  while (banks_[closed].adding.load(std::memory_order_seq_cst) != 0) sched_yield();
  return &banks_[closed];
}

void CounterBlock::Zero(Bank* bank) noexcept {
  // An Add may still enter a closed bank and leave it at once: it touches only `adding`.
  for (auto* word : {&bank->micro_batches, &bank->present, &bank->absent, &bank->log_z_max, &bank->denominator_min,
                     &bank->denominator_max, &bank->first_nonfinite_row, &bank->exchange_worst}) {
    word->store(0, std::memory_order_relaxed);
  }
  for (auto& count : bank->counts) count.store(0, std::memory_order_relaxed);
  for (Sum& sum : bank->sums) {
    sum.lo.store(0, std::memory_order_relaxed);
    sum.hi.store(0, std::memory_order_relaxed);
  }
  Take(&bank->worst_logit.key);
  Take(&bank->worst_row.key);
}

bool CounterBlock::Fold(lg_step_record* record) noexcept {
  Bank* bank = Close();
  const auto word = [](const std::atomic<std::uint64_t>& from) { return from.load(std::memory_order_relaxed); };
  const std::uint64_t present = word(bank->present) & ~word(bank->absent);
  const auto has = [present](std::uint64_t bits) { return (present & bits) == bits; };
  record->present |= present;
  record->micro_batches = word(bank->micro_batches);
  for (std::size_t i = 0; i < std::size(kCounts); ++i) record->*kCounts[i].to = word(bank->counts[i]);
  for (std::size_t i = 0; i < std::size(kSums); ++i) {
    record->*kSums[i].to = {word(bank->sums[i].lo), static_cast<std::int64_t>(word(bank->sums[i].hi))};
  }
  record->denominator_min = has(LG_HAS_DENOMINATOR) ? std::bit_cast<double>(~word(bank->denominator_min)) : 0;
  record->denominator_max = has(LG_HAS_DENOMINATOR) ? std::bit_cast<double>(word(bank->denominator_max)) : 0;
  const std::uint64_t log_z_max = word(bank->log_z_max);
  record->log_z_max = log_z_max != 0 && has(LG_HAS_LOGITS) ? FromOrderedBits(log_z_max) : 0;
  const unsigned __int128 logit = has(LG_HAS_WORST_LOGIT) ? Take(&bank->worst_logit.key) : 0;
  record->max_abs_logit = logit != 0 ? PlaceValue(logit) : 0;
  record->worst_logit_position = logit != 0 ? PlacePosition(logit) : 0;
  record->worst_logit_column = logit != 0 ? static_cast<std::int64_t>(kPlaceMask - PlaceThird(logit)) : 0;
  const unsigned __int128 row = has(LG_HAS_WORST_ROW) ? Take(&bank->worst_row.key) : 0;
  record->worst_row_nll = row != 0 ? PlaceValue(row) : 0;
  record->worst_row_position = row != 0 ? PlacePosition(row) : 0;
  record->worst_row_target = row != 0 ? static_cast<std::int64_t>(PlaceThird(row)) : 0;
  const std::uint64_t first = word(bank->first_nonfinite_row);
  record->first_nonfinite_row = first != 0 ? static_cast<std::int64_t>(kPlaceMask + 1 - first) : 0;
  const std::uint64_t worst = word(bank->exchange_worst);
  record->exchange_bad_sender = worst != 0 ? 0xffffffffu - (worst & 0xffffffffu) : 0;
  const bool any = record->micro_batches != 0;
  // A word whose bit is off is 0.
  if (!has(LG_HAS_OBJECTIVE)) record->objective_sum = record->z_loss_sum = {};
  if (!has(LG_HAS_LOGITS)) record->log_z_sum = record->log_z_sq_sum = {};
  if (!has(LG_HAS_LOGIT_GRAD)) record->logit_grad_sq_sum = {}, record->nonfinite_grad_rows = 0;
  if (!has(LG_HAS_MASS)) record->probability_mass = {}, record->mass_error_rows = 0;
  if (!has(LG_HAS_HIDDEN_GRAD)) record->hidden_grad_sq_sum = {};
  if (!has(LG_HAS_HEAD_GRAD)) record->head_grad_sq_sum = {};
  Zero(bank);
  return any;
}

bool CounterBlock::IsEmpty() const noexcept {
  const Bank& bank = banks_[open_.load(std::memory_order_relaxed)];
  return bank.micro_batches.load(std::memory_order_relaxed) == 0 && bank.adding.load(std::memory_order_relaxed) == 0;
}

void CounterBlock::Reset() noexcept { Zero(Close()); }

}  // namespace lossgauge
