// Signals on their way into the device's counters: rows into a CTA's tally in shared memory, tallies into DeviceCounters at the CTA's end.
#ifndef LOSSGAUGE_KERNELS_CUDA_TALLY_CUH_
#define LOSSGAUGE_KERNELS_CUDA_TALLY_CUH_

#include "kernels/cuda/launch_reads.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/host/fingerprint.h"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::cuda {

// What a CTA counts in shared memory until its end.
struct alignas(16) CtaTally {
  Word counts[kCounts];
  struct {
    Word lo, hi;
  } sums[kSums];
  Word log_z_max;
  Word first_nonfinite_row;
  Place worst_logit, worst_row;  // of a lane's own tally only
  unsigned best_abs;   // bits of the largest finite |z| of a finite row so far, for reducers to look past smaller ones
  unsigned nonfinite;  // any
};

constexpr double kLargestTerm = 2147483648.;            // 2^31, of |NLL| and |log Z|
constexpr double kLargestSquare = 70368744177664.;  // 2^46: 2^17 clamped ones fit the 64 bits before the point
constexpr double kLargestMass = 65536.;

// Order-preserving image of a float that is not NaN.
__device__ __forceinline__ unsigned OrderedBits(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ Word InPlaceRange(long long x) {
  return x < 0 ? 0 : static_cast<Word>(x) > kPlaceMask ? kPlaceMask : static_cast<Word>(x);
}
__device__ __forceinline__ Place MakePlace(float value, long long position, Word third) {
  const Word p = kPlaceMask - InPlaceRange(position);
  return {p << 48 | third, static_cast<Word>(OrderedBits(value)) << 32 | p >> 16};
}
__device__ __forceinline__ bool Beats(const Place& a, const Place& b) { return a.high != b.high ? a.high > b.high : a.low > b.low; }

// lg_fixed128_from_double for |x| < 2^63, without its branches: 32 lanes would take all of them.
__device__ __forceinline__ lg_fixed128 FixedFrom(double x) {
  const double magnitude = fabs(x);
  const Word whole = __double2ull_rz(magnitude);
  const lg_fixed128 fixed = lg_fixed128_make(static_cast<int64_t>(whole), __double2ull_rn((magnitude - __ull2double_rn(whole)) * 18446744073709551616.));
  return x < 0. ? lg_fixed128_negate(fixed) : fixed;
}
// By one thread at a time.
__device__ __forceinline__ void AddTo(CtaTally* tally, Sum sum, lg_fixed128 x) {
  auto& s = tally->sums[sum];
  const Word lo = s.lo + x.lo;
  s.hi += static_cast<Word>(x.hi) + (lo < x.lo);
  s.lo = lo;
}
__device__ __forceinline__ void AddTerm(CtaTally* tally, Sum sum, double x, double largest, bool* clamped) {
  if (fabs(x) > largest) {
    x = x > 0 ? largest : -largest;
    *clamped = true;
  }
  AddTo(tally, sum, FixedFrom(x));
}
// By any thread.
__device__ __forceinline__ void AtomicAddTo(CtaTally* tally, Sum sum, Word lo, Word hi) {
  auto& s = tally->sums[sum];
  const Word old = atomicAdd(&s.lo, lo);
  const Word carry = old + lo < lo ? 1 : 0;
  if (hi + carry != 0) atomicAdd(&s.hi, hi + carry);
}

struct RowSignals {
  long long row;
  int target;
  float z_target;
  float max_abs;        // over finite z of the row
  int max_abs_column;   // valid if max_abs reaches tally->best_abs
  bool correct;
};

// A finite or non-finite row of U, with its loss. By one thread of the CTA.
__device__ __forceinline__ void TallyRow(const CrossEntropyLaunch& a, CtaTally* tally, const RowSignals& s, const RowLoss& l) {
  const long long position = ReadPosition(a, s.row);
  if (!l.finite) {
    ++tally->counts[kNonfiniteRows];
    tally->nonfinite = 1;
    tally->first_nonfinite_row = max(tally->first_nonfinite_row, kPlaceMask + 1 - InPlaceRange(position));
    return;
  }
  bool clamped = false;
  ++tally->counts[kFiniteTokens];
  ++tally->counts[kTargetHits];
  tally->counts[kCorrectTokens] += s.correct;
  AddTerm(tally, kNllSum, l.nll, kLargestTerm, &clamped);
  AddTerm(tally, kObjectiveSum, l.objective, kLargestSquare, &clamped);
  if (a.z_loss_weight != 0.f) AddTerm(tally, kZLossSum, l.z_loss, kLargestSquare, &clamped);
  AddTerm(tally, kLogZSum, l.log_z, kLargestTerm, &clamped);
  AddTerm(tally, kLogZSqSum, l.log_z * l.log_z, kLargestSquare, &clamped);
  if (a.token_bytes != nullptr && s.target < a.token_bytes_size) {
    if (const unsigned bytes = a.token_bytes[s.target]) {
      tally->counts[kTargetBytes] += bytes;
      AddTerm(tally, kScoredNllSum, l.nll, kLargestTerm, &clamped);
    }
  }
  if (clamped) ++tally->counts[kClampedRows];
  tally->log_z_max = max(tally->log_z_max, static_cast<Word>(OrderedBits(static_cast<float>(l.log_z))));
  const Place row = MakePlace(static_cast<float>(fmin(l.nll, kLargestTerm)), position, static_cast<Word>(s.target));
  if (Beats(row, tally->worst_row)) tally->worst_row = row;
  const unsigned abs_bits = __float_as_uint(s.max_abs);
  if (abs_bits >= tally->best_abs) {
    const Place logit = MakePlace(s.max_abs, position, kPlaceMask - InPlaceRange(s.max_abs_column));
    if (Beats(logit, tally->worst_logit)) tally->worst_logit = logit;
    tally->best_abs = abs_bits;
  }
}

constexpr float kMassError = 1e-3f;

// The gradient of a finite row: its mass and the sum of its squares. By one thread.
__device__ __forceinline__ void TallyGradient(CtaTally* tally, float mass, float squares, bool nonfinite) {
  bool clamped = false;
  AddTerm(tally, kProbabilityMass, mass == mass ? static_cast<double>(mass) : kLargestMass, kLargestMass, &clamped);
  if (!(fabsf(mass - 1.f) < kMassError)) ++tally->counts[kMassErrorRows];
  if (nonfinite) ++tally->counts[kNonfiniteGradRows];
  else AddTerm(tally, kLogitGradSqSum, squares, kLargestSquare, &clamped);
  if (clamped) ++tally->counts[kClampedRows];
}

// The same without signals: only what the scalar loss needs.
__device__ __forceinline__ void TallyObjective(CtaTally* tally, const RowLoss& l) {
  bool clamped = false;
  if (l.finite) AddTerm(tally, kObjectiveSum, l.objective, kLargestSquare, &clamped);
  else tally->nonfinite = 1;
}

__device__ __forceinline__ Place WarpMaxPlace(Place p) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const Place other{__shfl_xor_sync(~0u, p.low, o), __shfl_xor_sync(~0u, p.high, o)};
    if (Beats(other, p)) p = other;
  }
  return p;
}

