// z = softcap(scale * logit), and what a row's sweeps need of it: e^(z - reference) and dz/dlogit.
//
// In double where it decides: a capped logit that is rounded to fp32 shows in a loss that promises 1e-6. But only as much of it as that takes (the double
// functions of CUDA's library, right to the last bit, take five times as long): powers of two from a polynomial, tanh from one of them and a Newton step.
// A difference to the reference is rounded to fixed point by one addition, and what is left are exponent and mantissa of an fp32 exponential.
#ifndef LOSSGAUGE_KERNELS_CUDA_MAPPED_LOGITS_CUH_
#define LOSSGAUGE_KERNELS_CUDA_MAPPED_LOGITS_CUH_

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/row_math.cuh"

namespace lossgauge::cuda {

constexpr double kLog2EDouble = 1.4426950408889634;

// Exact to the last bits of a double. For the few logits that a row needs by themselves.
struct ExactMap {
  double scale, cap;  // cap 0: none
  __device__ __forceinline__ double Z(float logit) const {
    const double x = logit * scale;
    return cap == 0. ? x : cap * tanh(x / cap);
  }
};

// Minimax of the relative error of 2^f over [-1/2, 1/2]; in constant memory, or each use costs two moves.
__constant__ double kExp2Terms[8] = {0.9999999999616821,  0.6931471807284463,   0.2402265119815735,     0.055504103534512496,
                                     0.009618027253675493, 0.001333392256053775, 0.00015469291142322498, 1.520192233090748e-05};

// 2^x for |x| < 1000, to 4e-11.
__device__ __forceinline__ double Exp2Double(double x) {
  constexpr double kRound = 6755399441055744.;  // 1.5 * 2^52: the nearest whole number is the sum's low word
  const double whole = x + kRound, f = x - (whole - kRound);
  double p = kExp2Terms[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) p = fma(p, f, kExp2Terms[i]);
  return __hiloint2double(__double2hiint(p) + (__double2loint(whole) << 20), __double2loint(p));
}
// To 1e-12, of a number that is neither subnormal nor infinite.
__device__ __forceinline__ double ReciprocalDouble(double x) {
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
  return fma(fma(-x, r, 1.), r, r);
}

// Numbers in [-256, 256) in steps of 2^-23, as the low word of a sum with this.
constexpr double kFixed = 805306368.;  // 1.5 * 2^29
// 2^(x + 1) of such a sum; 0 for x below -121.
__device__ __forceinline__ float Exp2Fixed(double sum) {
  const int x = __double2loint(sum);
  const float p = Exp2(__int_as_float((x & 0x7fffff) | 0x3f800000));
  return x < -121 * (1 << 23) ? 0.f : __int_as_float(__float_as_int(p) + (x & ~0x7fffff));
}

// A negative scale turns the sign of all logits round first: z rises with what is called x here.
constexpr double kMostRaise = 40.;
template <class T, LogitMap kMap>
class MappedLogits {
  using E = Element<T>;

 public:
  __device__ __forceinline__ MappedLogits(double scale, double cap)
      : flip_(scale < 0. ? kSigns : 0u), scale_(fabs(scale)), steep_(fabs(scale) * kLog2EDouble), cap_(cap), reach_(cap * kLog2EDouble),
        fall_(-2. * steep_ / cap), slope_(static_cast<float>(kMap == LogitMap::kHighCap ? copysign(1., scale) : scale)) {
    if constexpr (kMap == LogitMap::kCap) limit_ = static_cast<float>(fmin(500. / fabs(fall_), 3e38));
  }

  // What exponentials are relative to.
  struct Reference {
    double at;  // kScale: an x; else log2(e) * z
    float low;  // x below has an exponential of 0
  };
  __device__ __forceinline__ Reference At(float x) const {
    if constexpr (kMap == LogitMap::kScale) return {static_cast<double>(x), __double2float_ru(x - 150. / steep_)};
    else return AtLog2(Log2OfExp(x));
  }
  // Under a cap: relative to any z.
  __device__ __forceinline__ Reference AtLog2(double at) const {
    // Only caps above 76 have exponentials beyond the range of the fixed point.
    if (kMap == LogitMap::kCap && reach_ > 110. && at - 180. > -reach_) return {at, static_cast<float>(atanh((at - 180.) / reach_) * cap_ / scale_)};
    return {at, -INFINITY};
  }
  // Relative to the z of some logit, which a scale has rounded by less than a step of fp32.
  __device__ __forceinline__ Reference AtZ(double z) const {
    if constexpr (kMap == LogitMap::kScale) return At(static_cast<float>(z / scale_));
    else return AtLog2(z * kLog2EDouble);
  }
  // log2(e) * z
  __device__ __forceinline__ double Log2OfExp(float x) const {
    if constexpr (kMap == LogitMap::kScale) return x * steep_;
    else if constexpr (kMap == LogitMap::kHighCap) return reach_ * tanh(x * scale_ / cap_);
    else return fma(Share(Fall(x)), 2. * reach_, -reach_);
  }
  // e^(difference of z), from one x to another.
  __device__ __forceinline__ float Ratio(float x, float to) const {
    if constexpr (kMap == LogitMap::kScale) return ExpExact((static_cast<double>(x) - to) * scale_);
    else return ExpExact((Log2OfExp(x) - Log2OfExp(to)) / kLog2EDouble);
  }

