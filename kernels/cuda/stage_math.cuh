// What packed and swept rows of the stage kernel have in common: elements at the target, a row's constants.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_MATH_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_MATH_CUH_

#include <climits>

#include "kernels/cuda/stage_keeper.cuh"

namespace lossgauge::cuda {

template <class T>
__device__ __forceinline__ float LoadSharedElement(uint32_t smem) {
  if constexpr (Element<T>::kBytes == 4) return __uint_as_float(LoadShared4(smem));
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(smem));
  return Element<T>::Get(bits, 0);
}

template <class T>
__device__ __forceinline__ void StoreSharedMinusInfinity(uint32_t smem) {
  if constexpr (Element<T>::kBytes == 4) StoreShared4(smem, Element<T>::kMinusInfinity);
  else asm volatile("st.shared.u16 [%0], %1;" ::"r"(smem), "h"(static_cast<unsigned short>(Element<T>::kMinusInfinity)) : "memory");
}

// Where the target is in the lane's vector: all ones over the element at `position` of the row, zeros elsewhere and in lanes that do not hold it.
template <class T>
__device__ __forceinline__ uint4 TargetElement(int position, bool mine) {
  constexpr int kElements = kVectorElements<T>, kPerWord = Element<T>::kPerWord;
  const int element = position % kElements, word = element / kPerWord;
  uint32_t bits = kPerWord == 1 ? ~0u : 0xffffu << (16 * (element & 1));
  if (!mine) bits = 0u;
  return make_uint4(word == 0 ? bits : 0u, word == 1 ? bits : 0u, word == 2 ? bits : 0u, word == 3 ? bits : 0u);
}
template <class T>
__device__ __forceinline__ uint4 Without(const uint4& q, const uint4& element) {
  constexpr uint32_t inf = Element<T>::kMinusInfinity;
  return make_uint4((q.x & ~element.x) | (inf & element.x), (q.y & ~element.y) | (inf & element.y), (q.z & ~element.z) | (inf & element.z),
                    (q.w & ~element.w) | (inf & element.w));
}
__device__ __forceinline__ uint4 Cleared(const uint4& q, const uint4& element) {
  return make_uint4(q.x & ~element.x, q.y & ~element.y, q.z & ~element.z, q.w & ~element.w);
}

// A row's sums, and what takes exponentials relative to the others' maximum to the row's. 16-bit gradients do not need the target's exponent in double.
template <class T>
__device__ __forceinline__ RowSums SumsForGradient(float others, float others_max, float z_target, float z_sum, double scale, float* to_max) {
  RowSums r;
  r.max = fmaxf(others_max, z_target);
  // Of the lower of the two. One evaluation without a branch: only one of them is needed.
  float lower;
  if constexpr (Element<T>::kBytes == 4) {
    lower = ExpExact(-fabs(static_cast<double>(z_target) - static_cast<double>(others_max)));
  } else {
    Exponential<float> e;
    e.Set(0.f, UnscaledSlopes());
    lower = e.Of(-fabsf(z_target - others_max) * static_cast<float>(scale));
  }
  *to_max = z_target > others_max ? lower : 1.f;
  r.others = others * *to_max;
  r.target = z_target < others_max || z_target != z_target ? lower : 1.f;
  r.z_target = z_target;
  r.z_target_low = 0.f;
  r.z_sum = z_sum;
  return r;
}

template <class C>
__device__ __forceinline__ bool IsFiniteRow(const RowSums& r) {
  return r.defined() && fabsf(r.z_target) < INFINITY && (!C::SMOOTHING || fabsf(r.z_sum) < INFINITY);
}

// Factor of an upstream gradient, worked out anew only when that changes. Converged warp.
template <class C>
struct FactorCache {
  using T = typename C::T;
  const CrossEntropyLaunch& a;
  float of = 1.f;
  Factor factor;
  __device__ __forceinline__ explicit FactorCache(const CrossEntropyLaunch& a_) : a(a_), factor(MakeFactor<T>(1.f, ReadDenominator(a_), ScaleOf<C>(a_))) {}
  __device__ __forceinline__ const Factor& For(float scale) {
    if (__any_sync(~0u, scale != of)) {
      factor = MakeFactor<T>(scale, ReadDenominator(a), ScaleOf<C>(a));
      of = scale;
    }
    return factor;
  }
};

// The gradient vector as it is stored: a factor of 0 or not finite comes at the end, and 0 times anything is 0 there, also times a NaN.
template <class T>
__device__ __forceinline__ uint4 WithFactor(uint4 o, float after) {
  using E = Element<T>;
  if (after == 1.f) return o;
  uint32_t* w = &o.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto scaled = [&](int i) { return after == 0.f ? 0.f : E::Get(w[j], i) * after; };
    w[j] = E::Pack(scaled(0), E::kPerWord == 2 ? scaled(1) : 0.f);
  }
  return o;
}
template <class T>
__device__ __forceinline__ uint4 BeforeSquares(uint4 o, float factor) {
  using E = Element<T>;
  uint32_t* w = &o.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) w[j] = E::Pack(E::Get(w[j], 0) * factor, E::kPerWord == 2 ? E::Get(w[j], 1) * factor : 0.f);
  return o;
}