// Unsigned 128-bit maximum in device memory. `lock` is for devices before sm_90, which have no 128-bit exchange; few callers get past the first look.
__device__ __forceinline__ void AtomicMaxPlace(Place* to, Word* lock, const Place& x) {
  if (x.high == 0) return;
  const volatile Word* now = &to->low;
  Place seen{now[0], now[1]};  // may be torn; what follows decides
  if (!Beats(x, seen)) return;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  (void)lock;
  do {
    Place found;
    asm volatile(
        "{\n.reg .b128 expected, desired, got;\n"
        "mov.b128 expected, {%3, %4};\nmov.b128 desired, {%5, %6};\n"
        "atom.global.relaxed.gpu.cas.b128 got, [%2], expected, desired;\n"
        "mov.b128 {%0, %1}, got;\n}"
        : "=l"(found.low), "=l"(found.high)
        : "l"(to), "l"(seen.low), "l"(seen.high), "l"(x.low), "l"(x.high)
        : "memory");
    if (found.low == seen.low && found.high == seen.high) return;
    seen = found;
  } while (Beats(x, seen));
#else
  while (atomicExch(lock, 1ull) != 0) {
  }
  __threadfence();
  seen = {now[0], now[1]};
  if (Beats(x, seen)) {
    *const_cast<volatile Word*>(&to->low) = x.low;
    *const_cast<volatile Word*>(&to->high) = x.high;
  }
  __threadfence();
  atomicExch(lock, 0ull);
#endif
}

