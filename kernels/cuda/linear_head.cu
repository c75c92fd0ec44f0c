#include "kernels/cuda/linear_head.h"

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/gradient_squares.cuh"

namespace lossgauge::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;  // loads under way in a thread: nothing else hides their latency

// A thread sums the columns of one 32-bit word.
template <class T>
__global__ void __launch_bounds__(kThreads) ColumnSums(const __grid_constant__ ColumnSumLaunch a) {
  using E = Element<T>;
  const int column = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * E::kPerWord;
  if (column >= a.columns) return;
  const unsigned char* const from = a.grad + static_cast<long long>(column) * E::kBytes;
  float first = 0.f, second = 0.f;
  const auto add = [&](uint32_t word) {
    first += E::Get(word, 0);
    if (E::kPerWord == 2) second += E::Get(word, 1);
  };
  int row = 0;
  for (; row + kUnroll <= a.rows; row += kUnroll) {
    uint32_t words[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) words[i] = *reinterpret_cast<const uint32_t*>(from + (row + i) * a.row_stride_bytes);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) add(words[i]);
  }
  for (; row < a.rows; ++row) add(*reinterpret_cast<const uint32_t*>(from + row * a.row_stride_bytes));
  a.sums[column] = a.add ? a.sums[column] + first : first;
  if (E::kPerWord == 2 && column + 1 < a.columns) a.sums[column + 1] = a.add ? a.sums[column + 1] + second : second;
}

template <class T>
__device__ __forceinline__ float RoundTo(void* out, long long index, float x, bool add) {
  using E = Element<T>;
  unsigned char* const to = static_cast<unsigned char*>(out) + index * E::kBytes;
  if (add) x += E::Load(to);
  const uint32_t packed = E::Pack(x, 0.f);
  *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(packed);
  return E::Get(packed, 0);
}

__global__ void __launch_bounds__(kThreads) Finish(const __grid_constant__ FinishGradientLaunch a) {
  double denominator = a.denominator_pointer != nullptr ? *a.denominator_pointer : a.denominator;
  float scale = a.upstream != nullptr ? *a.upstream : 1.f;
  if (a.grad_scale != nullptr) scale *= *a.grad_scale;
  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    double squares = 0.;
    for (int i = threadIdx.x; i < a.width; i += kThreads) {
      float x = a.sums[row * a.sums_stride + i];
      if (a.out != nullptr) {
        const long long index = row * a.out_stride + i;
        x = a.out_dtype == 1 ? RoundTo<__nv_bfloat16>(a.out, index, x, a.add) : RoundTo<__half>(a.out, index, x, a.add);
      }
      squares += static_cast<double>(x) * x;
    }
    if (a.counters == nullptr) continue;
    squares = CtaSum<kThreads>(squares);
    if (threadIdx.x == 0) AddSquares(a.counters, kHeadGradSqSum, squares, scale, denominator);
  }
}

}  // namespace

cudaError_t SumColumns(const ColumnSumLaunch& a, cudaStream_t stream) {
  const int per_cta = kThreads * (a.dtype == 0 ? 1 : 2);
  const unsigned ctas = static_cast<unsigned>((a.columns + per_cta - 1) / per_cta);
  if (a.dtype == 1) ColumnSums<__nv_bfloat16><<<ctas, kThreads, 0, stream>>>(a);
  else if (a.dtype == 2) ColumnSums<__half><<<ctas, kThreads, 0, stream>>>(a);
  else ColumnSums<float><<<ctas, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t FinishGradient(const FinishGradientLaunch& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  Finish<<<static_cast<unsigned>(std::min<long long>(a.rows, 132 * 8)), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
