// The end of a CTA's part in a launch: its tallies into the step's counters and the launch's scalar loss; the last one ends the launch.
#ifndef LOSSGAUGE_KERNELS_CUDA_LAUNCH_END_CUH_
#define LOSSGAUGE_KERNELS_CUDA_LAUNCH_END_CUH_

#include "kernels/cuda/tally.cuh"

namespace lossgauge::cuda {

// Unsigned 128-bit maximum in device memory. `lock` is for devices before sm_90, which have no 128-bit exchange; few callers get past the first look.
__device__ __forceinline__ void AtomicMaxPlace(Place* to, Word* lock, const Place& x) {
  if (x.high == 0) return;
  // Of the high word alone, which only rises: two words read one after the other may be of different places and beat x where neither place does.
  if (x.high < *static_cast<const volatile Word*>(&to->high)) return;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  (void)lock;
  const auto exchange = [to](const Place& expected, const Place& desired) {
    Place found;
    asm volatile(
        "{\n.reg .b128 expected, desired, got;\n"
        "mov.b128 expected, {%3, %4};\nmov.b128 desired, {%5, %6};\n"
        "atom.global.relaxed.gpu.cas.b128 got, [%2], expected, desired;\n"
        "mov.b128 {%0, %1}, got;\n}"
        : "=l"(found.low), "=l"(found.high)
        : "l"(to), "l"(expected.low), "l"(expected.high), "l"(desired.low), "l"(desired.high)
        : "memory");
    return found;
  };
  for (Place seen = exchange({0, 0}, {0, 0}); Beats(x, seen);) {
    const Place found = exchange(seen, x);
    if (found.low == seen.low && found.high == seen.high) return;
    seen = found;
  }
#else
  while (atomicExch(lock, 1ull) != 0) {
  }
  __threadfence();
  const volatile Word* now = &to->low;
  if (Beats(x, {now[0], now[1]})) {
    *const_cast<volatile Word*>(&to->low) = x.low;
    *const_cast<volatile Word*>(&to->high) = x.high;
  }
  __threadfence();
  atomicExch(lock, 0ull);
#endif
}

// Adds a tally to the step's counters. One warp, a lane for each word; the tally is visible to it.
static __device__ __noinline__ void AddTally(const CtaTally* tally, DeviceCounters* counters, int lane) {
  if (lane < kCounts) {
    if (const Word x = tally->counts[lane]) atomicAdd(&counters->counts[lane], x);
  } else if (lane < kCounts + kSums) {
    const auto& from = tally->sums[lane - kCounts];
    auto& to = counters->sums[lane - kCounts];
    Word hi = from.hi;
    if (from.lo != 0 && atomicAdd(&to.lo, from.lo) + from.lo < from.lo) ++hi;  // the carry goes on to the high word; both are right once all launches are done
    if (hi != 0) atomicAdd(&to.hi, hi);
  } else if (lane == kCounts + kSums) {
    if (tally->log_z_max != 0) atomicMax(&counters->log_z_max, tally->log_z_max);
    if (tally->first_nonfinite_row != 0) atomicMax(&counters->first_nonfinite_row, tally->first_nonfinite_row);
  } else if (lane <= kCounts + kSums + 2) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    const bool row = lane == kCounts + kSums + 1;
    AtomicMaxPlace(row ? &counters->worst_row : &counters->worst_logit, &counters->place_lock, row ? tally->worst_row : tally->worst_logit);
#else
    // Two lanes of a warp at one lock could wait for each other.
    if (lane == kCounts + kSums + 1) {
      AtomicMaxPlace(&counters->worst_row, &counters->place_lock, tally->worst_row);
      AtomicMaxPlace(&counters->worst_logit, &counters->place_lock, tally->worst_logit);
    }
#endif
  }
}
static_assert(kCounts + kSums + 2 < 32, "a lane for each word of a tally");

// Where the end of a launch writes: what the launch was given, or a rehearsal's own memory.
struct LaunchEnd {
  LaunchScratch* scratch;
  DeviceCounters* counters;  // null = none
  float* loss;               // null = none
};
struct EndRehearsal {
  LaunchScratch scratch;
  DeviceCounters counters;
  float loss;
};