// Sums over the lanes of a warp. In pieces of 27 bits, of which 32 fit the one instruction that adds 32 bits of all lanes.
__device__ __forceinline__ lg_fixed128 WarpSum(const lg_fixed128& x) {
  constexpr unsigned kPiece = (1u << 27) - 1;
  const Word high = static_cast<Word>(x.hi);
  const Word a = __reduce_add_sync(~0u, static_cast<unsigned>(x.lo) & kPiece);
  const Word b = __reduce_add_sync(~0u, static_cast<unsigned>(x.lo >> 27) & kPiece);
  const Word c = __reduce_add_sync(~0u, static_cast<unsigned>(x.lo >> 54 | high << 10) & kPiece);
  const Word d = __reduce_add_sync(~0u, static_cast<unsigned>(high >> 17) & kPiece);
  const Word e = __reduce_add_sync(~0u, static_cast<unsigned>(high >> 44));
  const Word low = a + (b << 27), sum = low + (c << 54);
  return lg_fixed128_make(static_cast<int64_t>((c >> 10) + (d << 17) + (e << 44) + (sum < low)), sum);
}
// Adds the lanes' terms to one of the sums; `clamped` says whether this lane's was too large. The tally's own warp only.
__device__ __forceinline__ void AddTerms(CtaTally* tally, Sum sum, double x, double largest, bool counts, bool* clamped, int lane) {
  if (!counts) x = 0.;
  if (fabs(x) > largest) {
    x = x > 0 ? largest : -largest;
    *clamped = true;
  }
  const lg_fixed128 all = WarpSum(FixedFrom(x));
  if (lane == 0) AddTo(tally, sum, all);
}
__device__ __forceinline__ void AddCounts(CtaTally* tally, Count count, bool counts, int lane) {
  const unsigned lanes = __ballot_sync(~0u, counts);
  if (lane == 0 && lanes != 0) tally->counts[count] += static_cast<Word>(__popc(lanes));
}
// Raises `place` to the largest of the lanes'. `bits` is the value's ordered image, 0 = none; few batches get past the first look.
template <class Make>
__device__ __forceinline__ void RaisePlace(Place* place, unsigned bits, const Make& make, int lane) {
  const unsigned best = __reduce_max_sync(~0u, bits);
  if (best == 0 || best < static_cast<unsigned>(place->high >> 32)) return;
  const Place p = WarpMaxPlace(bits == best ? make() : Place{0, 0});
  if (lane == 0 && Beats(p, *place)) *place = p;
  __syncwarp();
}

