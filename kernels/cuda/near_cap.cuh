// Soft cap of logits that it bends little, in fp32: what nearly every logit of a trained model is, at a fraction of the arithmetic that all of them need.
//
// With y = scale * x / cap and |y| up to 3/4, tanh(y) = y + y^3 H(y^2), H a polynomial of six terms. log2(e) * z minus a reference then is one fused product of
// x, which is exact, and a correction: what fp32 rounds is of the size of the difference and of the correction, not of z. An exponential that counts in a sum is
// off by 2e-7, half of which is the instruction's own. fp32 gradients promise 1e-6 of small ones, too: there the difference's whole part is taken off before the
// product is rounded.
//
// Sweeps take near vectors at once, 32 of a warp at a time, and then what these leave over: that way the double arithmetic of the others takes no registers here.
#ifndef LOSSGAUGE_KERNELS_CUDA_NEAR_CAP_CUH_
#define LOSSGAUGE_KERNELS_CUDA_NEAR_CAP_CUH_

#include "kernels/cuda/mapped_sweep.cuh"

namespace lossgauge::cuda {

constexpr double kLn2Double = 0.6931471805599453;

// x: logits, turned round by a negative scale. All w are log2(e) * z.
template <class T>
class NearCap {
  using E = Element<T>;

 public:
  static constexpr int kTerms = 6;
  // `scale`: its magnitude.
  __device__ __forceinline__ NearCap(double scale, double cap) : steep_(static_cast<float>(scale * kLog2EDouble)) {
    // Minimax of y^3 (H - H_exact) over |y| <= 0.755: 7e-10.
    constexpr double kH[kTerms] = {-0.3333329893766425,  0.1333235683875358,     -0.053868218576376595,
                                   0.021371251178462048, -0.007533479600390969, 0.0016652803961882817};
    const double ratio = scale / cap, square = ratio * ratio;
    // Caps up to here keep every exponential of a difference within fp32, and ratios like these every power of x.
    constexpr double kHighest = 50., kExtreme = 256.;
    const bool serves = cap <= kHighest && ratio <= kExtreme && ratio >= 1. / kExtreme;
    double power = scale * kLog2EDouble * square;
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      terms_[i] = static_cast<float>(kH[i] * power);
      power *= square;
    }
    const double reach = cap * kLog2EDouble;
    bend_ = static_cast<float>(-1. / (reach * reach));
    step_ = 4.f / steep_;
    steep_low_ = static_cast<float>(scale * kLog2EDouble - steep_);
    // Up to 3/4, and no further than where the correction is y^3 / 3 * reach = 3.5: its rounding then is half of what a gradient may be off.
    const float bound = serves ? static_cast<float>(fmin(0.75, cbrt(3. * 3.5 / reach)) / ratio) : -1.f;
    bound_ = E::Pack(bound, bound);
  }

  // Whether all x are near, given the largest and smallest elements of their words. A NaN is not.
  __device__ __forceinline__ bool Holds(uint32_t most, uint32_t least) const {
    constexpr uint32_t kSigns = E::kPerWord == 2 ? 0x80008000u : 0x80000000u;
    return E::MaxOrNan2(E::MaxOrNan2(most, least ^ kSigns), bound_) == bound_;
  }
  // What exponentials may be relative to, as w: sums with whole numbers up to 128 are exact.
  static __device__ __forceinline__ float Reference(float w) { return rintf(w * 65536.f) * (1.f / 65536.f); }
  __device__ __forceinline__ float W(float x) const { return Difference(x, Bend(x), 0.f); }
  struct Value {
    float e, w;  // e relative to 2^from
  };
  __device__ __forceinline__ Value Of(float x, float from) const {
    const float2 bend = Bend(x);
    const float d = Difference(x, bend, from);
    if constexpr (E::kPerWord == 2) return {Exp2(d), d + from};
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: the nearest whole number is the sum's low bits
    const float rounded = d + kRound, whole = rounded - kRound;
    const float part = fmaf(bend.x, bend.y, fmaf(x, steep_low_, fmaf(x, steep_, -(from + whole))));
    return {__int_as_float(__float_as_int(Exp2(part)) + (__float_as_int(rounded) << 23)), d + from};
  }
  // dz/dx over the scale, where log2(e) * z = w.
  __device__ __forceinline__ float Slope(float w) const { return fmaf(w * w, bend_, 1.f); }
  // x + this has a w that is larger by about 4.
  __device__ __forceinline__ float Step() const { return step_; }

