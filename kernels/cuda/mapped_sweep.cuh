// The two sweeps over a row's packed vectors, in a thread's registers, where z is not the logit itself; see sweep.cuh for those where it is.
#ifndef LOSSGAUGE_KERNELS_CUDA_MAPPED_SWEEP_CUH_
#define LOSSGAUGE_KERNELS_CUDA_MAPPED_SWEEP_CUH_

#include "kernels/cuda/mapped_logits.cuh"
#include "kernels/cuda/sweep.cuh"

namespace lossgauge::cuda {

template <class T>
__device__ __forceinline__ bool HasNan(uint32_t packed) {
  const float a = Element<T>::Get(packed, 0), b = Element<T>::Get(packed, Element<T>::kPerWord - 1);
  return a != a || b != b;
}

template <class T>
__device__ __forceinline__ uint32_t VectorMaxOrNan(const uint4& q) {
  using E = Element<T>;
  return E::MaxOrNan2(E::MaxOrNan2(q.x, q.y), E::MaxOrNan2(q.z, q.w));
}

// Equal terms round the same way each time: one fp32 sum over a row would be off by more than 1e-6 of a loss. So those of a vector go into a double.
struct FlushedSum {
  double all = 0.;
  float part = 0.f;
  __device__ __forceinline__ void Flush() {
    all += part;
    part = 0.f;
  }
};

// A gradient whose scale is so small does not have its exponentials lifted, or the scale would lose digits.
__device__ __forceinline__ bool IsTiny(float scale) { return fabsf(scale) < 1e-20f; }
__device__ __forceinline__ float LiftFor(float scale) { return IsTiny(scale) ? 0.f : kGradientLift; }

// First sweep: largest x, sum of exponentials of all columns but the target, largest magnitude, sum of z.
template <class T, LogitMap kMap, bool kSignals>
struct MappedReduction {
  using E = Element<T>;
  using Map = MappedLogits<T, kMap>;
  const Map& map;
  typename Map::Reference reference{0., INFINITY};
  bool any = false;
  float first = 0.f;          // the x that the reference is of
  float above = -INFINITY;    // x that it serves no more: exponentials grow far before they need another
  FlushedSum sum, z_sum;
  uint32_t packed_max = E::kMinusInfinity, packed_min = 0u;  // the maximum is NaN if there was one

  __device__ __forceinline__ explicit MappedReduction(const Map& m) : map(m) {}
  __device__ __forceinline__ void Raise(float x) {
    if (any && !(x > above)) return;
    if (kMap == LogitMap::kScale && !(x > -INFINITY)) return;  // only under a cap has it an exponential
    if (any) {
      sum.all *= map.Ratio(first, x);
    }
    any = true;
    first = x;
    above = map.Above(x);
    reference = map.At(x);
  }
  template <bool kZ>
  __device__ __forceinline__ void Add(const uint4& q, const uint4& keep) {
    const uint32_t *w = &q.x, *k = &keep.x;
#pragma unroll
    for (int i = 0; i < kVectorElements<T>; ++i) {
      const auto v = map.template Of<kZ, false>(E::Get(w[i / E::kPerWord], i % E::kPerWord), reference, 0.f);
      const bool counts = (k[i / E::kPerWord] & (i % E::kPerWord ? 0x10000u : 1u)) != 0;
      sum.part += counts ? v.e : 0.f;
      if constexpr (kZ) z_sum.part += counts ? v.z : 0.f;
    }
    sum.Flush();
    if constexpr (kZ) z_sum.Flush();
  }
  __device__ __forceinline__ void TakeKept(const uint4& q, const uint4& keep, bool smoothing) {
    const uint4 x = map.Turned(q), some = MaskToMinusInfinity<T>(x, keep);
    const uint32_t m = VectorMaxOrNan<T>(some);
    packed_max = E::MaxOrNan2(packed_max, m);
    if constexpr (kSignals) packed_min = VectorMin<T>(And(x, keep), packed_min);
    Raise(WordMax<T>(m));
    if (smoothing) Add<true>(x, keep);
    else Add<false>(x, keep);
  }
  // Vectors of nothing but columns of the row.
  __device__ __forceinline__ void Take(const uint4& q, bool smoothing) { TakeKept(q, make_uint4(~0u, ~0u, ~0u, ~0u), smoothing); }
  __device__ __forceinline__ void TakeSome(const uint4& q, int column, int vocab, int target, bool valid, bool smoothing) {
    TakeKept(q, ColumnMask<T>(column, vocab, target, valid), smoothing);
  }
  __device__ __forceinline__ float Largest() const { return WordMax<T>(packed_max); }
  // Relative to e^z of an x.
  __device__ __forceinline__ float Sum(float x) const {
    if (HasNan<T>(packed_max)) return NAN;
    return any ? static_cast<float>(sum.all * map.Ratio(first, x)) : 0.f;
  }
  __device__ __forceinline__ double SumOfZ() const { return z_sum.all; }
  // Of x; infinite if an infinity was among the columns. NaN is not seen.
  __device__ __forceinline__ float LargestMagnitude() const { return fmaxf(WordMax<T>(packed_max), -WordMin<T>(packed_min)); }
};

// Second sweep, relative to what `reference` stands for. `of.target` is that of the target's logit.
template <class T, LogitMap kMap, bool kSignals>
struct MappedGradient : GradientSweep<T, kSignals> {
  using E = Element<T>;
  using Base = GradientSweep<T, kSignals>;
  using Map = MappedLogits<T, kMap>;
  const Map& map;
  const typename Map::Reference reference;
  const float lift;
  const float unit;  // of an exponential as it comes
  FlushedSum mass;

  // `unit_`: of an exponential relative to the reference.
  __device__ __forceinline__ MappedGradient(const RowGradient& of, const Map& m, const typename Map::Reference& r, float unit_)
      : Base(of, Exponential<T>(), 0.f), map(m), reference(r), lift(LiftFor(of.scale)), unit(unit_ * exp2f(-lift)) {
    this->scale = of.scale * unit;
  }
  __device__ __forceinline__ float Mass() const { return static_cast<float>(mass.all * unit); }
  __device__ __forceinline__ uint4 Of(const uint4& q, const uint4& keep) {
    const uint4 x = map.Turned(q);
    uint4 out;
    const uint32_t *w = &x.x, *k = &keep.x;
    uint32_t* o = &out.x;
    const auto one = [&](int j, int i) {
      const auto v = map.template Of<false, true>(E::Get(w[j], i), reference, lift);
      if constexpr (kSignals) mass.part += (k[j] & (i ? 0x10000u : 1u)) != 0 ? v.e : 0.f;
      return fmaf(v.e, this->scale, this->g.offset) * (v.slope * map.slope());
    };
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float a = one(j, 0), b = E::kPerWord == 2 ? one(j, 1) : 0.f;
      o[j] = E::Pack(a, b);
    }
    if constexpr (kSignals) mass.Flush();
    return out;
  }
  __device__ __forceinline__ uint4 Take(const uint4& q) {
    const uint4 o = Of(q, make_uint4(~0u, ~0u, ~0u, ~0u));
    if constexpr (kSignals) this->squares.Add(o);
    return o;
  }
  __device__ __forceinline__ uint4 TakeSome(const uint4& q, int column, int vocab, int target, bool valid) {
    const uint4 keep = ColumnMask<T>(column, vocab, target, valid);
    return this->WithTarget(And(Of(q, keep), keep), column, target, valid);
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_MAPPED_SWEEP_CUH_
