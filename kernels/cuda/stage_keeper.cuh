// Loss and signals of the stage kernel's rows, 32 at once, off the critical path.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_KEEPER_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_KEEPER_CUH_

#include "kernels/cuda/stage_tally.cuh"

namespace lossgauge::cuda {

// A lane's share of a row's mass: in steps of 2^-25, at most 1.94, so that those of a warp fit 31 bits. A row with more is wrong all the same.
constexpr float kStageMassSteps = 33554432.f, kMostStageMass = 1.9375f;
__device__ __forceinline__ uint32_t MassShare(float mass) { return __float2uint_rn(fminf(mass, kMostStageMass) * kStageMassSteps); }

// True if the emitted gradient of a row holds a value that is not finite: read back, for the rare row whose squares do not add up to a number.
template <class T>
static __device__ __noinline__ bool GradientHasNonfinite(const CrossEntropyLaunch& a, int row, int lane) {
  const unsigned char* const grad = a.grad + row * a.grad_stride_bytes;
  bool any = false;
  for (int i = lane; i < a.vocab_size; i += 32) any |= !(fabsf(Element<T>::Load(grad + static_cast<long long>(i) * Element<T>::kBytes)) < INFINITY);
  return __any_sync(~0u, any);
}

template <class C>
static __device__ __noinline__ void RunKeeper(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally, int keeper, int lane) {
  KeeperShare share;
  for (unsigned first = keeper * kPartRows;; first += C::KEEPERS * kPartRows) {
    const BookPlace<C> place{base, first + lane};
    BarrierWait(place.full(), place.phase());
    __syncwarp();
    const BookEntry e = LoadBookEntry(place.entry());
    uint32_t masses = 0;
    float squares = e.target_square;
    if constexpr (C::SIGNALS) {
#pragma unroll
      for (int i = 0; i < C::kMasses; ++i) masses += LoadShared4(place.mass(i));
#pragma unroll
      for (int i = 0; i < C::kShares; ++i) squares += __uint_as_float(LoadShared4(place.share(i)));
    }
    __syncwarp();
    ArriveAsWarp(place.empty(), lane);
    const bool counts = e.row >= 0;
    RowLoss l{};
    float target_mass = 0.f;
    if (counts) {
      const RowSums sums = CompleteSums(e.others, e.others_max, e.z_target, e.z_sum, ScaleOf<C>(a));
      l = MakeRowLoss(sums, a.label_smoothing, a.z_loss_weight, a.vocab_size, ScaleOf<C>(a));
      l.finite = e.finite;
      target_mass = sums.target / sums.total();
      if (a.losses != nullptr) a.losses[e.row] = static_cast<float>(l.objective);
      if (a.log_z != nullptr) a.log_z[e.row] = static_cast<float>(l.log_z);
    }
    __syncwarp();
    share.counts[kUnmaskedTokens] += counts;
    if constexpr (C::SIGNALS) {
      const float max_abs = ZOf<C>(a, __uint_as_float(e.magnitude));
      share.AddRow(a, tally, {e.row, e.target, e.z_target, max_abs, static_cast<int>(e.column), e.correct}, l, counts, lane);
      if (a.grad != nullptr) {
        const bool finite = counts && l.finite;
        bool nonfinite = e.nonfinite;
        const bool doubtful = finite && !nonfinite && !(squares < INFINITY);
        for (unsigned rows = __ballot_sync(~0u, doubtful); rows != 0; rows &= rows - 1) {
          const int i = __ffs(static_cast<int>(rows)) - 1;
          const bool found = GradientHasNonfinite<typename C::T>(a, __shfl_sync(~0u, e.row, i), lane);
          if (lane == i) nonfinite = found;
        }
        if (doubtful || !finite || nonfinite) squares = 0.f;
        share.AddGradient(static_cast<double>(masses) / kStageMassSteps + static_cast<double>(target_mass), squares, nonfinite, finite);
      }
    } else {
      share.AddObjective(tally, l, counts, lane);
    }
    __syncwarp();
    if (__any_sync(~0u, e.row == kEndRow)) break;
  }
  share.template Flush<C::SIGNALS>(tally, lane);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_KEEPER_CUH_
