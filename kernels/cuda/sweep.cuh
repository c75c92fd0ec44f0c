// The two sweeps over a row's packed vectors, in a thread's registers: what ring, stage and plain kernel have in common.
// All lanes of a warp call together: sums over packed elements run on the tensor cores.
#ifndef LOSSGAUGE_KERNELS_CUDA_SWEEP_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SWEEP_CUH_

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/row_math.cuh"

namespace lossgauge::cuda {

// Which of a vector's elements are columns in [0, vocab) other than the target, as masks over packed elements.
template <class T>
__device__ __forceinline__ uint4 ColumnMask(int column, int vocab, int target, bool valid) {
  uint4 m;
  uint32_t* w = &m.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int c = column + Element<T>::kPerWord * j;
    const auto in = [&](int k) { return valid && static_cast<unsigned>(k) < static_cast<unsigned>(vocab) && k != target; };
    if constexpr (Element<T>::kPerWord == 2) w[j] = (in(c) ? 0xffffu : 0u) | (in(c + 1) ? 0xffff0000u : 0u);
    else w[j] = in(c) ? ~0u : 0u;
  }
  return m;
}

// First sweep: maximum, sum of exponentials of all columns but the target, largest magnitude, sum of z.
template <class T, bool kSignals>
struct Reduction {
  using E = Element<T>;
  const ExponentSlopes slopes;
  Exponential<T> exponential;
  float sum0 = 0.f, sum1 = 0.f;  // of the columns other than the target
  uint32_t packed_max = E::kMinusInfinity, packed_min = 0u;  // min starts at 0: only magnitudes matter
  uint32_t max_before = E::kMinusInfinity;                   // packed_max over the columns before the target
  PlainSum<T> z_sum;

  __device__ __forceinline__ explicit Reduction(const ExponentSlopes& s) : slopes(s) { exponential.Set(kLowest, slopes); }
  __device__ __forceinline__ float max() const { return exponential.max; }
  // Of e^(z - max).
  __device__ __forceinline__ float Sum() const { return (sum0 + sum1) * exponential.Unit(); }
  __device__ __forceinline__ void RaiseTo(float higher) {
    Exponential<T> next;
    next.Set(fmaxf(exponential.max, higher), slopes);
    const float f = next.From(exponential);
    sum0 *= f;
    sum1 *= f;
    exponential = next;
  }
  // Rescales the sums to a maximum that covers `packed`.
  __device__ __forceinline__ void Raise(uint32_t packed) { RaiseTo(WordMax<T>(packed)); }
  __device__ __forceinline__ void AddExponentials(const uint4& q) {
    const uint32_t* w = &q.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum0 += exponential.Of(E::Get(w[j], 0));
      if constexpr (E::kPerWord == 2) sum1 += exponential.Of(E::Get(w[j], 1));
    }
  }
  // Vectors of nothing but columns of the row.
  template <int N>
  __device__ __forceinline__ void Take(const uint4 (&q)[N], bool smoothing) {
    uint32_t m = q[0].x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      m = VectorMax<T>(q[i], m);
      if constexpr (kSignals) packed_min = VectorMin<T>(q[i], packed_min);
      if (smoothing) z_sum.Add(q[i]);
    }
    packed_max = E::Max2(packed_max, m);
    Raise(m);
#pragma unroll
    for (int i = 0; i < N; ++i) AddExponentials(q[i]);
  }
  // A vector that holds the target or reaches beyond the row: `column` of its first element; not `valid` = nothing of it counts.
  __device__ __forceinline__ void TakeSome(const uint4& q, int column, int vocab, int target, bool valid, bool smoothing) {
    const uint4 keep = ColumnMask<T>(column, vocab, target, valid);
    const uint4 zero = And(q, keep), x = MaskToMinusInfinity<T>(q, keep);
    const uint32_t m = VectorMax<T>(x, E::kMinusInfinity);
    if constexpr (kSignals) {
      packed_min = VectorMin<T>(zero, packed_min);
      const uint4 before = ColumnMask<T>(column, target < vocab ? target : vocab, target, valid);
      max_before = E::Max2(max_before, VectorMax<T>(MaskToMinusInfinity<T>(q, before), E::kMinusInfinity));
    }
    packed_max = E::Max2(packed_max, m);
    if (smoothing) z_sum.Add(zero);
    Raise(m);
    AddExponentials(x);
  }
  // Infinite if a -inf was among the columns; NaN is not seen.
  __device__ __forceinline__ float LargestMagnitude() const { return fmaxf(WordMax<T>(packed_max), -WordMin<T>(packed_min)); }
};