 private:
  // Factors of what w is below the straight line.
  __device__ __forceinline__ float2 Bend(float x) const {
    const float t = x * x;
    float h = terms_[kTerms - 1];
#pragma unroll
    for (int i = kTerms - 2; i >= 0; --i) h = fmaf(h, t, terms_[i]);
    return make_float2(x * t, h);
  }
  // w - from
  __device__ __forceinline__ float Difference(float x, float2 bend, float from) const { return fmaf(bend.x, bend.y, fmaf(x, steep_, -from)); }

  float steep_, steep_low_, terms_[kTerms], bend_, step_;
  uint32_t bound_;
};

// The map of a soft cap with what near logits need of it.
template <class T>
struct CapMap : MappedLogits<T, LogitMap::kCap> {
  using Far = MappedLogits<T, LogitMap::kCap>;
  NearCap<T> near;
  __device__ __forceinline__ CapMap(double scale, double cap) : Far(scale, cap), near(fabs(scale), cap) {}
};

// First sweep. Far: what takes the vectors that are not near, a reduction with the face of MappedReduction.
template <class T, bool kSignals, class Far>
struct NearReduction {
  using E = Element<T>;
  const CapMap<T>& map;
  const NearCap<T> near;
  Far far;
  // Exponentials are relative to a power of two that follows them up closely: a difference of 4 is rounded at 2e-7.
  float from = 0.f;                               // as w
  uint32_t most_so_far = E::kMinusInfinity;   // x up to here need no other
  bool any = false;
  FlushedSum sum, w_sum;
  uint32_t packed_max = E::kMinusInfinity, packed_min = 0u;

  __device__ __forceinline__ NearReduction(const CapMap<T>& m, const Far& f) : map(m), near(m.near), far(f) {}
  // False, for the whole warp: it is to be taken by TakeFar.
  __device__ __forceinline__ bool TakeNear(const uint4& q, bool smoothing) {
    const uint4 x = map.Turned(q);
    return See<false>(x, x, x, smoothing);
  }
  __device__ __forceinline__ bool TakeNearSome(const uint4& q, int column, int vocab, int target, bool valid, bool smoothing) {
    const uint4 x = map.Turned(q), keep = ColumnMask<T>(column, vocab, target, valid);
    return See<true>(MaskToMinusInfinity<T>(x, keep), And(x, keep), keep, smoothing);
  }
  __device__ __forceinline__ void TakeFar(const uint4& q, int column, int vocab, int target, bool valid, bool smoothing) {
    far.TakeSome(q, column, vocab, target, valid, smoothing);
  }
  __device__ __forceinline__ float Largest() const { return fmaxf(WordMax<T>(packed_max), far.Largest()); }
  // Relative to 2^w, the far ones to what they are relative to: the same of it.
  __device__ __forceinline__ float Sum(float far_relative_to, double w) const {
    const double mine = any ? sum.all * ExpExact((from - w) * kLn2Double) : 0.;
    return static_cast<float>(far.Sum(far_relative_to) + mine);
  }
  __device__ __forceinline__ double SumOfZ() const { return far.SumOfZ() + w_sum.all * kLn2Double; }
  __device__ __forceinline__ float LargestMagnitude() const {
    return fmaxf(fmaxf(WordMax<T>(packed_max), -WordMin<T>(packed_min)), far.LargestMagnitude());
  }

