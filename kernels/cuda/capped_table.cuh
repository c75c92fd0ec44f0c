// The two sweeps over bf16 logits under a soft cap, with e^z from a table in shared memory; faces as in mapped_sweep.cuh.
//
// Between where z is 0 and where it is the cap, bf16 has some 30 powers of two of 128 values: e^z of all of them, of both signs, takes 32 KB. A look into it
// costs a sixth of the arithmetic that it stands for, bank conflicts included. Since |z| is bounded, e^z needs no maximum taken off.
#ifndef LOSSGAUGE_KERNELS_CUDA_CAPPED_TABLE_CUH_
#define LOSSGAUGE_KERNELS_CUDA_CAPPED_TABLE_CUH_

#include "kernels/cuda/mapped_sweep.cuh"

namespace lossgauge::cuda {

constexpr uint32_t kTableSignBytes = 16384;  // from the entries of positive x to those of negative ones
constexpr uint32_t kTableBytes = kTableSignBytes + kMostCapEntries * 4;
static_assert(kMostCapEntries * 4 <= kTableSignBytes, "entries of positive x");
constexpr uint32_t kMagnitudes = 0x7fff7fffu;

// By all threads of a CTA; a barrier follows. `table`: shared address.
__device__ __forceinline__ void FillCapTable(const CrossEntropyLaunch& a, uint32_t table) {
  const MappedLogits<__nv_bfloat16, LogitMap::kCap> map(a.logit_scale, a.logit_softcap);
  const unsigned entries = a.cap.high - a.cap.low + 1;
  for (unsigned i = threadIdx.x; i < entries; i += blockDim.x) {
    double w = map.Log2OfExp(__uint_as_float((a.cap.low + i) << 16));
    if (i == 0) w = 0.;
    StoreShared4(table + i * 4, __float_as_uint(Exp2Fixed(w + (kFixed - 1.))));
    StoreShared4(table + kTableSignBytes + i * 4, __float_as_uint(Exp2Fixed(kFixed - 1. - w)));
  }
}

// Looks up two packed x at a time. Addresses are worked out in 16 bits: the table lies within the first 64 KB of shared memory.
struct CapTable {
  uint32_t low, high, offset;
  __device__ __forceinline__ CapTable(const CrossEntropyLaunch& a, uint32_t table)
      : low(a.cap.low * 0x10001u), high(a.cap.high * 0x10001u), offset((table - 4 * a.cap.low) * 0x10001u) {}
  // Of a word, whose magnitudes are `magnitudes`. A NaN looks like an infinity.
  __device__ __forceinline__ float2 Of(uint32_t word, uint32_t magnitudes) const {
    const uint32_t m = __vmaxu2(__vminu2(magnitudes, high), low);
    const uint32_t at = m * 4 + offset + ((word >> 1) & (kTableSignBytes * 0x10001u));
    return make_float2(Entry(at & 0xffffu), Entry(at >> 16));
  }

 private:
  static __device__ __forceinline__ float Entry(uint32_t at) {
    float e;
    // Not volatile, so that it can be moved: the table does not change. That it is not moved before the barrier behind which the table stands is due to its
    // address, which comes from a row's bytes.
    asm("ld.shared.f32 %0, [%1];" : "=f"(e) : "r"(at));
    return e;
  }
};

// First sweep.
template <bool kSignals>
struct TableReduction {
  using T = __nv_bfloat16;
  using E = Element<T>;
  const MappedLogits<T, LogitMap::kCap>& map;
  const CapTable table;
  FlushedSum sum;
  uint32_t packed_max = E::kMinusInfinity, packed_min = 0u;  // the maximum is NaN if there was one
  FlushedSum log_sum;  // of e^z, base 2

