// Where a tensor of rows lies in memory, and whether two of them share a byte. For the checks of arguments: nothing here follows a pointer.
#ifndef LOSSGAUGE_KERNELS_HOST_TENSOR_SPAN_H_
#define LOSSGAUGE_KERNELS_HOST_TENSOR_SPAN_H_

#include <cstdint>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

inline bool IsFloatType(std::int32_t dtype) noexcept { return dtype == LG_FP32 || dtype == LG_BF16 || dtype == LG_FP16; }

inline std::int64_t BytesOfType(std::int32_t dtype) noexcept {
  switch (dtype) {
    case LG_FP32:
    case LG_INT32:
      return 4;
    case LG_BF16:
    case LG_FP16:
      return 2;
    default:
      return 8;
  }
}

// Bytes from the first to behind the last element of [rows, columns] fit in 63 bits. Rows of any stride, also backwards.
inline bool SpanFits(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t bytes) noexcept {
  std::int64_t span;
  const std::int64_t magnitude = stride < 0 ? -stride : stride;
  return stride != INT64_MIN && !__builtin_mul_overflow(rows > 0 ? rows - 1 : 0, magnitude, &span) &&
         !__builtin_add_overflow(span, columns, &span) && !__builtin_mul_overflow(span, bytes, &span);
}

// [rows, columns] of elements of `bytes` bytes whose span fits. Empty if data is null or rows is 0.
struct TensorSpan {
  const void* data;
  std::int64_t rows, columns, stride, bytes;
};

// True if a byte of one may be a byte of the other. Rows that lie between each other's in step are told apart; of other strides only the outer bounds are compared.
inline bool Overlap(const TensorSpan& a, const TensorSpan& b) noexcept {
  if (a.data == nullptr || b.data == nullptr || a.rows == 0 || b.rows == 0) return false;
  struct Bounds {
    std::uintptr_t begin, end;
  };
  const auto bounds = [](const TensorSpan& span) {
    const auto at = reinterpret_cast<std::uintptr_t>(span.data);
    const std::int64_t last = (span.rows - 1) * span.stride * span.bytes;
    const auto low = at + static_cast<std::uintptr_t>(last < 0 ? last : 0);
    const auto high = at + static_cast<std::uintptr_t>(last > 0 ? last : 0);
    return Bounds{low, high + static_cast<std::uintptr_t>(span.columns * span.bytes)};
  };
  const Bounds first = bounds(a), second = bounds(b);
  if (second.end <= first.begin || first.end <= second.begin) return false;
  const auto pitch_of = [](const TensorSpan& span) { return (span.stride < 0 ? -span.stride : span.stride) * span.bytes; };
  const std::int64_t pitch = pitch_of(a);
  if (pitch != pitch_of(b) || pitch == 0) return true;
  std::int64_t shift = static_cast<std::int64_t>(second.begin - first.begin) % pitch;
  if (shift < 0) shift += pitch;
  return shift < a.columns * a.bytes || shift + b.columns * b.bytes > pitch;
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_TENSOR_SPAN_H_
