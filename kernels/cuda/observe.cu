// One thread that adds what a job counted itself: the same additions as a loss launch's, so the order among launches never shows.
#include "kernels/cuda/observe.h"

namespace lossgauge::cuda {
namespace {

__global__ void Observe(const __grid_constant__ Observed observed, DeviceCounters* c) {
  const ObservedCounts counts = CountObserved(observed);
  Word present = LG_HAS_LOSS;
  atomicAdd(&c->counts[kTokens], counts.tokens);
  atomicAdd(&c->counts[kUnmaskedTokens], counts.unmasked_tokens);
  atomicAdd(&c->counts[kFiniteTokens], counts.finite_tokens);
  if (counts.nonfinite_rows != 0) atomicAdd(&c->counts[kNonfiniteRows], counts.nonfinite_rows);
  if (counts.clamped_rows != 0) atomicAdd(&c->counts[kClampedRows], counts.clamped_rows);
  const Word before = atomicAdd(&c->sums[kNllSum].lo, static_cast<Word>(counts.nll_sum.lo));
  const Word high = static_cast<Word>(counts.nll_sum.hi) + (before + counts.nll_sum.lo < before ? 1 : 0);
  if (high != 0) atomicAdd(&c->sums[kNllSum].hi, high);
  if (counts.denominator > 0) {
    const Word bits = static_cast<Word>(__double_as_longlong(counts.denominator));
    atomicMax(&c->denominator_min, ~bits);
    atomicMax(&c->denominator_max, bits);
    present |= LG_HAS_DENOMINATOR;
  }
  atomicOr(&c->present, present);
  if (counts.unmasked_tokens != 0) atomicOr(&c->absent, ~present);
  atomicAdd(&c->micro_batches, 1ull);
}

}  // namespace

cudaError_t LaunchObserve(const Observed& observed, DeviceCounters* counters, cudaStream_t stream) {
  Observe<<<1, 1, 0, stream>>>(observed, counters);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
