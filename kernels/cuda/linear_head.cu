#include "kernels/cuda/linear_head.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/gradient_squares.cuh"
#include "kernels/cuda/launch_reads.cuh"

namespace lossgauge::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerMultiprocessor = 8;
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
__device__ __forceinline__ float RoundTo(void* out, long long index, float x, bool add, double* squares_before) {
  using E = Element<T>;
  unsigned char* const to = static_cast<unsigned char*>(out) + index * E::kBytes;
  if (add) {
    const float before = E::Load(to);
    x += before;
    *squares_before += static_cast<double>(before) * before;
  }
  const uint32_t packed = E::Pack(x, 0.f);
  *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(packed);
  return E::Get(packed, 0);
}

// The squares of a CTA's rows, which reach the counters once: they are one place for all. All threads of the CTA.
class HeadSquares {
 public:
  explicit __device__ HeadSquares(const FinishGradientLaunch& a) : counts_(a.loss.counters != nullptr && *a.taken != 0) {
    if (!counts_) return;
    denominator_ = ReadDenominator(a.loss);
    scale_ = ReadScale(a.loss, 0);
  }
  __device__ bool counts() const { return counts_; }
  __device__ void AddRow(double squares, int sign) {
    squares = CtaSum<kThreads>(squares);
    if (!Restore(scale_, denominator_, &squares) || !isfinite(squares)) absent_ = true;
    else sum_.Add(sign * squares);
  }
  __device__ void End(DeviceCounters* counters) const {
    if (!counts_ || threadIdx.x != 0) return;
    if (absent_) atomicOr(&counters->absent, Word{LG_HAS_HEAD_GRAD});
    else sum_.AddTo(counters, kHeadGradSqSum);
  }

 private:
  const bool counts_;
  bool absent_ = false;
  double denominator_ = 1.;
  float scale_ = 1.f;
  SquaresSum sum_;  // valid in thread 0
};

__global__ void __launch_bounds__(kThreads) Finish(const __grid_constant__ FinishGradientLaunch a) {
  HeadSquares sum(a);
  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    double squares = 0., before = 0.;
    for (int i = threadIdx.x; i < a.width; i += kThreads) {
      float x = a.sums[row * a.sums_stride + i];
      if (a.out != nullptr) {
        const long long index = row * a.out_stride + i;
        x = a.out_dtype == 1 ? RoundTo<__nv_bfloat16>(a.out, index, x, a.add, &before) : RoundTo<__half>(a.out, index, x, a.add, &before);
      }
      squares += static_cast<double>(x) * x;
    }
    if (sum.counts()) sum.AddRow(squares - before, a.sign);
  }
  sum.End(a.loss.counters);
}

// Two elements rounded as they are emitted.
template <class T>
__device__ __forceinline__ uint32_t RoundTwo(float* first, float* second, uint32_t before, bool add) {
  using E = Element<T>;
  if (add) *first += E::Get(before, 0), *second += E::Get(before, 1);
  const uint32_t packed = E::Pack(*first, *second);
  *first = E::Get(packed, 0);
  *second = E::Get(packed, 1);
  return packed;
}

// The same in vectors of four elements: a gigabyte comes at full speed only with much of it on its way at once.
template <class T>
__global__ void __launch_bounds__(kThreads) FinishVectors(const __grid_constant__ FinishGradientLaunch a) {
  constexpr int kVectors = 4;  // under way in a thread
  HeadSquares sum(a);
  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float4* const from = reinterpret_cast<const float4*>(a.sums + row * a.sums_stride);
    uint2* const to = reinterpret_cast<uint2*>(static_cast<unsigned char*>(a.out) + row * a.out_stride * 2);
    double squares = 0.;
    for (int base = threadIdx.x; base < a.width / 4; base += kThreads * kVectors) {
      float4 x[kVectors];
      uint2 before[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const bool inside = base + i * kThreads < a.width / 4;
        x[i] = inside ? from[base + i * kThreads] : float4{};
        before[i] = inside && a.add && a.out != nullptr ? to[base + i * kThreads] : uint2{};
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (a.out != nullptr) {
          uint2 rounded;
          rounded.x = RoundTwo<T>(&x[i].x, &x[i].y, before[i].x, a.add);
          rounded.y = RoundTwo<T>(&x[i].z, &x[i].w, before[i].y, a.add);
          if (base + i * kThreads < a.width / 4) to[base + i * kThreads] = rounded;
        }
        if (!sum.counts()) continue;
        for (const float each : {x[i].x, x[i].y, x[i].z, x[i].w}) squares += static_cast<double>(each) * each;
        if (!a.add || a.out == nullptr) continue;
        for (const uint32_t two : {before[i].x, before[i].y}) {
          const double first = Element<T>::Get(two, 0), second = Element<T>::Get(two, 1);
          squares -= first * first + second * second;
        }
      }
    }
    if (sum.counts()) sum.AddRow(squares, a.sign);
  }
  sum.End(a.loss.counters);
}

bool HasVectors(const FinishGradientLaunch& a) {
  const auto at = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  return a.width % 4 == 0 && a.sums_stride % 4 == 0 && at(a.sums) % 16 == 0 && (a.out == nullptr || (a.out_stride % 4 == 0 && at(a.out) % 8 == 0));
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

cudaError_t FinishGradient(const DeviceFacts& device, const FinishGradientLaunch& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const unsigned ctas = static_cast<unsigned>(std::min<long long>(a.rows, device.multiprocessors * kCtasPerMultiprocessor));
  if (!HasVectors(a)) Finish<<<ctas, kThreads, 0, stream>>>(a);
  else if (a.out_dtype == 2) FinishVectors<__half><<<ctas, kThreads, 0, stream>>>(a);
  else FinishVectors<__nv_bfloat16><<<ctas, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
