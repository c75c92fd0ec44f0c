#include "kernels/cuda/scale.h"

#include <algorithm>

#include "kernels/cuda/element.cuh"

namespace lossgauge::cuda {
namespace {

constexpr int kThreads = 512;

template <class T>
__device__ __forceinline__ float ScaleOne(float x, float by) {
  return by == 0.f ? 0.f : x * by;  // 0 gives 0, also where the gradient is not finite
}

template <class T>
__global__ void __launch_bounds__(kThreads) Scale(const __grid_constant__ ScaleLaunch a) {
  using E = Element<T>;
  constexpr int kElements = kVectorElements<T>;
  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float by = a.upstream[row * a.upstream_stride];
    if (by == 1.f) continue;
    unsigned char* const begin = a.grad + row * a.row_stride_bytes;
    unsigned char* const end = begin + a.columns * E::kBytes;
    unsigned char* body = reinterpret_cast<unsigned char*>((reinterpret_cast<unsigned long long>(begin) + 15) & ~15ull);
    unsigned char* tail = reinterpret_cast<unsigned char*>(reinterpret_cast<unsigned long long>(end) & ~15ull);
    if (body >= tail) body = tail = end;
    const auto single = [&](unsigned char* p, unsigned char* stop) {
      for (p += threadIdx.x * E::kBytes; p < stop; p += kThreads * E::kBytes) {
        const uint32_t w = E::Pack(ScaleOne<T>(E::Load(p), by), 0.f);
        if constexpr (E::kBytes == 2) *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(w);
        else *reinterpret_cast<uint32_t*>(p) = w;
      }
    };
    single(begin, body);
    single(tail, end);
    for (unsigned char* p = body + threadIdx.x * 16; p < tail; p += kThreads * 16) {
      uint4 q = *reinterpret_cast<const uint4*>(p);
      uint32_t* w = &q.x;
#pragma unroll
      for (int i = 0; i < kElements; i += E::kPerWord) {
        const int j = i / E::kPerWord;
        w[j] = E::Pack(ScaleOne<T>(E::Get(w[j], 0), by), E::kPerWord == 2 ? ScaleOne<T>(E::Get(w[j], 1), by) : 0.f);
      }
      *reinterpret_cast<uint4*>(p) = q;
    }
  }
}

}  // namespace

cudaError_t LaunchScale(const ScaleLaunch& launch, cudaStream_t stream) {
  if (launch.rows == 0) return cudaSuccess;
  const unsigned ctas = static_cast<unsigned>(std::min<long long>(launch.rows, 1056));
  if (launch.dtype == 1) Scale<__nv_bfloat16><<<ctas, kThreads, 0, stream>>>(launch);
  else if (launch.dtype == 2) Scale<__half><<<ctas, kThreads, 0, stream>>>(launch);
  else Scale<float><<<ctas, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
