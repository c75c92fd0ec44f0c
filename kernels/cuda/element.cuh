// The three dtypes of logits behind one face: 16-byte vectors of packed elements. fp32 arithmetic throughout; one rounding when a gradient is packed.
#ifndef LOSSGAUGE_KERNELS_CUDA_ELEMENT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lossgauge::cuda {

// kPerWord elements in 32 bits. Max2 and Min2 ignore NaN where the other operand is a number; MaxOrNan2 does not.
template <class T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  static constexpr int kPerWord = 2, kBytes = 2;
  static constexpr uint32_t kMinusInfinity = 0xff80ff80u;
  static __device__ __forceinline__ float Get(uint32_t w, int i) { return __uint_as_float(i ? w & 0xffff0000u : w << 16); }
  static __device__ __forceinline__ uint32_t Pack(float a, float b) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
  }
  static __device__ __forceinline__ uint32_t Max2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ uint32_t MaxOrNan2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ uint32_t Min2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ void Mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ void Mma8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
  }
  static constexpr uint32_t kOnes = 0x3f803f80u;
  static __device__ __forceinline__ float Load(const void* p) { return __bfloat162float(*static_cast<const __nv_bfloat16*>(p)); }
  static __device__ __forceinline__ float Round(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
};

template <>
struct Element<__half> {
  static constexpr int kPerWord = 2, kBytes = 2;
  static constexpr uint32_t kMinusInfinity = 0xfc00fc00u;
  static __device__ __forceinline__ float Get(uint32_t w, int i) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(i ? w >> 16 : w & 0xffffu)));
  }
  static __device__ __forceinline__ uint32_t Pack(float a, float b) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
  }
  static __device__ __forceinline__ uint32_t Max2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ uint32_t MaxOrNan2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ uint32_t Min2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ void Mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ void Mma8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
  }
  static constexpr uint32_t kOnes = 0x3c003c00u;
  static __device__ __forceinline__ float Load(const void* p) { return __half2float(*static_cast<const __half*>(p)); }
  static __device__ __forceinline__ float Round(float x) { return __half2float(__float2half_rn(x)); }
};

template <>
struct Element<float> {
  static constexpr int kPerWord = 1, kBytes = 4;
  static constexpr uint32_t kMinusInfinity = 0xff800000u;
  static __device__ __forceinline__ float Get(uint32_t w, int) { return __uint_as_float(w); }
  static __device__ __forceinline__ uint32_t Pack(float a, float) { return __float_as_uint(a); }
  static __device__ __forceinline__ uint32_t Max2(uint32_t a, uint32_t b) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  }
  static __device__ __forceinline__ uint32_t MaxOrNan2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.f32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  static __device__ __forceinline__ uint32_t Min2(uint32_t a, uint32_t b) {
    return __float_as_uint(fminf(__uint_as_float(a), __uint_as_float(b)));
  }
  static __device__ __forceinline__ float Load(const void* p) { return *static_cast<const float*>(p); }
  static __device__ __forceinline__ float Round(float x) { return x; }
};

template <class T>
constexpr int kVectorElements = 16 / Element<T>::kBytes;

// Largest or smallest element of a word.
template <class T>
__device__ __forceinline__ float WordMax(uint32_t w) {
  return Element<T>::kPerWord == 1 ? Element<T>::Get(w, 0) : fmaxf(Element<T>::Get(w, 0), Element<T>::Get(w, 1));
}
template <class T>
__device__ __forceinline__ float WordMin(uint32_t w) {
  return Element<T>::kPerWord == 1 ? Element<T>::Get(w, 0) : fminf(Element<T>::Get(w, 0), Element<T>::Get(w, 1));
}
template <class T>
__device__ __forceinline__ uint32_t VectorMax(const uint4& q, uint32_t m) {
  using E = Element<T>;
  return E::Max2(E::Max2(E::Max2(m, q.x), E::Max2(q.y, q.z)), q.w);
}
template <class T>
__device__ __forceinline__ uint32_t VectorMin(const uint4& q, uint32_t m) {
  using E = Element<T>;
  return E::Min2(E::Min2(E::Min2(m, q.x), E::Min2(q.y, q.z)), q.w);
}

__device__ __forceinline__ uint4 And(const uint4& a, const uint4& b) { return make_uint4(a.x & b.x, a.y & b.y, a.z & b.z, a.w & b.w); }
// -inf where the mask is 0.
template <class T>
__device__ __forceinline__ uint4 MaskToMinusInfinity(const uint4& q, const uint4& m) {
  constexpr uint32_t inf = Element<T>::kMinusInfinity;
  return make_uint4((q.x & m.x) | (~m.x & inf), (q.y & m.y) | (~m.y & inf), (q.z & m.z) | (~m.z & inf), (q.w & m.w) | (~m.w & inf));
}

// Sum of squares over packed elements. For 16-bit elements on the otherwise idle tensor cores: two words of each lane used as A (16 x 8: one word in the
// upper half, one in the lower) and one of them as B (8 x 8) leave on the diagonal of that half, for each group of four lanes, the sum of the word's
// squares: four instructions for eight elements where unpacking and multiplying takes sixteen, and operands that lie in registers as they are stored.
// Products of 16-bit elements are exact in fp32.
template <class T>
struct SquareSum {
  float d[4] = {0.f, 0.f, 0.f, 0.f}, e[4] = {0.f, 0.f, 0.f, 0.f};  // of the even and the odd words
  __device__ __forceinline__ void Add(const uint4& q) {
    if constexpr (Element<T>::kPerWord == 2) {
      Element<T>::Mma8(d, q.x, q.y, q.x);
      Element<T>::Mma8(e, q.x, q.y, q.y);
      Element<T>::Mma8(d, q.z, q.w, q.z);
      Element<T>::Mma8(e, q.z, q.w, q.w);
    } else {
      const float a = __uint_as_float(q.x), b = __uint_as_float(q.y), c = __uint_as_float(q.z), f = __uint_as_float(q.w);
      d[0] = fmaf(a, a, d[0]);
      d[1] = fmaf(b, b, d[1]);
      d[0] = fmaf(c, c, d[0]);
      d[1] = fmaf(f, f, d[1]);
    }
  }
  // Shares of all lanes add up to the warp's sum.
  __device__ __forceinline__ float Share(int lane) const {
    if constexpr (Element<T>::kPerWord == 1) return d[0] + d[1];
    const int group = lane >> 2, t = lane & 3;
    return t == (group >> 1) ? ((group & 1) ? d[1] + e[3] : d[0] + e[2]) : 0.f;
  }
};

// Sum over packed elements; with 16-bit elements a product with ones.
template <class T>
struct PlainSum {
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  __device__ __forceinline__ void Add(const uint4& q) {
    if constexpr (Element<T>::kPerWord == 2) {
      Element<T>::Mma(d, q.x, q.y, q.z, q.w, Element<T>::kOnes, Element<T>::kOnes);
    } else {
      d[0] += __uint_as_float(q.x) + __uint_as_float(q.y);
      d[1] += __uint_as_float(q.z) + __uint_as_float(q.w);
    }
  }
  __device__ __forceinline__ float Share(int lane) const {
    if constexpr (Element<T>::kPerWord == 1) return d[0] + d[1];
    return (lane & 3) == 0 ? d[0] + d[2] : 0.f;
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ELEMENT_CUH_
