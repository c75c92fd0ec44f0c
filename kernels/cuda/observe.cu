// One thread that adds what the host already has in integers: the same additions as a loss launch's, so the order among launches never shows.
#include "kernels/cuda/observe.h"

#include <cstring>

namespace lossgauge::cuda {
namespace {

struct ObserveLaunch {
  DeviceCounters* counters;
  Word tokens, unmasked_tokens, finite_tokens, nonfinite_rows, clamped_rows;
  Word nll_lo, nll_hi;
  Word denominator_bits;  // 0 = none
  Word present;
};

__global__ void Observe(const __grid_constant__ ObserveLaunch a) {
  DeviceCounters* c = a.counters;
  atomicAdd(&c->counts[kTokens], a.tokens);
  atomicAdd(&c->counts[kUnmaskedTokens], a.unmasked_tokens);
  atomicAdd(&c->counts[kFiniteTokens], a.finite_tokens);
  if (a.nonfinite_rows != 0) atomicAdd(&c->counts[kNonfiniteRows], a.nonfinite_rows);
  if (a.clamped_rows != 0) atomicAdd(&c->counts[kClampedRows], a.clamped_rows);
  const Word before = atomicAdd(&c->sums[kNllSum].lo, a.nll_lo);
  const Word high = a.nll_hi + (before + a.nll_lo < before ? 1 : 0);
  if (high != 0) atomicAdd(&c->sums[kNllSum].hi, high);
  if (a.denominator_bits != 0) {
    atomicMax(&c->denominator_min, ~a.denominator_bits);
    atomicMax(&c->denominator_max, a.denominator_bits);
  }
  atomicOr(&c->present, a.present);
  if (a.unmasked_tokens != 0) atomicOr(&c->absent, ~a.present);
  atomicAdd(&c->micro_batches, 1ull);
}

}  // namespace

cudaError_t LaunchObserve(const LaunchCounters& observed, DeviceCounters* counters, cudaStream_t stream) {
  ObserveLaunch launch{};
  launch.counters = counters;
  launch.tokens = observed.tokens;
  launch.unmasked_tokens = observed.unmasked_tokens;
  launch.finite_tokens = observed.finite_tokens;
  launch.nonfinite_rows = observed.nonfinite_rows;
  launch.clamped_rows = observed.clamped_rows;
  launch.nll_lo = observed.nll_sum.lo;
  launch.nll_hi = static_cast<Word>(observed.nll_sum.hi);
  launch.present = observed.present;
  if (observed.denominator > 0) {
    std::memcpy(&launch.denominator_bits, &observed.denominator, sizeof launch.denominator_bits);
    launch.present |= LG_HAS_DENOMINATOR;
  }
  Observe<<<1, 1, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