// Exponentials of the second sweep come times 2^32 (Exponential::Set).
constexpr float kGradientLift = 32.f;

// Second sweep: the gradient, its squares as emitted, and the sum of the exponentials that it is made of.
template <class T, bool kSignals>
struct GradientSweep {
  using E = Element<T>;
  RowGradient g;
  Exponential<T> exponential;
  float scale;
  float mass0 = 0.f, mass1 = 0.f;
  SquareSum<T> squares;       // of the columns other than the target
  float target_square = 0.f;  // apart: tensor cores cut off what they add, and small squares on top of one near 1 would lose 1e-5

  __device__ __forceinline__ GradientSweep(const RowGradient& of, const ExponentSlopes& slopes) : g(of) {
    exponential.Set(g.max, slopes, kGradientLift);
    scale = g.scale * exponential.Unit();
  }
  // With what the other one works out ready made; of `of`, max, scale and inverse_total are not needed then.
  __device__ __forceinline__ GradientSweep(const RowGradient& of, const Exponential<T>& ready, float ready_scale)
      : g(of), exponential(ready), scale(ready_scale) {}
  // Of this thread's columns other than the target.
  __device__ __forceinline__ float Mass() const { return (mass0 + mass1) * exponential.Unit(); }

  // Shares of all lanes add up to the warp's sum of squares, times before_squares^2.
  __device__ __forceinline__ float Squares(int lane) const { return squares.Share(lane) + target_square; }

  __device__ __forceinline__ uint4 Of(const uint4& q) {
    uint4 out;
    const uint32_t* w = &q.x;
    uint32_t* o = &out.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = exponential.Of(E::Get(w[j], 0));
      const float y = E::kPerWord == 2 ? exponential.Of(E::Get(w[j], 1)) : 0.f;
      if constexpr (kSignals) {
        mass0 += x;
        if constexpr (E::kPerWord == 2) mass1 += y;
      }
      o[j] = E::Pack(fmaf(x, scale, g.offset), fmaf(y, scale, g.offset));
    }
    return out;
  }
  // Vectors of nothing but columns of the row, other than the target.
  __device__ __forceinline__ uint4 Take(const uint4& q) {
    const uint4 o = Of(q);
    if constexpr (kSignals) squares.Add(o);
    return o;
  }
  // As Reduction::TakeSome. The result is 0 outside of the row.
  __device__ __forceinline__ uint4 TakeSome(const uint4& q, int column, int vocab, int target, bool valid) {
    const uint4 keep = ColumnMask<T>(column, vocab, target, valid);
    return WithTarget(And(Of(MaskToMinusInfinity<T>(q, keep)), keep), column, target, valid);
  }
  // Counts a vector that is 0 at the target, and puts the target's gradient there.
  __device__ __forceinline__ uint4 WithTarget(uint4 o, int column, int target, bool valid) {
    AddSquares(o);
    uint32_t* w = &o.x;
    const uint32_t t = E::Pack(g.target, g.target);
    if (kSignals && valid && static_cast<unsigned>(target - column) < static_cast<unsigned>(kVectorElements<T>)) {
      const float y = E::Get(t, 0) * g.before_squares;
      target_square = y * y;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = column + E::kPerWord * j;
      if constexpr (E::kPerWord == 2) {
        if (valid && c == target) w[j] |= t & 0xffffu;
        if (valid && c + 1 == target) w[j] |= t & 0xffff0000u;
      } else if (valid && c == target) {
        w[j] = t;
      }
    }
    return o;
  }
  __device__ __forceinline__ void AddSquares(uint4 o) {
    if constexpr (!kSignals) return;
    if (g.before_squares != 1.f) {
      uint32_t* w = &o.x;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = E::Pack(E::Get(w[j], 0) * g.before_squares, E::kPerWord == 2 ? E::Get(w[j], 1) * g.before_squares : 0.f);
    }
    squares.Add(o);
  }
  // A gradient whose factor is 0 or not finite gets it at the end: 0 times anything is 0 there, also times a NaN.
  __device__ __forceinline__ uint4 After(uint4 o) const {
    uint32_t* w = &o.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto scaled = [&](int i) { return g.after == 0.f ? 0.f : E::Get(w[j], i) * g.after; };
      w[j] = E::Pack(scaled(0), E::kPerWord == 2 ? scaled(1) : 0.f);
    }
    return o;
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SWEEP_CUH_
