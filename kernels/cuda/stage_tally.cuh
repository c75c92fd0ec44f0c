// What a keeper counts: TallyRows and TallyGradients of tally.cuh with a share of each sum in each lane, which are put together once, at the end. Keepers see
// one batch of rows after another with nothing else to do; what they exchange within a batch is half of their time.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_TALLY_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_TALLY_CUH_

#include "kernels/cuda/stage_layout.cuh"

namespace lossgauge::cuda {

struct KeeperShare {
  lg_fixed128 sums[kSums]{};   // all indices are constants: registers
  unsigned counts[kCounts]{};  // fewer rows than 2^32 in a launch
  Word target_bytes = 0;
  unsigned log_z_max = 0;                       // ordered image
  unsigned worst_row = 0, worst_logit = 0;      // ordered images of the tally's, the same in all lanes
  Word mask_fingerprint = 0, target_fingerprint = 0;

  __device__ __forceinline__ void AddTerm(Sum sum, double x, double largest, bool counts_too, bool* clamped) {
    if (!counts_too) x = 0.;
    if (fabs(x) > largest) {
      x = x > 0 ? largest : -largest;
      *clamped = true;
    }
    sums[sum] = lg_fixed128_add(sums[sum], FixedFrom(x));
  }

  // Rows of U with their losses, one a lane where `counts_too`. All lanes.
  __device__ __forceinline__ void AddRow(const CrossEntropyLaunch& a, CtaTally* tally, const RowSignals& s, const RowLoss& l, bool counts_too, int lane) {
    const bool finite = counts_too && l.finite, nonfinite = counts_too && !l.finite;
    const long long position = counts_too ? ReadPosition(a, s.row) : 0;
    if (__any_sync(~0u, nonfinite)) {
      Word first = nonfinite ? kPlaceMask + 1 - InPlaceRange(position) : 0;
#pragma unroll
      for (int o = 16; o; o >>= 1) first = max(first, __shfl_xor_sync(~0u, first, o));
      if (lane == 0) {
        tally->nonfinite = 1;
        tally->first_nonfinite_row = max(tally->first_nonfinite_row, first);
      }
      __syncwarp();
    }
    bool clamped = false;
    counts[kNonfiniteRows] += nonfinite;
    counts[kFiniteTokens] += finite;
    counts[kCorrectTokens] += finite && s.correct;
    if (counts_too) {
      target_fingerprint += lg_target_hash(s.target);
      mask_fingerprint += lg_position_hash(position, s.target);
    }
    AddTerm(kNllSum, l.nll, kLargestTerm, finite, &clamped);
    AddTerm(kObjectiveSum, l.objective, kLargestSquare, finite, &clamped);
    if (a.z_loss_weight != 0.f) AddTerm(kZLossSum, l.z_loss, kLargestSquare, finite, &clamped);
    AddTerm(kLogZSum, l.log_z, kLargestTerm, finite, &clamped);
    AddTerm(kLogZSqSum, l.log_z * l.log_z, kLargestSquare, finite, &clamped);
    if (a.token_bytes != nullptr) {
      const unsigned bytes = finite && s.target < a.token_bytes_size ? a.token_bytes[s.target] : 0u;
      target_bytes += bytes;
      AddTerm(kScoredNllSum, l.nll, kLargestTerm, bytes != 0, &clamped);
    }
    counts[kClampedRows] += clamped;
    if (finite) log_z_max = max(log_z_max, OrderedBits(static_cast<float>(l.log_z)));
    const float nll = static_cast<float>(fmin(l.nll, kLargestTerm));
    Raise(&tally->worst_row, &worst_row, finite ? OrderedBits(nll) : 0u, [&] { return MakePlace(nll, position, static_cast<Word>(s.target)); }, lane);
    Raise(&tally->worst_logit, &worst_logit, finite ? OrderedBits(s.max_abs) : 0u,
          [&] { return MakePlace(s.max_abs, position, kPlaceMask - InPlaceRange(s.max_abs_column)); }, lane);
  }
  // The gradients of finite rows.
  __device__ __forceinline__ void AddGradient(double mass, float squares, bool nonfinite, bool counts_too) {
    bool clamped = false;
    AddTerm(kProbabilityMass, mass == mass ? mass : kLargestMass, kLargestMass, counts_too, &clamped);
    counts[kMassErrorRows] += counts_too && !(fabs(mass - 1.) < kMassError);
    counts[kNonfiniteGradRows] += counts_too && nonfinite;
    AddTerm(kLogitGradSqSum, squares, kLargestSquare, counts_too && !nonfinite, &clamped);
    counts[kClampedRows] += clamped;
  }
  // Without signals: only what the scalar loss needs.
  __device__ __forceinline__ void AddObjective(CtaTally* tally, const RowLoss& l, bool counts_too, int lane) {
    bool clamped = false;
    AddTerm(kObjectiveSum, l.objective, kLargestSquare, counts_too && l.finite, &clamped);
    if (__any_sync(~0u, counts_too && !l.finite) && lane == 0) tally->nonfinite = 1;
  }

  template <class Make>
  static __device__ __forceinline__ void Raise(Place* place, unsigned* known, unsigned bits, const Make& make, int lane) {
    if (!__any_sync(~0u, bits != 0 && bits >= *known)) return;
    RaisePlace(place, bits, make, lane);
    __syncwarp();
    *known = static_cast<unsigned>(place->high >> 32);
  }

  // Into the tally, which no other warp adds sums to.
  template <bool kSignals>
  __device__ __forceinline__ void Flush(CtaTally* tally, int lane) {
    const auto add = [&](Sum sum) {
      const lg_fixed128 all = WarpSum(sums[sum]);
      if (lane == 0) AddTo(tally, sum, all);
    };
    const auto count = [&](Count to, Count from) {
      const unsigned all = __reduce_add_sync(~0u, counts[from]);
      if (lane == 0) tally->counts[to] += all;
    };
    count(kUnmaskedTokens, kUnmaskedTokens);
    add(kObjectiveSum);
    if constexpr (kSignals) {
      add(kNllSum);
      add(kZLossSum);
      add(kScoredNllSum);
      add(kLogZSum);
      add(kLogZSqSum);
      add(kLogitGradSqSum);
      add(kProbabilityMass);
      count(kFiniteTokens, kFiniteTokens);
      count(kTargetHits, kFiniteTokens);
      count(kNonfiniteRows, kNonfiniteRows);
      count(kClampedRows, kClampedRows);
      count(kNonfiniteGradRows, kNonfiniteGradRows);
      count(kMassErrorRows, kMassErrorRows);
      count(kCorrectTokens, kCorrectTokens);
      const unsigned log_z = __reduce_max_sync(~0u, log_z_max);
      const Word bytes = WarpSum(target_bytes), mask = WarpSum(mask_fingerprint), target = WarpSum(target_fingerprint);
      if (lane == 0) {
        tally->counts[kTargetBytes] += bytes;
        tally->counts[kMaskFingerprint] = mask;
        tally->counts[kTargetFingerprint] = target;
        tally->log_z_max = log_z;
      }
    }
    __syncwarp();
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_TALLY_CUH_