// Rows of U with their losses, one a lane where `counts`, into a tally in shared memory that no other warp adds rows to. All lanes.
__device__ __forceinline__ void TallyRows(const CrossEntropyLaunch& a, CtaTally* tally, const RowSignals& s, const RowLoss& l, bool counts, int lane) {
  const bool finite = counts && l.finite, nonfinite = counts && !l.finite;
  const long long position = counts ? ReadPosition(a, s.row) : 0;
  if (__any_sync(~0u, nonfinite)) {
    AddCounts(tally, kNonfiniteRows, nonfinite, lane);
    Word first = nonfinite ? kPlaceMask + 1 - InPlaceRange(position) : 0;
#pragma unroll
    for (int o = 16; o; o >>= 1) first = max(first, __shfl_xor_sync(~0u, first, o));
    if (lane == 0) {
      tally->nonfinite = 1;
      tally->first_nonfinite_row = max(tally->first_nonfinite_row, first);
    }
  }
  bool clamped = false;
  AddCounts(tally, kFiniteTokens, finite, lane);
  AddCounts(tally, kTargetHits, finite, lane);
  AddCounts(tally, kCorrectTokens, finite && s.correct, lane);
  AddTerms(tally, kNllSum, l.nll, kLargestTerm, finite, &clamped, lane);
  AddTerms(tally, kObjectiveSum, l.objective, kLargestSquare, finite, &clamped, lane);
  if (a.z_loss_weight != 0.f) AddTerms(tally, kZLossSum, l.z_loss, kLargestSquare, finite, &clamped, lane);
  AddTerms(tally, kLogZSum, l.log_z, kLargestTerm, finite, &clamped, lane);
  AddTerms(tally, kLogZSqSum, l.log_z * l.log_z, kLargestSquare, finite, &clamped, lane);
  if (a.token_bytes != nullptr) {
    const unsigned bytes = finite && s.target < a.token_bytes_size ? a.token_bytes[s.target] : 0u;
    const unsigned all = __reduce_add_sync(~0u, bytes);
    if (lane == 0) tally->counts[kTargetBytes] += all;
    AddTerms(tally, kScoredNllSum, l.nll, kLargestTerm, bytes != 0, &clamped, lane);
  }
  AddCounts(tally, kClampedRows, clamped, lane);
  const unsigned log_z = __reduce_max_sync(~0u, finite ? OrderedBits(static_cast<float>(l.log_z)) : 0u);
  if (lane == 0) tally->log_z_max = max(tally->log_z_max, static_cast<Word>(log_z));
  const float nll = static_cast<float>(fmin(l.nll, kLargestTerm));
  RaisePlace(&tally->worst_row, finite ? OrderedBits(nll) : 0u, [&] { return MakePlace(nll, position, static_cast<Word>(s.target)); }, lane);
  RaisePlace(&tally->worst_logit, finite ? OrderedBits(s.max_abs) : 0u,
             [&] { return MakePlace(s.max_abs, position, kPlaceMask - InPlaceRange(s.max_abs_column)); }, lane);
}
// The gradients of finite rows.
__device__ __forceinline__ void TallyGradients(CtaTally* tally, double mass, float squares, bool nonfinite, bool counts, int lane) {
  bool clamped = false;
  AddTerms(tally, kProbabilityMass, mass == mass ? mass : kLargestMass, kLargestMass, counts, &clamped, lane);
  AddCounts(tally, kMassErrorRows, counts && !(fabs(mass - 1.) < kMassError), lane);
  AddCounts(tally, kNonfiniteGradRows, counts && nonfinite, lane);
  if (__any_sync(~0u, squares != 0.f)) AddTerms(tally, kLogitGradSqSum, squares, kLargestSquare, counts && !nonfinite, &clamped, lane);
  AddCounts(tally, kClampedRows, clamped, lane);
}
// Without signals: only what the scalar loss needs.
__device__ __forceinline__ void TallyObjectives(CtaTally* tally, const RowLoss& l, bool counts, int lane) {
  bool clamped = false;
  AddTerms(tally, kObjectiveSum, l.objective, kLargestSquare, counts && l.finite, &clamped, lane);
  if (__any_sync(~0u, counts && !l.finite) && lane == 0) tally->nonfinite = 1;
}

