// A row of logits as 16-byte vectors at its own alignment, for the kernels that let a CTA's threads share a row. No byte outside of the row is touched:
// a vector that reaches beyond it is put together from single elements.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROW_READER_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROW_READER_CUH_

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch_reads.cuh"

namespace lossgauge::cuda {

template <class T>
struct RowReader {
  using E = Element<T>;
  static constexpr int kElements = kVectorElements<T>;
  const unsigned char* row;
  unsigned char* grad;  // null = none
  int head;             // elements of vector 0 before the row's first
  int vectors;
  int vocab;
  bool grad_aligned;    // gradient vectors are 16-byte aligned where the logits' are

  __device__ __forceinline__ RowReader(const CrossEntropyLaunch& a, long long index)
      : row(a.logits + index * a.row_stride_bytes), grad(a.grad == nullptr ? nullptr : a.grad + index * a.grad_stride_bytes), vocab(a.vocab_size) {
    const unsigned long long address = reinterpret_cast<unsigned long long>(row);
    head = static_cast<int>(address & 15) / E::kBytes;
    vectors = (head + vocab + kElements - 1) / kElements;
    grad_aligned = grad != nullptr && ((reinterpret_cast<unsigned long long>(grad) ^ address) & 15) == 0;
  }
  // Column of a vector's first element; may be negative.
  __device__ __forceinline__ int Column(int vector) const { return vector * kElements - head; }
  __device__ __forceinline__ bool IsWhole(int vector) const { return Column(vector) >= 0 && Column(vector) + kElements <= vocab; }
  __device__ __forceinline__ uint4 LoadWhole(int vector) const {
    return __ldcg(reinterpret_cast<const uint4*>(row + static_cast<long long>(Column(vector)) * E::kBytes));
  }
  // Elements outside of the row come as -inf.
  __device__ __forceinline__ uint4 Load(int vector) const {
    const int column = Column(vector);
    const unsigned char* from = row + static_cast<long long>(column) * E::kBytes;
    // Through L2 only: in place, the same bytes are written later, and a line may be shared with another CTA's row.
    if (vector < vectors && IsWhole(vector)) return __ldcg(reinterpret_cast<const uint4*>(from));
    uint4 q = make_uint4(E::kMinusInfinity, E::kMinusInfinity, E::kMinusInfinity, E::kMinusInfinity);
    if (vector < vectors) {
      uint32_t* w = &q.x;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (static_cast<unsigned>(column + i) >= static_cast<unsigned>(vocab)) continue;
        if constexpr (E::kBytes == 2) {
          const uint32_t bits = __ldcg(reinterpret_cast<const unsigned short*>(from) + i);
          w[i >> 1] = i & 1 ? (w[i >> 1] & 0xffffu) | bits << 16 : (w[i >> 1] & 0xffff0000u) | bits;
        } else {
          w[i] = __ldcg(reinterpret_cast<const uint32_t*>(from) + i);
        }
      }
    }
    return q;
  }
  __device__ __forceinline__ void Store(int vector, const uint4& q) const {
    const int column = Column(vector);
    unsigned char* to = grad + static_cast<long long>(column) * E::kBytes;
    if (grad_aligned && IsWhole(vector)) {
      *reinterpret_cast<uint4*>(to) = q;
      return;
    }
    const uint32_t* w = &q.x;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (static_cast<unsigned>(column + i) >= static_cast<unsigned>(vocab)) continue;
      if constexpr (E::kBytes == 2) reinterpret_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(w[i >> 1] >> (16 * (i & 1)));
      else reinterpret_cast<uint32_t*>(to)[i] = w[i];
    }
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROW_READER_CUH_
