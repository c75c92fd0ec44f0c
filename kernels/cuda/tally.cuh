// Signals on their way into the device's counters: 32 rows at a time into a tally in shared memory. Tallies end in DeviceCounters: launch_end.cuh.
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
  Place worst_logit, worst_row;
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
  int max_abs_column;   // valid if max_abs reaches the largest of earlier rows
  bool correct;
  bool hit = true;      // the target is one of the columns at hand
};

constexpr float kMassError = 1e-3f;

__device__ __forceinline__ Place WarpMaxPlace(Place p) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const Place other{__shfl_xor_sync(~0u, p.low, o), __shfl_xor_sync(~0u, p.high, o)};
    if (Beats(other, p)) p = other;
  }
  return p;
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
  AddCounts(tally, kTargetHits, finite && s.hit, lane);
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
// The gradients of finite rows. `share`: what their mass should be.
__device__ __forceinline__ void TallyGradients(CtaTally* tally, double mass, float squares, bool nonfinite, bool counts, int lane, double share = 1.) {
  bool clamped = false;
  AddTerms(tally, kProbabilityMass, mass == mass ? mass : kLargestMass, kLargestMass, counts, &clamped, lane);
  AddCounts(tally, kMassErrorRows, counts && !(fabs(mass - share) < kMassError), lane);
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

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_TALLY_CUH_
