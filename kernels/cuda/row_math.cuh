// The arithmetic of one row, once its sums are known. Formulas: kernels/include/lossgauge/lossgauge.h.
//
// Everything depends on z - max only: adding a constant to all fp32 logits changes no bit. The target's exponential is kept apart from the others', so
// that 1 - p of a confident token is (sum of the others) / (sum of all) and never a difference.
//
// `scale`: z = scale * logit, scale > 0. Maxima, targets and sums of z stay those of the logits, which are exact, and what is made of them is scaled. Kernels
// come with a scale or without (C::SCALED), so that those without pay nothing for it.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_

#include <cfloat>

#include "kernels/cuda/device_counters.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lossgauge::cuda {

constexpr float kLog2E = 1.4426950408889634f;
// Where a running maximum starts. Not -inf: (-inf) - (-inf) would be NaN in a slice that holds nothing but -inf, while (-inf) - kLowest is -inf.
constexpr float kLowest = -FLT_MAX;

constexpr float kLn2 = 0.6931471805599453f;

// e^d for d <= 0, without the rounding of the exponent that an fp32 product has.
__device__ __forceinline__ float ExpExact(double d) {
  double x = d * 1.4426950408889634;
  x = x < -300. ? -300. : x;  // keeps a NaN
  const float high = static_cast<float>(x);
  const float e = Exp2WithSubnormals(high);
  return fmaf(e, static_cast<float>(x - high) * kLn2, e);
}

// What a kernel multiplies logits with in exponents, and in all else.
__device__ constexpr ExponentSlopes UnscaledSlopes() { return {kLog2E, 0.5f, 2e5f, 1.925963033500e-8f, -200.f}; }
template <class C>
__device__ __forceinline__ ExponentSlopes SlopesOf(const CrossEntropyLaunch& a) {
  if constexpr (C::SCALED) return a.slopes;
  return UnscaledSlopes();
}
template <class C>
__device__ __forceinline__ double ScaleOf(const CrossEntropyLaunch& a) {
  if constexpr (C::SCALED) return a.logit_scale;
  return 1.;
}
// z of a logit's magnitude.
template <class C>
__device__ __forceinline__ float ZOf(const CrossEntropyLaunch& a, float magnitude) {
  if constexpr (C::SCALED) return static_cast<float>(a.logit_scale * magnitude);
  return magnitude;
}
// Bits of the magnitude that logits must reach to become the step's largest z, given what earlier launches have seen.
template <class C>
__device__ __forceinline__ unsigned LargestLogitBefore(const CrossEntropyLaunch& a) {
  const unsigned bits = static_cast<unsigned>(a.counters->worst_logit.high >> 32) & 0x7fffffffu;
  // Rounded down: a row too many only costs a look.
  if constexpr (C::SCALED) return __float_as_uint(static_cast<float>(__uint_as_float(bits) / a.logit_scale * .999999));
  return bits;
}

// e^(z - max) of a dtype's logits, times a factor near 1 that is the same for all logits of a row (`Unit` undoes it).
template <class T>
struct Exponential {
  float max, slope, rest, lowest;
  __device__ __forceinline__ void Set(float to, const ExponentSlopes& slopes, float = 0.f) {
    max = to;
    slope = slopes.exact;
    rest = slopes.rest;
    lowest = slopes.lowest;
  }
  // What a sum is multiplied with when the maximum rises from `before` to this.
  __device__ __forceinline__ float From(const Exponential& before) const { return Exp2((before.max - max) * slope); }
  // Product and exponential in fp32, then the rounding of the product made up for: fp32 logits promise 1e-6.
  __device__ __forceinline__ float Of(float z) const {
    float d = z - max;
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(d) : "f"(lowest));  // the correction of -inf would be NaN
    const float x = d * slope;
    const float low = fmaf(d, rest, fmaf(d, slope, -x));
    const float e = Exp2WithSubnormals(x);
    return fmaf(e, low * kLn2, e);
  }
  __device__ __forceinline__ float Unit() const { return 1.f; }
  // All that `Of` needs, for another thread.
  __device__ __forceinline__ float2 Packed() const { return make_float2(max, 0.f); }
  __device__ __forceinline__ void Unpack(float2 from, const ExponentSlopes& slopes) { Set(from.x, slopes); }
};
// 16-bit logits: one fused multiply-add before the exponential. Its only rounding is of the sum; that of `shift` is common to the row.
struct FusedExponential {
  float max, slope, shift, lift = 0.f;
  // All exponentials come times 2^by: a subnormal gradient is made of exponentials that would be flushed to 0.
  __device__ __forceinline__ void Set(float to, const ExponentSlopes& slopes, float by = 0.f) {
    max = to;
    // So large that exponents of neighbouring bf16 numbers are hundreds apart: a slope whose products are exact gives 1 for the maximum and 0 for all others,
    // where the rounding of a product may be a whole number.
    slope = fabsf(to) > slopes.limit ? slopes.coarse : slopes.exact;
    lift = slope == slopes.exact ? by : 0.f;
    shift = to * slope - lift;
  }
  __device__ __forceinline__ float From(const FusedExponential& before) const { return before.slope == slope ? Exp2(before.shift - shift) : 0.f; }
  __device__ __forceinline__ float Of(float z) const { return Exp2(fmaf(z, slope, -shift)); }
  __device__ __forceinline__ float Unit() const { return fmaf(fmaf(max, slope, -shift) - lift, -kLn2, 1.f) * exp2f(-lift); }
  __device__ __forceinline__ float2 Packed() const { return make_float2(slope, shift); }
  __device__ __forceinline__ void Unpack(float2 from, const ExponentSlopes&) {
    slope = from.x;
    shift = from.y;
  }
};
template <>
struct Exponential<__nv_bfloat16> : FusedExponential {};
template <>
struct Exponential<__half> : FusedExponential {};

