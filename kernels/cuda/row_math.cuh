// The arithmetic of one row, once its sums are known. Formulas: kernels/include/lossgauge/lossgauge.h.
//
// Everything depends on z - max only, which is exact in fp32: adding a constant to all logits changes no bit. The target's exponential is kept apart
// from the others', so that 1 - p of a confident token is (sum of the others) / (sum of all) and never a difference.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_

#include <cfloat>

#include "kernels/cuda/device_counters.h"
#include "kernels/cuda/ptx.cuh"

namespace lossgauge::cuda {

constexpr float kLog2E = 1.4426950408889634f;
// Where a running maximum starts. Not -inf: (-inf) - (-inf) would be NaN in a slice that holds nothing but -inf, while (-inf) - kLowest is -inf.
constexpr float kLowest = -FLT_MAX;

__device__ __forceinline__ float ExpShifted(float z, float max) { return Exp2((z - max) * kLog2E); }

struct RowSums {
  float max;     // over all columns, kLowest if there are only -inf
  float others;  // sum over the other columns of e^(z - max)
  float target;  // e^(z_t - max)
  float z_target;
  float z_sum;  // over all columns; only with label smoothing
  __device__ __forceinline__ float total() const { return others + target; }
  // False: a NaN, a +inf, or nothing but -inf.
  __device__ __forceinline__ bool defined() const {
    const float t = total();
    return t > 0.f && t < INFINITY && fabsf(max) < INFINITY;
  }
};

// `others` comes relative to `others_max`. The lead of a confident target over the others is formed in double: in fp32 it would cost the digits that the
// sum of the others was kept apart for.
__device__ __forceinline__ RowSums CompleteSums(float others, float others_max, float z_target, float z_sum) {
  RowSums r;
  r.max = fmaxf(others_max, z_target);
  const double exponent = (static_cast<double>(others_max) - static_cast<double>(r.max)) * 1.4426950408889634;
  if (exponent < -300.) {
    r.others = others * 0.f;  // keeps a NaN
  } else {
    const float high = static_cast<float>(exponent);
    const float low = static_cast<float>(exponent - high);
    r.others = others * Exp2(high);
    r.others = fmaf(r.others, low * 0.6931472f, r.others);
  }
  r.target = ExpShifted(z_target, r.max);
  r.z_target = z_target;
  r.z_sum = z_sum;
  return r;
}

// What every column's gradient is made of: fma(e^(z - max), scale, offset), and the target's own value.
struct RowGradient {
  float max, scale, offset, target;
  float inverse_total;  // e^(z - max) * inverse_total = p
  float after;          // 1, or what a gradient whose factor is 0 or not finite is multiplied with at the end
};

struct Factor {
  float value;    // upstream * grad_scale / denominator where that is finite and not 0, else 1 / denominator
  float restore;  // what undoes it: value * restore = 1
  float after;
};

__device__ __forceinline__ Factor MakeFactor(float scale, double denominator) {
  const double factor = static_cast<double>(scale) / denominator;
  Factor f{static_cast<float>(factor), static_cast<float>(denominator / scale), 1.f};
  if (!(fabsf(f.value) > 0.f && fabsf(f.value) < INFINITY)) {
    f.after = factor == 0. ? 0.f : static_cast<float>(factor);
    f.value = static_cast<float>(1. / denominator);
    f.restore = static_cast<float>(denominator);
    if (!(fabsf(f.value) < INFINITY)) f.value = f.restore = 1.f;
  }
  return f;
}

__device__ __forceinline__ RowGradient MakeRowGradient(const RowSums& r, const Factor& f, float smoothing, float z_weight, int vocab) {
  RowGradient g;
  g.max = r.max;
  const float total = r.total();
  g.inverse_total = 1.f / total;
  float penalty = 0.f;
  if (z_weight != 0.f) penalty = 2.f * z_weight * (r.max + logf(total));
  g.scale = g.inverse_total * (1.f + penalty) * f.value;
  const float each = smoothing / static_cast<float>(vocab);
  g.offset = smoothing != 0.f ? -each * f.value : 0.f;
  const float rest = r.others * g.inverse_total;
  g.target = (-rest + penalty * (r.target * g.inverse_total) + (smoothing - each)) * f.value;
  if (!r.defined()) g.scale = g.target = NAN;
  g.after = f.after;
  return g;
}

struct RowLoss {
  double nll, log_z, objective, z_loss;
  bool finite;
};
__device__ __forceinline__ RowLoss MakeRowLoss(const RowSums& r, float smoothing, float z_weight, int vocab) {
  RowLoss l;
  const double total = static_cast<double>(r.others) + r.target;
  l.log_z = static_cast<double>(r.max) + log(total);
  const double gap = static_cast<double>(r.max) - r.z_target;  // 0 when the target is the maximum
  l.nll = gap == 0. ? log1p(static_cast<double>(r.others)) : gap + log(total);
  l.z_loss = z_weight != 0.f ? z_weight * l.log_z * l.log_z : 0.;
  l.objective = l.nll + l.z_loss;
  if (smoothing != 0.f) l.objective = (1. - smoothing) * l.nll + smoothing * (l.log_z - static_cast<double>(r.z_sum) / vocab) + l.z_loss;
  if (!r.defined()) l.nll = l.log_z = l.objective = NAN;
  l.finite = fabs(l.objective) < INFINITY;
  return l;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_
