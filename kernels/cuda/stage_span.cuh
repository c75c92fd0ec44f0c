// From a row of the caller's tensor to its place in a stage.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_SPAN_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_SPAN_CUH_

#include "kernels/cuda/ring_zero.cuh"
#include "kernels/cuda/stage_layout.cuh"

namespace lossgauge::cuda {

// Bulk copies move whole 16-byte vectors; where the outermost vectors of a row would reach beyond the caller's tensor, their elements are loaded one by one
// instead. A swept row's vector 0 begins at a multiple of 128 bytes, a packed row's with the row.
struct StageSpan {
  unsigned long long row_begin;
  int head, from, to;  // columns that vector 0 begins before the row; vectors of the row
  bool patch_head, patch_tail;
  __device__ __forceinline__ bool patched() const { return patch_head || patch_tail; }
  // What is copied.
  __device__ __forceinline__ int first() const { return from + patch_head; }
  __device__ __forceinline__ unsigned bytes() const { return static_cast<unsigned>(max(to - patch_tail - first(), 0)) * 16u; }
};

template <class C>
__device__ __forceinline__ StageSpan MakeSpan(const CrossEntropyLaunch& a, int row) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  StageSpan s;
  const unsigned long long row_bytes = static_cast<unsigned long long>(a.columns) * E::kBytes, begin = reinterpret_cast<unsigned long long>(a.logits);
  const bool dense = static_cast<unsigned long long>(a.row_stride_bytes) == row_bytes;
  s.row_begin = begin + row * a.row_stride_bytes;
  const int offset = C::kShape.packed ? 0 : static_cast<int>(s.row_begin & 127);
  s.head = offset / E::kBytes;
  s.from = offset / 16;
  s.to = (s.head + a.vocab_size + kElements - 1) / kElements;
  // Between rows of a dense tensor lie only the tensor's own bytes.
  s.patch_head = !C::kShape.packed && (s.row_begin & ~15ull) < (dense ? begin : s.row_begin);
  s.patch_tail = s.row_begin - offset + 16ull * s.to > (dense ? begin + a.rows * row_bytes : s.row_begin + row_bytes);
  return s;
}

// Of row `row` to `data`, by one lane. The barrier expects the bytes.
template <class C>
__device__ __forceinline__ void CopySpan(const StageSpan& s, uint32_t data, uint32_t barrier) {
  if (s.bytes() == 0) return;
  const unsigned long long source = s.row_begin - s.head * Element<typename C::T>::kBytes + 16ull * s.first();
  BulkLoad(data + s.first() * 16, reinterpret_cast<const void*>(source), s.bytes(), barrier);
}

// The elements that CopySpan leaves out. A whole warp.
template <class C>
__device__ __noinline__ void PatchSpan(const CrossEntropyLaunch& a, int row, uint32_t data, int lane) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  const StageSpan s = MakeSpan<C>(a, row);
  const auto patch = [&](int vector, int from_lane) {
    const int i = lane - from_lane;
    const int column = vector * kElements - s.head + i;
    if (i < 0 || i >= kElements || static_cast<unsigned>(column) >= static_cast<unsigned>(a.vocab_size)) return;
    const unsigned char* source = reinterpret_cast<const unsigned char*>(s.row_begin) + static_cast<long long>(column) * E::kBytes;
    const uint32_t smem = data + vector * 16 + i * E::kBytes;
    if constexpr (E::kBytes == 2)
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(smem), "h"(*reinterpret_cast<const unsigned short*>(source)) : "memory");
    else StoreShared4(smem, *reinterpret_cast<const uint32_t*>(source));
  };
  if (s.patch_head) patch(s.from, 0);
  if (s.patch_tail && !(s.patch_head && s.to - 1 == s.from)) patch(s.to - 1, 16);
  __syncwarp();
}

// Zeros in the gradient of a masked row, and its losses. A whole warp.
template <class C>
__device__ __noinline__ void WriteMaskedRow(uint32_t base, const CrossEntropyLaunch& a, int row, int lane) {
  if (lane == 0) {
    if (a.losses != nullptr) a.losses[row] = 0.f;
    if (a.log_z != nullptr) a.log_z[row] = 0.f;
  }
  if (a.grad != nullptr) ZeroSpan<C>(base, a.grad + row * a.grad_stride_bytes, a.columns, lane);
}
// Zeros in the padded columns of a row's gradient. A whole warp.
template <class C>
__device__ __forceinline__ void ZeroPadding(uint32_t base, const CrossEntropyLaunch& a, int row, int lane) {
  constexpr int kBytes = Element<typename C::T>::kBytes;
  ZeroSpan<C>(base, a.grad + row * a.grad_stride_bytes + static_cast<long long>(a.vocab_size) * kBytes, a.columns - a.vocab_size, lane);
}

// A row's target and scale on their way to shared memory, without a register and without anybody waiting.
__device__ __forceinline__ void AsyncCopy4(uint32_t smem, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(global) : "memory");
}
__device__ __forceinline__ void AsyncCopyWait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_SPAN_CUH_