  struct Value {
    float e;      // 2^lift * e^(z - reference)
    float z;      // only if asked for
    float slope;  // dz/dx over slope(); only if asked for
  };
  // A NaN is not seen.
  template <bool kZ, bool kSlope>
  __device__ __forceinline__ Value Of(float x, const Reference& r, float lift) const {
    Value v{0.f, 0.f, 1.f};
    const double fixed = kFixed - 1. + lift;
    if constexpr (kMap == LogitMap::kScale) {
      const float e = Exp2Fixed(fma(x - r.at, steep_, fixed));
      v.e = x < r.low ? 0.f : e;
      if constexpr (kZ) v.z = x * fabsf(slope_);
    } else if constexpr (kMap == LogitMap::kHighCap) {
      const double y = x * scale_ / cap_, d = reach_ * tanh(y) - r.at;
      v.e = d > -150. ? Exp2Fixed(d + fixed) : 0.f;
      if constexpr (kZ) v.z = static_cast<float>(cap_ * tanh(y));
      if constexpr (kSlope) {
        const double u = exp(-2. * fabs(y)), share = 1. / (1. + u);
        v.slope = static_cast<float>(scale_ * 4. * u * share * share);
      }
    } else {
      const double u = Fall(x), share = Share(u);
      const float e = Exp2Fixed(fma(share, 2. * reach_, fixed - reach_ - r.at));
      v.e = x < r.low ? 0.f : e;
      if constexpr (kZ) v.z = static_cast<float>(fma(share, 2. * cap_, -cap_));
      // 1 - tanh^2 as a quotient of exponentials: as a difference it would have no digits left where the cap flattens.
      if constexpr (kSlope) v.slope = static_cast<float>(u * share * share) * 4.f;
    }
    return v;
  }

  // log2(e) * -2 y / x
  __device__ __forceinline__ double fall() const { return fall_; }
  // Logits as x.
  __device__ __forceinline__ uint4 Turned(const uint4& q) const { return make_uint4(q.x ^ flip_, q.y ^ flip_, q.z ^ flip_, q.w ^ flip_); }
  __device__ __forceinline__ float Turned(float logit) const { return flip_ != 0u ? -logit : logit; }
  // log2(e) * z is within kMostRaise of the one of `x` up to here.
  __device__ __forceinline__ float Above(float x) const { return x + static_cast<float>(kMostRaise / steep_); }
  // dz/dlogit = slope() * Value::slope
  __device__ __forceinline__ float slope() const { return slope_; }
  __device__ __forceinline__ float SlopeAt(float logit) const { return Of<false, true>(Turned(logit), {0., -INFINITY}, 0.f).slope * slope_; }
  // Magnitudes of logits below this have a smaller |z| than this one, also after rounding.
  __device__ __forceinline__ float Least(float z) const {
    const double below = z * (1. - 3e-7);
    return static_cast<float>((kMap == LogitMap::kScale ? below / scale_ : cap_ / scale_ * atanh(fmin(below / cap_, 1.))) * (1. - 1e-6));
  }

 private:
  static constexpr uint32_t kSigns = E::kPerWord == 2 ? 0x80008000u : 0x80000000u;
  // e^(-2 y) as far as a double holds it, y = scale * x / cap, and 1 / (1 + that): tanh(y) = 2 / (1 + e^(-2 y)) - 1.
  __device__ __forceinline__ double Fall(float x) const { return Exp2Double(fminf(fmaxf(x, -limit_), limit_) * fall_); }
  static __device__ __forceinline__ double Share(double u) { return ReciprocalDouble(1. + u); }

  uint32_t flip_;
  double scale_, steep_, cap_, reach_, fall_;
  float slope_, limit_ = INFINITY;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_MAPPED_LOGITS_CUH_