// The sum of losses travels in three pieces that need no carry, so that nobody waits for an answer: 40, 40 and 48 bits, of up to 2^24 tallies.
constexpr Word kPiece = (Word{1} << 40) - 1;
__device__ __forceinline__ void AddPieces(Word* pieces, Word lo, Word hi) {
  atomicAdd(pieces, lo & kPiece);
  atomicAdd(pieces + 1, (lo >> 40 | hi << 24) & kPiece);
  atomicAdd(pieces + 2, hi >> 16);
}
__device__ __forceinline__ lg_fixed128 JoinPieces(Word a, Word b, Word c) {
  const Word low = a + (b << 40);
  return lg_fixed128_make(static_cast<int64_t>((b >> 24) + (c << 16) + (low < a)), low);
}

// The scalar loss, the words of the launch as a whole, and the scratch back to zero, once every tally of the launch is in it. One thread.
__device__ __forceinline__ void FinishLaunch(const CrossEntropyLaunch& a, const LaunchEnd& end) {
  volatile LaunchScratch* const scratch = end.scratch;
  // All at once: nothing hides these latencies.
  const unsigned nonfinite = scratch->nonfinite, unmasked = scratch->unmasked;
  const Word p0 = scratch->objective[0], p1 = scratch->objective[1], p2 = scratch->objective[2], counted = scratch->counted;
  const double denominator =
      a.count_denominator ? static_cast<double>(counted) : a.denominator_pointer != nullptr ? *a.denominator_pointer : a.denominator;
  scratch->next_ticket = scratch->finished = 0;
  if (!a.more_parts) {
    scratch->nonfinite = scratch->unmasked = 0;
    scratch->objective[0] = scratch->objective[1] = scratch->objective[2] = scratch->counted = 0;
  }
  if (end.loss != nullptr && !a.more_parts) {
    float loss = 0.f;  // whatever the denominator: 0 / 0 must not be NaN
    if (unmasked) loss = static_cast<float>(lg_fixed128_to_double(JoinPieces(p0, p1, p2)) / denominator);
    *end.loss = nonfinite ? NAN : loss;
  }
  if (end.counters != nullptr) {
    Word present = a.present;
    if (a.announce_denominator && denominator > 0. && denominator < INFINITY) {
      const Word bits = static_cast<Word>(__double_as_longlong(denominator));
      atomicMax(&end.counters->denominator_min, ~bits);
      atomicMax(&end.counters->denominator_max, bits);
      present |= LG_HAS_DENOMINATOR;
    }
    atomicOr(&end.counters->present, present);
    if (unmasked) atomicOr(&end.counters->absent, ~present);
    if (!a.more_parts) atomicAdd(&end.counters->micro_batches, 1ull);
  }
}

// Adds a tally to the launch's loss and to the step's counters; the last of `of` tallies ends the launch. One warp; the tally is visible to it.
// Nothing is left to hide its latencies, and the longest are those of its code, which comes from memory: 6 us where it runs for the first time. So it is
// rehearsed while the first rows are on their way: with a tally of zeros, which adds nothing, and with memory of its own for what it writes.
static __device__ __noinline__ void EndLoss(const CrossEntropyLaunch& a, const CtaTally* tally, EndRehearsal* rehearsal, unsigned of, int lane) {
  LaunchEnd end{a.scratch, a.counters, a.loss};
  if (rehearsal != nullptr) {
    end.scratch = &rehearsal->scratch;
    if (end.counters != nullptr) end.counters = &rehearsal->counters;
    if (end.loss != nullptr) end.loss = &rehearsal->loss;
  }
  if (lane == 0) {
    const auto& sum = tally->sums[kObjectiveSum];
    if (tally->counts[kUnmaskedTokens] != 0) atomicOr(&end.scratch->unmasked, 1u);
    if (tally->nonfinite) atomicOr(&end.scratch->nonfinite, 1u);
    if (end.loss != nullptr) AddPieces(end.scratch->objective, sum.lo, sum.hi);
    __threadfence();
    if (atomicAdd(&end.scratch->finished, 1u) == of - 1 || rehearsal != nullptr) {
      __threadfence();
      FinishLaunch(a, end);
    }
  }
  __syncwarp();
  if (a.counters != nullptr) AddTally(tally, a.counters, lane);  // waits for answers, and nobody for it
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LAUNCH_END_CUH_
