// One chunk of linear cross-entropy, tile by tile: logits = hidden W^T + bias, then, from the logits' gradient G that the row loops wrote in their place,
// dH = G W and dW += G^T hidden. 16-bit factors become fp32 a tile at a time; every product is summed in fp32 and rounded once.
//
// In terms of product_inl.h, which writes columns one after the other, each product is computed as the transpose of what its name says.
#ifndef LOSSGAUGE_KERNELS_CPU_LINEAR_INL_H_
#define LOSSGAUGE_KERNELS_CPU_LINEAR_INL_H_

#include "kernels/cpu/linear_job.h"
#include "kernels/cpu/terms_inl.h"
// after Highway, whose target its namespace is named by
#include "kernels/cpu/product_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr double kLargestTileSquare = 0x1p42;  // of a tile's row of the head's gradient: 2^21 clamped ones fit

static HWY_INLINE std::int64_t BytesOfElement(std::int32_t dtype) { return dtype == LG_DTYPE_FP32 ? 4 : 2; }

template <class Element>
HWY_NOINLINE void LoadFloats(const unsigned char* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) Fp32::Store(Element::Load(from + j * Element::kBytes), reinterpret_cast<unsigned char*>(to + j));
  for (; j < count; ++j) to[j] = Element::LoadOne(from + j * Element::kBytes);
}

// Rounds `from`, plus what is there already if kAdd.
template <class Element, bool kAdd>
HWY_NOINLINE void StoreFloats(const float* from, std::int64_t count, unsigned char* to) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    VF value = Fp32::Load(reinterpret_cast<const unsigned char*>(from + j));
    if constexpr (kAdd) value = hn::Add(value, Element::Load(to + j * Element::kBytes));
    Element::Store(value, to + j * Element::kBytes);
  }
  for (; j < count; ++j) {
    unsigned char* at = to + j * Element::kBytes;
    Element::StoreOne(kAdd ? from[j] + Element::LoadOne(at) : from[j], at);
  }
}

// Sum of (restore * value)^2.
template <class Element>
HWY_NOINLINE double SumSquares(const unsigned char* row, std::int64_t count, float restore) {
  const DF df;
  const VF scale = hn::Set(df, restore);
  DoubleSum sum;
  double rest = 0;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const VF value = hn::Mul(Element::Load(row + j * Element::kBytes), scale);
    sum.Add(hn::Mul(value, value));
  }
  for (; j < count; ++j) {
    const float value = Element::LoadOne(row + j * Element::kBytes) * restore;
    rest += static_cast<double>(value * value);
  }
  return sum.Total() + rest;
}

#define LOSSGAUGE_BY_DTYPE(dtype, function, ...)                       \
  ((dtype) == LG_DTYPE_FP32   ? function<Fp32>(__VA_ARGS__)            \
   : (dtype) == LG_DTYPE_BF16 ? function<Bf16>(__VA_ARGS__)            \
                              : function<Fp16>(__VA_ARGS__))
template <class Element>
void StoreRounded(const float* from, std::int64_t count, unsigned char* to) { StoreFloats<Element, false>(from, count, to); }
template <class Element>
void StoreAdded(const float* from, std::int64_t count, unsigned char* to) { StoreFloats<Element, true>(from, count, to); }

struct FloatMatrix {
  const float* data;
  std::int64_t stride;
};
// A tile as fp32: where it is, or copied to `room`.
FloatMatrix AsFloats(std::int32_t dtype, const unsigned char* from, std::int64_t rows, std::int64_t columns, std::int64_t stride, float* room) {
  if (dtype == LG_DTYPE_FP32) return {reinterpret_cast<const float*>(from), stride};
  for (std::int64_t i = 0; i < rows; ++i) LOSSGAUGE_BY_DTYPE(dtype, LoadFloats, from + i * stride * 2, columns, room + i * columns);
  return {room, columns};
}

void Zero(float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) __builtin_memset(data + i * stride, 0, static_cast<std::size_t>(columns) * sizeof(float));
}

HWY_INLINE std::int64_t Least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

const unsigned char* At(const unsigned char* data, std::int32_t dtype, std::int64_t elements) { return data + elements * BytesOfElement(dtype); }
unsigned char* At(unsigned char* data, std::int32_t dtype, std::int64_t elements) { return data + elements * BytesOfElement(dtype); }

void GatherRows(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const unsigned char* from = At(job.hidden_from, job.dtype, job.places[i] * job.hidden_stride);
    LOSSGAUGE_BY_DTYPE(job.dtype, LoadFloats, from, job.width, job.hidden + i * job.width);
  }
}