 private:
  // `zero`: x, and 0 for what is no column; `x`: -inf there.
  template <bool kSome>
  __device__ __forceinline__ bool See(const uint4& x, const uint4& zero, const uint4& keep, bool smoothing) {
    const uint32_t most = VectorMaxOrNan<T>(x), least = VectorMin<T>(zero, 0u);
    if (!__all_sync(~0u, near.Holds(kSome ? VectorMaxOrNan<T>(zero) : most, least))) return false;
    packed_max = E::Max2(packed_max, most);
    if constexpr (kSignals) packed_min = E::Min2(packed_min, least);
    if (E::Max2(most, most_so_far) != most_so_far) Raise(WordMax<T>(most));
    if (smoothing) Add<kSome, true>(zero, keep);
    else Add<kSome, false>(zero, keep);
    return true;
  }
  template <bool kSome, bool kZ>
  __device__ __forceinline__ void Add(const uint4& x, const uint4& keep) {
    const uint32_t *w = &x.x, *k = &keep.x;
#pragma unroll
    for (int i = 0; i < kVectorElements<T>; ++i) {
      const auto v = near.Of(E::Get(w[i / E::kPerWord], i % E::kPerWord), from);
      const bool counts = !kSome || (k[i / E::kPerWord] & (i % E::kPerWord ? 0x10000u : 1u)) != 0;
      sum.part += counts ? v.e : 0.f;
      if constexpr (kZ) w_sum.part += counts ? v.w : 0.f;
    }
    sum.Flush();
    if constexpr (kZ) w_sum.Flush();
  }
  __device__ __forceinline__ void Raise(float x) {
    const float to = near.Reference(near.W(x));
    if (any) sum.all *= Exp2(from - to);
    any = true;
    from = to;
    const float most = x + near.Step();
    most_so_far = E::Pack(most, most);
  }
};

// Second sweep. Far: likewise, with the face of MappedGradient; squares of all are in its sums.
template <class T, bool kSignals, class Far>
struct NearGradient : Far {
  using E = Element<T>;
  const CapMap<T>& cap_map;
  const NearCap<T> near;
  float from, near_scale, near_offset, near_unit;
  FlushedSum near_mass;

  // `max`: the z that exponentials of `of` are relative to.
  __device__ __forceinline__ NearGradient(const CapMap<T>& m, const RowGradient& of, double max, const Far& f) : Far(f), cap_map(m), near(m.near) {
    const double at = max * kLog2EDouble;
    from = near.Reference(static_cast<float>(at));
    near_unit = static_cast<float>(1. + (from - at) * kLn2Double);  // e^ of the little that rounding took
    near_scale = of.scale * near_unit * m.slope();
    near_offset = of.offset * m.slope();
  }
  __device__ __forceinline__ float Mass() const { return static_cast<float>(Far::Mass() + near_mass.all * near_unit); }
  // False, for the whole warp: it is to be taken by TakeSome.
  __device__ __forceinline__ bool TakeNear(const uint4& q, uint4* out) {
    const uint4 x = cap_map.Turned(q);
    if (!Holds(x)) return false;
    *out = Of<false>(x, x);
    if constexpr (kSignals) this->squares.Add(*out);
    return true;
  }
  __device__ __forceinline__ bool TakeNearSome(const uint4& q, int column, int vocab, int target, bool valid, uint4* out) {
    const uint4 keep = ColumnMask<T>(column, vocab, target, valid), x = And(cap_map.Turned(q), keep);
    if (!Holds(x)) return false;
    *out = this->WithTarget(And(Of<true>(x, keep), keep), column, target, valid);
    return true;
  }

 private:
  __device__ __forceinline__ bool Holds(const uint4& x) const { return __all_sync(~0u, near.Holds(VectorMaxOrNan<T>(x), VectorMin<T>(x, 0u))); }
  template <bool kSome>
  __device__ __forceinline__ uint4 Of(const uint4& x, const uint4& keep) {
    uint4 out;
    const uint32_t *w = &x.x, *k = &keep.x;
    uint32_t* const o = &out.x;
    const auto one = [&](int j, int i) {
      const auto v = near.Of(E::Get(w[j], i), from);
      if constexpr (kSignals) near_mass.part += !kSome || (k[j] & (i ? 0x10000u : 1u)) != 0 ? v.e : 0.f;
      return fmaf(v.e, near_scale, near_offset) * near.Slope(v.w);
    };
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float a = one(j, 0), b = E::kPerWord == 2 ? one(j, 1) : 0.f;
      o[j] = E::Pack(a, b);
    }
    if constexpr (kSignals) near_mass.Flush();
    return out;
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_NEAR_CAP_CUH_
