// Zeroing gradients of masked rows and padded columns.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_ZERO_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_ZERO_CUH_

#include "kernels/cuda/ring_layout.cuh"

namespace lossgauge::cuda {

// Bytes [to, end) as an aligned body and what is before and after it, which a warp zeroes element by element.
struct ZeroBody {
  unsigned char *begin, *end;
};
template <class T>
__device__ __forceinline__ ZeroBody ZeroEnds(unsigned char* to, int count, int lane) {
  constexpr int kBytes = Element<T>::kBytes;
  unsigned char* const end = to + static_cast<long long>(count) * kBytes;
  unsigned char* const body = reinterpret_cast<unsigned char*>((reinterpret_cast<unsigned long long>(to) + 15) & ~15ull);
  unsigned char* const tail = reinterpret_cast<unsigned char*>(reinterpret_cast<unsigned long long>(end) & ~15ull);
  const auto zero = [&](unsigned char* p, unsigned char* stop) {
    p += lane * kBytes;
    if (p < stop) {
      if constexpr (kBytes == 2) *reinterpret_cast<unsigned short*>(p) = 0;
      else *reinterpret_cast<unsigned*>(p) = 0;
    }
  };
  if (body >= tail) {  // at most two vectors' worth
    zero(to, end);
    return {end, end};
  }
  zero(to, body);
  zero(tail, end);
  return {body, tail};
}

// Zeros to `count` elements by one warp beside the others' work: bulk stores from the zero page, issued at once by all lanes.
template <class C>
__device__ __forceinline__ void ZeroSpan(uint32_t base, unsigned char* to, int count, int lane) {
  const ZeroBody body = ZeroEnds<typename C::T>(to, count, lane);
  for (unsigned char* p = body.begin + static_cast<long long>(lane) * kZeroPageBytes; p < body.end; p += 32ll * kZeroPageBytes) {
    BulkStore(p, base + C::ZERO, static_cast<uint32_t>(min(static_cast<long long>(body.end - p), static_cast<long long>(kZeroPageBytes))));
  }
  BulkCommit();
}

// The next masked row of a launch in clusters, by ticket; -1 = none is left. A whole warp.
template <class C>
__device__ __forceinline__ int NextMaskedRow(const CrossEntropyLaunch& a, int lane) {
  for (;;) {
    int row = -1;
    if (lane == 0) {
      const unsigned ticket = atomicAdd(&a.scratch->next_zero, 1u);
      if (ticket < a.rows) row = IsUnmasked(a, ReadTarget(a, ticket)) ? -2 : static_cast<int>(ticket);
    }
    row = __shfl_sync(~0u, row, 0);
    if (row != -2) return row;
  }
}

// In CTAs that schedule nothing, the warp that would: a leader alone could not write for its whole cluster.
template <class C>
__device__ __forceinline__ void ZeroMaskedRows(uint32_t base, const CrossEntropyLaunch& a, int lane) {
  if (a.grad == nullptr) return;
  for (int row; (row = NextMaskedRow<C>(a, lane)) >= 0;) ZeroSpan<C>(base, a.grad + row * a.grad_stride_bytes, a.columns, lane);
  if (lane < C::CL && !kForRacecheck) StoreRemote4(base + C::NOZEROS, lane, 1u);  // a hint that nothing orders
  BulkWaitAll();
}

// What is left once the rows are through: all reducers and gradient warps of a CTA together, a row at a time. One warp's bulk stores reach no more than
// half of a multiprocessor's share of the bandwidth. The first warp looks for the next row while the others write.
template <class C>
__device__ __noinline__ void ZeroTogether(uint32_t base, const CrossEntropyLaunch& a, int worker, int lane) {
  constexpr int kWriters = (C::R + C::G - 1) * 32;
  if (a.grad == nullptr) return;
  const auto sync = [] { asm volatile("bar.sync %0, %1;" ::"n"(kZeroBarrier), "n"((C::R + C::G) * 32) : "memory"); };
  for (int turn = 0;; turn ^= 4) {
    if (worker == 0) {
      // Where a warp of the cluster has found nothing left, nobody needs to ask again.
      const int next = LoadShared4(base + C::NOZEROS) != 0 ? -1 : NextMaskedRow<C>(a, lane);
      if (lane == 0) StoreShared4(base + C::ZEROROW + turn, static_cast<uint32_t>(next));
    }
    sync();
    const int row = static_cast<int>(LoadShared4(base + C::ZEROROW + turn));
    if (row < 0) return;
    if (worker == 0) continue;
    unsigned char* const to = a.grad + row * a.grad_stride_bytes;
    ZeroBody body;
    if (worker == 1) body = ZeroEnds<typename C::T>(to, a.columns, lane);
    else body = {reinterpret_cast<unsigned char*>((reinterpret_cast<unsigned long long>(to) + 15) & ~15ull),
                 reinterpret_cast<unsigned char*>(reinterpret_cast<unsigned long long>(to + static_cast<long long>(a.columns) * Element<typename C::T>::kBytes) & ~15ull)};
    for (unsigned char* p = body.begin + ((worker - 1) * 32 + lane) * 16; p < body.end; p += kWriters * 16) *reinterpret_cast<uint4*>(p) = make_uint4(0u, 0u, 0u, 0u);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_ZERO_CUH_