  __device__ __forceinline__ TableReduction(const MappedLogits<T, LogitMap::kCap>& m, const CapTable& t) : map(m), table(t) {}
  __device__ __forceinline__ void See(const uint4& x, const uint4& small) {
    packed_max = E::MaxOrNan2(packed_max, VectorMaxOrNan<T>(x));
    if constexpr (kSignals) packed_min = VectorMin<T>(small, packed_min);
  }
  template <bool kZ>
  __device__ __forceinline__ void Add(const uint4& x) {
    const uint32_t* w = &x.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 e = table.Of(w[j], w[j] & kMagnitudes);
      sum.part += e.x + e.y;
      if constexpr (kZ) log_sum.part += Log2(e.x) + Log2(e.y);
    }
  }
  __device__ __forceinline__ void Take(const uint4& q, bool smoothing) {
    const uint4 x = map.Turned(q);
    See(x, x);
    if (smoothing) {
      Add<true>(x);
      log_sum.Flush();
    } else {
      Add<false>(x);
    }
    sum.Flush();
  }
  __device__ __forceinline__ void TakeSome(const uint4& q, int column, int vocab, int target, bool valid, bool smoothing) {
    const uint4 x = map.Turned(q), keep = ColumnMask<T>(column, vocab, target, valid);
    See(MaskToMinusInfinity<T>(x, keep), And(x, keep));
    const uint32_t *w = &x.x, *k = &keep.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 e = table.Of(w[j], w[j] & kMagnitudes);
      const bool a = (k[j] & 1u) != 0, b = (k[j] >> 16) != 0;
      sum.part += (a ? e.x : 0.f) + (b ? e.y : 0.f);
      if (smoothing) log_sum.part += Log2(a ? e.x : 1.f) + Log2(b ? e.y : 1.f);
    }
    sum.Flush();
    log_sum.Flush();
  }
  __device__ __forceinline__ float Largest() const { return WordMax<T>(packed_max); }
  // Relative to e^z.
  __device__ __forceinline__ float Sum(float z) const { return HasNan<T>(packed_max) ? NAN : static_cast<float>(sum.all * ExpExact(-static_cast<double>(z))); }
  __device__ __forceinline__ double SumOfZ() const { return log_sum.all / kLog2EDouble; }
  __device__ __forceinline__ float LargestMagnitude() const { return fmaxf(WordMax<T>(packed_max), -WordMin<T>(packed_min)); }
};

// What the slope is made of comes times this power of two, so that a gradient is not flushed to 0 before it is one.
constexpr float kSlopeLift = 24.f;

// Second sweep, of a row whose largest z is `of.max`. `of.target` is that of the target's logit.
template <bool kSignals>
struct TableGradient : GradientSweep<__nv_bfloat16, kSignals> {
  using T = __nv_bfloat16;
  using E = Element<T>;
  using Base = GradientSweep<T, kSignals>;
  const MappedLogits<T, LogitMap::kCap>& map;
  const CapTable table;
  const float fall, slope_lift, unlift, slope_unit, relative, mass_unit;
  FlushedSum mass;

  __device__ __forceinline__ TableGradient(const RowGradient& of, const MappedLogits<T, LogitMap::kCap>& m, const CapTable& t, float fall_)
      : Base(of, Exponential<T>(), 0.f), map(m), table(t), fall(fall_), slope_lift(IsTiny(of.scale) ? 0.f : kSlopeLift), unlift(exp2f(-slope_lift)),
        slope_unit(4.f * unlift * m.slope()), relative(ExpExact(-static_cast<double>(of.max)) * exp2f(LiftFor(of.scale))),
        mass_unit(exp2f(-LiftFor(of.scale))) {
    this->scale = of.scale * mass_unit;
  }
  __device__ __forceinline__ float Mass() const { return static_cast<float>(mass.all * mass_unit); }
  // Of e^z, relative to the largest.
  __device__ __forceinline__ float One(float e, float magnitude) const {
    const float u = Exp2(fmaf(magnitude, fall, slope_lift)), share = Reciprocal(fmaf(u, unlift, 1.f));
    return fmaf(e, this->scale, this->g.offset) * (u * share * share) * slope_unit;
  }
  template <bool kSome>
  __device__ __forceinline__ uint4 Of(const uint4& q, const uint4& keep) {
    const uint4 x = map.Turned(q);
    uint4 out;
    const uint32_t *w = &x.x, *k = &keep.x;
    uint32_t* o = &out.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t m = w[j] & kMagnitudes;
      float2 e = table.Of(w[j], m);
      e.x *= relative;
      e.y *= relative;
      if constexpr (kSignals) {
        mass.part += (!kSome || (k[j] & 1u) != 0 ? e.x : 0.f) + (!kSome || (k[j] >> 16) != 0 ? e.y : 0.f);
      }
      o[j] = E::Pack(One(e.x, E::Get(m, 0)), One(e.y, E::Get(m, 1)));
    }
    if constexpr (kSignals) mass.Flush();
    return out;
  }
  __device__ __forceinline__ uint4 Take(const uint4& q) {
    const uint4 o = Of<false>(q, q);
    if constexpr (kSignals) this->squares.Add(o);
    return o;
  }
  __device__ __forceinline__ uint4 TakeSome(const uint4& q, int column, int vocab, int target, bool valid) {
    const uint4 keep = ColumnMask<T>(column, vocab, target, valid);
    return this->WithTarget(And(Of<true>(q, keep), keep), column, target, valid);
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_CAPPED_TABLE_CUH_