void LogitsTile(const LinearJob& job, std::int64_t tile, const LinearScratch& scratch) {
  const std::int64_t column = tile * kTileColumns, columns = Least(kTileColumns, job.columns - column);
  const bool rounds = job.logits_dtype != LG_DTYPE_FP32;
  HWY_ALIGN float bias[kTileColumns];
  if (job.bias != nullptr) LOSSGAUGE_BY_DTYPE(job.dtype, LoadFloats, At(job.bias, job.dtype, column), columns, bias);
  for (std::int64_t row = 0; row < job.rows; row += kTileDepth) {
    const std::int64_t rows = Least(kTileDepth, job.rows - row);
    unsigned char* const to = At(job.logits, job.logits_dtype, row * job.logits_stride + column);
    float* const out = rounds ? scratch.tile : reinterpret_cast<float*>(to);
    const std::int64_t stride = rounds ? columns : job.logits_stride;
    Zero(out, rows, columns, stride);
    for (std::int64_t k = 0; k < job.width; k += kTileDepth) {
      const std::int64_t depth = Least(kTileDepth, job.width - k);
      const FloatMatrix weight =
          AsFloats(job.dtype, At(job.weight, job.dtype, column * job.weight_stride + k), columns, depth, job.weight_stride, scratch.left_floats);
      AddProduct<Order::kRows, Order::kColumns>(columns, rows, depth, weight.data, weight.stride, job.hidden + row * job.width + k, job.width, out, stride,
                                                scratch.left, scratch.right);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const line = out + i * stride;
      if (job.bias != nullptr) {
        for (std::int64_t j = 0; j < columns; ++j) line[j] += bias[j];
      }
      if (rounds) LOSSGAUGE_BY_DTYPE(job.logits_dtype, StoreRounded, line, columns, At(to, job.logits_dtype, i * job.logits_stride));
    }
  }
}

void HiddenTile(const LinearJob& job, std::int64_t tile, const LinearScratch& scratch) {
  const std::int64_t across = TilesOf(job.width, kTileWidth);
  const std::int64_t row = tile / across * kTileRows, rows = Least(kTileRows, job.rows - row);
  const std::int64_t place = tile % across * kTileWidth, width = Least(kTileWidth, job.width - place);
  float* const out = job.grad_hidden_sum + row * job.width + place;
  Zero(out, rows, width, job.width);
  for (std::int64_t k = 0; k < job.columns; k += kTileDepth) {
    const std::int64_t depth = Least(kTileDepth, job.columns - k);
    const FloatMatrix weight =
        AsFloats(job.dtype, At(job.weight, job.dtype, k * job.weight_stride + place), depth, width, job.weight_stride, scratch.left_floats);
    const FloatMatrix gradient = AsFloats(job.logits_dtype, At(job.logits, job.logits_dtype, row * job.logits_stride + k), rows, depth, job.logits_stride,
                                          scratch.right_floats);
    AddProduct<Order::kColumns, Order::kColumns>(width, rows, depth, weight.data, weight.stride, gradient.data, gradient.stride, out, job.width, scratch.left,
                                                 scratch.right);
  }
}

// A row of a tile of the head's gradient, as emitted, into the signal.
void CountHeadRow(const LinearJob& job, const unsigned char* row, std::int64_t width, double sign, LinearSums* sums) {
  if (!job.head_signal) return;
  const double squares = LOSSGAUGE_BY_DTYPE(job.head_grad_dtype, SumSquares, row, width, job.head_restore);
  if (!__builtin_isfinite(squares)) {
    sums->head_is_nonfinite = true;
    return;
  }
  bool clamped = false;
  AddTerm(sign * squares, kLargestTileSquare, &clamped, &sums->head_squares);
  if (clamped) ++sums->clamped_rows;
}

// Rounds a finished sum to where it goes.
void EmitHead(const LinearJob& job, const float* from, std::int64_t count, unsigned char* to) {
  if (job.accumulate) {
    LOSSGAUGE_BY_DTYPE(job.head_grad_dtype, StoreAdded, from, count, to);
  } else {
    LOSSGAUGE_BY_DTYPE(job.head_grad_dtype, StoreRounded, from, count, to);
  }
}