// Adds the lanes' own tallies to the CTA's, their places to the device's (null = none). A whole warp; other warps may do the same at the same time.
static __device__ __noinline__ void MergeLane(const CtaTally& lane_tally, CtaTally* cta, DeviceCounters* counters, int lane) {
  // One lane adds: 64-bit atomics of all lanes on one word of shared memory take their turns, which at a kernel's end took 15 us.
  // Loops that stay loops: this runs once, and its code comes from memory.
#pragma unroll 1
  for (int i = 0; i < kCounts; ++i) {
    if (!__any_sync(~0u, lane_tally.counts[i] != 0)) continue;
    const Word x = WarpSum(lane_tally.counts[i]);
    if (lane == 0) atomicAdd(&cta->counts[i], x);
  }
#pragma unroll 1
  for (int i = 0; i < kSums; ++i) {
    if (!__any_sync(~0u, (lane_tally.sums[i].lo | lane_tally.sums[i].hi) != 0)) continue;
    Word lo = lane_tally.sums[i].lo, hi = lane_tally.sums[i].hi;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const Word other = __shfl_xor_sync(~0u, lo, o);
      hi += __shfl_xor_sync(~0u, hi, o);
      lo += other;
      hi += lo < other;
    }
    if (lane == 0) AtomicAddTo(cta, static_cast<Sum>(i), lo, hi);
  }
  Word log_z_max = lane_tally.log_z_max, first_nonfinite_row = lane_tally.first_nonfinite_row;
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    log_z_max = max(log_z_max, __shfl_xor_sync(~0u, log_z_max, o));
    first_nonfinite_row = max(first_nonfinite_row, __shfl_xor_sync(~0u, first_nonfinite_row, o));
  }
  if (lane == 0 && log_z_max != 0) atomicMax(&cta->log_z_max, log_z_max);
  if (lane == 0 && first_nonfinite_row != 0) atomicMax(&cta->first_nonfinite_row, first_nonfinite_row);
  if (lane_tally.nonfinite) cta->nonfinite = 1;
  if (counters != nullptr) {
    const Place row = WarpMaxPlace(lane_tally.worst_row), logit = WarpMaxPlace(lane_tally.worst_logit);
    if (lane == 0) AtomicMaxPlace(&counters->worst_row, &counters->place_lock, row);
    if (lane == 1) AtomicMaxPlace(&counters->worst_logit, &counters->place_lock, logit);
  }
  __syncwarp();
}

// Adds a CTA's tally to the step's counters. All threads of the CTA; the tally is complete and visible.
__device__ __forceinline__ void FlushTally(CtaTally* tally, DeviceCounters* counters) {
  for (int i = threadIdx.x; i < kCounts + kSums + 2; i += blockDim.x) {
    if (i < kCounts) {
      if (const Word x = tally->counts[i]) atomicAdd(&counters->counts[i], x);
    } else if (i < kCounts + kSums) {
      const auto& from = tally->sums[i - kCounts];
      auto& to = counters->sums[i - kCounts];
      const Word lo = from.lo;
      Word hi = from.hi;
      if (lo != 0 && atomicAdd(&to.lo, lo) + lo < lo) ++hi;  // the carry goes on to the high word; both are right once all launches are done
      if (hi != 0) atomicAdd(&to.hi, hi);
    } else if (i == kCounts + kSums) {
      if (tally->log_z_max != 0) atomicMax(&counters->log_z_max, tally->log_z_max);
      if (tally->first_nonfinite_row != 0) atomicMax(&counters->first_nonfinite_row, tally->first_nonfinite_row);
    }
  }
}

// Where the end of a launch writes: what the launch was given, or a rehearsal's own memory.
struct LaunchEnd {
  LaunchScratch* scratch;
  DeviceCounters* counters;  // null = none
  float* loss;               // null = none
};