// A vector of a gradient, of which elements [begin, end) are columns of the row.
template <class T>
__device__ __forceinline__ void StoreSome(unsigned char* to, const uint4& o, int begin, int end) {
  constexpr int kElements = kVectorElements<T>;
  if (begin <= 0 && end >= kElements) {
    *reinterpret_cast<uint4*>(to) = o;
    return;
  }
  const uint32_t* w = &o.x;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < begin || i >= end) continue;
    if constexpr (Element<T>::kBytes == 2) reinterpret_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(w[i >> 1] >> (16 * (i & 1)));
    else reinterpret_cast<uint32_t*>(to)[i] = w[i];
  }
}
// The target's own element: after the vector that holds it, by the same lane.
template <class T>
__device__ __forceinline__ void StoreTarget(unsigned char* grad, int target, const RowGradient& g) {
  const uint32_t w = WithFactor<T>(make_uint4(Element<T>::Pack(g.target, g.target), 0u, 0u, 0u), g.after).x;
  if constexpr (Element<T>::kBytes == 2) reinterpret_cast<unsigned short*>(grad)[target] = static_cast<unsigned short>(w);
  else reinterpret_cast<uint32_t*>(grad)[target] = w;
}
// Square of the target's gradient as emitted, at upstream 1.
template <class T>
__device__ __forceinline__ float TargetSquare(const RowGradient& g, const Factor& f) {
  float t = Element<T>::Round(g.target);
  if (g.before_squares != 1.f) t = Element<T>::Round(t * g.before_squares);
  t *= f.restore;
  return t * t;
}

// As VectorMax and VectorMin, in two instructions of three operands instead of three.
template <class T>
__device__ __forceinline__ uint32_t ChainMax(const uint4& q, uint32_t m) {
  using E = Element<T>;
  return E::Max2(E::Max2(E::Max2(E::Max2(m, q.x), q.y), q.z), q.w);
}
template <class T>
__device__ __forceinline__ uint32_t ChainMin(const uint4& q, uint32_t m) {
  using E = Element<T>;
  return E::Min2(E::Min2(E::Min2(E::Min2(m, q.x), q.y), q.z), q.w);
}

// As SquareSum, in half of the instructions and in chains of half the length: a vector's four words are A (16 x 16), two of them B. What is on the diagonals
// is the same.
template <class T>
struct StageSquares : SquareSum<T> {
  __device__ __forceinline__ void Add(const uint4& q) {
    if constexpr (Element<T>::kPerWord == 2) {
      Element<T>::Mma(this->d, q.x, q.y, q.z, q.w, q.x, q.z);
      Element<T>::Mma(this->e, q.x, q.y, q.z, q.w, q.y, q.w);
    } else {
      SquareSum<T>::Add(q);
    }
  }
};

// The second sweep of a swept row.
template <class T, bool kSignals>
struct StageSweep : GradientSweep<T, kSignals> {
  StageSquares<T> stage_squares;
  using GradientSweep<T, kSignals>::GradientSweep;
  __device__ __forceinline__ void AddSquares(const uint4& o) {
    if constexpr (kSignals) stage_squares.Add(o);
  }
};

// ColumnMask without a target, in half of the instructions.
template <class T>
__device__ __forceinline__ uint4 EdgeMask(int column, int vocab, bool valid) {
  constexpr int kBits = Element<T>::kBytes * 8;
  const int begin = -column * kBits, end = valid ? (vocab - column) * kBits : 0;
  uint4 m;
  uint32_t* const w = &m.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    // Of the bits below a place: a shift by 32 leaves none, one by less than 0 does not happen.
    const auto below = [&](int bit) { return bit >= 32 ? ~0u : (1u << max(bit, 0)) - 1; };
    w[j] = below(end - 32 * j) & ~below(begin - 32 * j);
  }
  return m;
}

// Shares of squares of each four lanes, in one of them (`holds`).
template <class T>
__device__ __forceinline__ float ShareOfFour(const SquareSum<T>& s, int lane, bool* holds) {
  float share = s.Share(lane);
  if constexpr (Element<T>::kPerWord == 1) {
    share += __shfl_xor_sync(~0u, share, 1);
    share += __shfl_xor_sync(~0u, share, 2);
    *holds = (lane & 3) == 0;
  } else {
    *holds = (lane & 3) == lane >> 3;
  }
  return share;
}

// Others may look past smaller magnitudes. That they may see it late costs them a look, nothing else.
__device__ __forceinline__ unsigned LargestSoFar(uint32_t best) {
  unsigned x;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(best));
  return x;
}
__device__ __forceinline__ void RaiseLargest(uint32_t best, unsigned magnitude) {
  asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(best), "r"(magnitude) : "memory");
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_MATH_CUH_