struct RowSums {
  float max;     // over all columns, kLowest if there are only -inf
  float others;  // sum over the other columns of e^(z - max)
  float target;  // e^(z_t - max)
  float z_target, z_target_low;  // z_t is their sum
  float z_sum;                   // over all columns; only with label smoothing
  __device__ __forceinline__ float total() const { return others + target; }
  // False: a NaN, a +inf, or nothing but -inf.
  __device__ __forceinline__ bool defined() const {
    const float t = total();
    return t > 0.f && t < INFINITY && fabsf(max) < INFINITY;
  }
};

// `others` comes relative to `others_max`. The lead of a confident target over the others is formed in double: in fp32 it would cost the digits that the
// sum of the others was kept apart for.
__device__ __forceinline__ RowSums CompleteSums(float others, float others_max, float z_target, float z_sum, double scale, float z_target_low = 0.f) {
  RowSums r;
  r.max = fmaxf(others_max, z_target);
  r.others = others;
  r.target = 1.f;
  if (z_target > others_max) r.others *= ExpExact((static_cast<double>(others_max) - static_cast<double>(z_target)) * scale);
  if (z_target < others_max || z_target_low != 0.f || z_target != z_target)
    r.target = ExpExact((static_cast<double>(z_target) - static_cast<double>(r.max)) * scale + z_target_low);
  r.z_target = z_target;
  r.z_target_low = z_target_low;
  r.z_sum = z_sum;
  return r;
}

// What every column's gradient is made of: fma(e^(z - max), scale, offset), and the target's own value.
struct RowGradient {
  float max, scale, offset, target;
  float inverse_total;  // e^(z - max) * inverse_total = p
  float after;          // 1, or what a gradient whose factor is 0 or not finite is multiplied with at the end
  float before_squares;
  // Nothing but what the fast path does.
  __device__ __forceinline__ bool plain() const { return after == 1.f && before_squares == 1.f; }
};

struct Factor {
  float value;    // scale * upstream * grad_scale / denominator where that is finite and not 0, else scale / denominator
  float restore;  // what undoes value and before_squares, but for the scale: value * before_squares * restore = scale
  float after;
  float before_squares;  // power of two that keeps squares of a tiny or huge gradient within fp32; 1 for all others
};

template <class T>
__device__ __forceinline__ Factor MakeFactor(float upstream, double denominator, double scale) {
  const double factor = static_cast<double>(upstream) / denominator;
  Factor f{static_cast<float>(factor * scale), static_cast<float>(denominator / upstream), 1.f, 1.f};
  if (!(fabsf(f.value) > 0.f && fabsf(f.value) < INFINITY)) {
    f.after = factor == 0. ? 0.f : static_cast<float>(factor);
    f.value = static_cast<float>(scale / denominator);
    f.restore = static_cast<float>(denominator);
    if (!(fabsf(f.value) < INFINITY)) {
      f.value = static_cast<float>(scale);
      f.restore = 1.f;
    }
  }
  const float magnitude = fabsf(f.value);
  constexpr bool kHalf = Element<T>::kMinusInfinity == Element<__half>::kMinusInfinity;  // which holds nothing whose square fp32 cannot
  if (!kHalf && (magnitude < 9.094947e-13f || magnitude > 1.0995116e12f)) {
    f.before_squares = exp2f(static_cast<float>(-max(-126, min(126, ilogbf(magnitude)))));
    f.restore = static_cast<float>(scale / (static_cast<double>(f.value) * static_cast<double>(f.before_squares)));
  }
  return f;
}

__device__ __forceinline__ RowGradient MakeRowGradient(const RowSums& r, const Factor& f, float smoothing, float z_weight, int vocab, double scale) {
  RowGradient g;
  g.max = r.max;
  const float total = r.total();
  g.inverse_total = 1.f / total;
  float penalty = 0.f;
  if (z_weight != 0.f) penalty = 2.f * z_weight * (static_cast<float>(scale) * r.max + logf(total));
  g.scale = g.inverse_total * (1.f + penalty) * f.value;
  const float each = smoothing != 0.f ? smoothing / static_cast<float>(vocab) : 0.f;  // a division of 0 takes 50 instructions
  g.offset = smoothing != 0.f ? -each * f.value : 0.f;
  const float rest = r.others * g.inverse_total;
  g.target = (-rest + penalty * (r.target * g.inverse_total) + (smoothing - each)) * f.value;
  if (!r.defined()) g.scale = g.target = NAN;
  g.after = f.after;
  g.before_squares = f.before_squares;
  return g;
}

struct RowLoss {
  double nll, log_z, objective, z_loss;
  bool finite;
};
__device__ __forceinline__ RowLoss MakeRowLoss(const RowSums& r, float smoothing, float z_weight, int vocab, double scale) {
  RowLoss l;
  const double total = static_cast<double>(r.others) + r.target;
  l.log_z = scale * r.max + log(total);
  // log Z - z_t would lose the digits of a confident row.
  l.nll = r.others < r.target ? log1p(static_cast<double>(r.others) / r.target)
                              : scale * (static_cast<double>(r.max) - r.z_target) - r.z_target_low + log(total);
  l.z_loss = z_weight != 0.f ? z_weight * l.log_z * l.log_z : 0.;
  l.objective = l.nll + l.z_loss;
  if (smoothing != 0.f && vocab > 1) l.objective = (1. - smoothing) * l.nll + smoothing * (l.log_z - (scale * r.z_sum + r.z_target_low) / vocab) + l.z_loss;
  if (!r.defined()) l.nll = l.log_z = l.objective = NAN;
  l.finite = fabs(l.objective) < INFINITY;
  return l;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROW_MATH_CUH_