// The end of a launch, once every cluster (or CTA) has passed FlushTally and AddToLaunch: the scalar loss, the words of the launch as a whole, and
// the scratch back to zero. One thread.
__device__ __forceinline__ void FinishLaunch(const CrossEntropyLaunch& a, const LaunchEnd& end) {
  volatile LaunchScratch* const scratch = end.scratch;
  // All at once: nothing hides these latencies.
  const unsigned nonfinite = scratch->nonfinite, unmasked = scratch->unmasked;
  const Word lo = scratch->objective_lo, hi = scratch->objective_hi, counted = scratch->counted;
  const double denominator =
      a.count_denominator ? static_cast<double>(counted) : a.denominator_pointer != nullptr ? *a.denominator_pointer : a.denominator;
  scratch->next_ticket = scratch->finished_clusters = scratch->nonfinite = scratch->unmasked = 0;
  scratch->objective_lo = scratch->objective_hi = scratch->counted = 0;
  if (end.loss != nullptr) {
    float loss = 0.f;  // whatever the denominator: 0 / 0 must not be NaN
    if (unmasked) loss = static_cast<float>(lg_fixed128_to_double(lg_fixed128_make(static_cast<int64_t>(hi), lo)) / denominator);
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
    atomicAdd(&end.counters->micro_batches, 1ull);
  }
}

// What the scalar loss needs of a cluster (or CTA). One thread, beside FlushTally; a fence and a barrier follow.
__device__ __forceinline__ void AddToLaunch(const CrossEntropyLaunch& a, const CtaTally& tally) {
  LaunchScratch* scratch = a.scratch;
  const auto& sum = tally.sums[kObjectiveSum];
  if (tally.counts[kUnmaskedTokens] != 0) atomicOr(&scratch->unmasked, 1u);
  if (tally.nonfinite) atomicOr(&scratch->nonfinite, 1u);
  if (a.loss == nullptr) return;
  Word hi = sum.hi;
  if (sum.lo != 0 && atomicAdd(&scratch->objective_lo, sum.lo) + sum.lo < sum.lo) ++hi;
  if (hi != 0) atomicAdd(&scratch->objective_hi, hi);
}

// Reports that a cluster (or CTA) of the launch is through; the last of them ends the launch. One thread, after everything that the cluster added, fenced.
__device__ __forceinline__ void FinishCluster(const CrossEntropyLaunch& a, unsigned clusters) {
  if (atomicAdd(&a.scratch->finished_clusters, 1u) != clusters - 1) return;
  __threadfence();
  FinishLaunch(a, {a.scratch, a.counters, a.loss});
}

// Adds a CTA's tally to the step's counters. One warp, a lane for each word; the tally is visible to it.
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
    const bool row = lane == kCounts + kSums + 1;
    AtomicMaxPlace(row ? &counters->worst_row : &counters->worst_logit, &counters->place_lock, row ? tally->worst_row : tally->worst_logit);
  }
}
static_assert(kCounts + kSums + 2 < 31, "a lane for each word of a tally, and one for the launch");

// What a rehearsal writes to.
struct EndRehearsal {
  LaunchScratch scratch;
  DeviceCounters counters;
  float loss;
};

// The end of a CTA's part in the loss: adds its tally to the step's counters and to the launch's loss; the last of `of` CTAs ends the
// launch. One warp; the tally is visible to it.
// Nothing is left to hide its latencies, and the longest are those of its code, which comes from memory: 6 us where it runs for the first time. So it is
// rehearsed while the first rows are on their way: with a tally of zeros, which adds nothing, and with shared memory for what the launch's end writes.
static __device__ __noinline__ void EndLoss(const CrossEntropyLaunch& a, const CtaTally* tally, EndRehearsal* rehearsal, unsigned of, int lane) {
  if (lane == 31) AddToLaunch(a, *tally);
  if (a.counters != nullptr) AddTally(tally, a.counters, lane);
  LaunchEnd end{a.scratch, a.counters, a.loss};
  if (rehearsal != nullptr) {
    end.scratch = &rehearsal->scratch;
    if (end.counters != nullptr) end.counters = &rehearsal->counters;
    if (end.loss != nullptr) end.loss = &rehearsal->loss;
  } else {
    __threadfence();
    __syncwarp();
  }
  if (lane != 0) return;
  if (atomicAdd(&end.scratch->finished_clusters, 1u) != of - 1 && rehearsal == nullptr) return;
  __threadfence();
  FinishLaunch(a, end);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_TALLY_CUH_