void WeightTile(const LinearJob& job, std::int64_t column, std::int64_t columns, const LinearScratch& scratch, LinearSums* sums) {
  const bool direct = job.head_grad_dtype == LG_DTYPE_FP32;
  for (std::int64_t place = 0; place < job.width; place += kTileWidth) {
    const std::int64_t width = Least(kTileWidth, job.width - place);
    unsigned char* const to = At(job.grad_weight, job.head_grad_dtype, column * job.grad_weight_stride + place);
    float* out = scratch.tile;
    std::int64_t stride = width;
    if (direct) {
      out = reinterpret_cast<float*>(to), stride = job.grad_weight_stride;
    } else if (job.weight_sum != nullptr) {
      out = job.weight_sum + column * job.width + place, stride = job.width;
    }
    const auto emitted = [&](std::int64_t i) { return At(to, job.head_grad_dtype, i * job.grad_weight_stride); };
    if (job.first_chunk) {
      // What it was before leaves the sum, so that the calls of a step add up to the square of what they leave.
      for (std::int64_t i = 0; job.accumulate && i < columns; ++i) CountHeadRow(job, emitted(i), width, -1.0, sums);
      if (!direct || !job.accumulate) Zero(out, columns, width, stride);
    }
    for (std::int64_t k = 0; k < job.rows; k += kTileDepth) {
      const std::int64_t depth = Least(kTileDepth, job.rows - k);
      const FloatMatrix gradient = AsFloats(job.logits_dtype, At(job.logits, job.logits_dtype, k * job.logits_stride + column), depth, columns,
                                            job.logits_stride, scratch.right_floats);
      AddProduct<Order::kColumns, Order::kRows>(width, columns, depth, job.hidden + k * job.width + place, job.width, gradient.data, gradient.stride, out,
                                                stride, scratch.left, scratch.right);
    }
    if (!job.last_chunk) continue;
    for (std::int64_t i = 0; i < columns; ++i) {
      if (!direct) EmitHead(job, out + i * stride, width, emitted(i));
      CountHeadRow(job, emitted(i), width, 1.0, sums);
    }
  }
}

void BiasTile(const LinearJob& job, std::int64_t column, std::int64_t columns) {
  HWY_ALIGN float row[kTileColumns];
  HWY_ALIGN double sum[kTileColumns] = {};
  for (std::int64_t i = 0; i < job.rows; ++i) {
    LOSSGAUGE_BY_DTYPE(job.logits_dtype, LoadFloats, At(job.logits, job.logits_dtype, i * job.logits_stride + column), columns, row);
    for (std::int64_t j = 0; j < columns; ++j) sum[j] += static_cast<double>(row[j]);
  }
  const bool direct = job.head_grad_dtype == LG_DTYPE_FP32;
  unsigned char* const to = At(job.grad_bias, job.head_grad_dtype, column);
  float* const kept = direct ? reinterpret_cast<float*>(to) : job.bias_sum != nullptr ? job.bias_sum + column : row;
  const bool afresh = kept == row || (job.first_chunk && (!direct || !job.accumulate));
  for (std::int64_t j = 0; j < columns; ++j) kept[j] = static_cast<float>(sum[j] + (afresh ? 0.0 : static_cast<double>(kept[j])));
  if (!direct && job.last_chunk) EmitHead(job, kept, columns, to);
}

void GradientTile(const LinearJob& job, std::int64_t tile, const LinearScratch& scratch, LinearSums* sums) {
  const std::int64_t hidden_tiles = HiddenTiles(job);
  if (tile < hidden_tiles) return HiddenTile(job, tile, scratch);
  const std::int64_t column = (tile - hidden_tiles) * kTileColumns, columns = Least(kTileColumns, job.columns - column);
  if (job.grad_weight != nullptr) WeightTile(job, column, columns, scratch, sums);
  if (job.grad_bias != nullptr) BiasTile(job, column, columns);
}

void EmitRows(const LinearJob& job, std::int64_t begin, std::int64_t end, LinearSums* sums) {
  for (std::int64_t i = begin; i < end; ++i) {
    unsigned char* const to = At(job.grad_hidden, job.dtype, job.places[i] * job.grad_hidden_stride);
    LOSSGAUGE_BY_DTYPE(job.dtype, StoreRounded, job.grad_hidden_sum + i * job.width, job.width, to);
    if (!job.hidden_signal || !__builtin_isfinite(job.losses[i])) continue;
    const double upstream = job.upstream != nullptr ? static_cast<double>(job.upstream[i * job.upstream_stride]) : 1.0;
    const auto restore = static_cast<float>(job.denominator / (upstream * job.grad_scale));
    if (!__builtin_isfinite(restore) || restore == 0) {
      sums->hidden_is_partial = true;
      continue;
    }
    const double squares = LOSSGAUGE_BY_DTYPE(job.dtype, SumSquares, to, job.width, restore);
    bool clamped = false;
    if (__builtin_isfinite(squares)) AddTerm(squares, kLargestSquare, &clamped, &sums->hidden_squares);
    if (clamped) ++sums->clamped_rows;
  }
}

#undef LOSSGAUGE_BY_DTYPE

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_LINEAR_INL_H_
