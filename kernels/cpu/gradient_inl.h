// The sweep that writes a row's gradient, with the two signals that exist only there: the mass of the fp32 probabilities, and
// the squares of the gradient as emitted (after rounding to the logits' dtype).
//
// g = (p * (1 + 2 lambda log Z) - e/V) * slope * factor in one fused operation for every column but the target, p = exp(d) /
// sum. The target's own p - 1 + ... is formed in double from the sum of the others, so that it keeps its digits when p -> 1.
#ifndef LOSSGAUGE_KERNELS_CPU_GRADIENT_INL_H_
#define LOSSGAUGE_KERNELS_CPU_GRADIENT_INL_H_

#include "kernels/cpu/reader_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

struct GradientRow {
  double sum;     // of all exponentials
  double others;  // without the target's
  double target_exponential;
  double weight;  // 1 + 2 lambda log Z
  double smoothing;
  double target_slope;
  double factor;   // upstream * grad_scale / denominator; finite, not 0
  double restore;  // what undoes it: denominator / (upstream * grad_scale)
};

struct GradientSignals {
  double mass = 0;
  double squares = 0;  // of the emitted gradient * restore
};

template <class Element, bool kSignals, class Reader>
HWY_NOINLINE GradientSignals WriteGradient(const GradientRow& row, const Reader& reader, const RowShape& shape,
                                           unsigned char* to) {
  const DF df;
  const double p_factor = row.weight * row.factor / row.sum;
  const double magnitude = p_factor < 0 ? -p_factor : p_factor;
  // A tiny factor would vanish when the bias of the exponential is taken back from it.
  const int bias = magnitude < 0x1p-40 ? 0 : 64;
  const double unbias = bias == 0 ? 1.0 : 0x1p-64;
  const ExpConstants constants = MakeExp(bias);
  const VF magic = hn::Set(df, constants.magic);
  const VF lowest = hn::Set(df, constants.lowest);
  const VF scale = hn::Set(df, static_cast<float>(p_factor * unbias));
  const VF p_scale = hn::Set(df, static_cast<float>(unbias / row.sum));
  const double uniform = row.smoothing / static_cast<double>(shape.columns);
  const VF offset = hn::Set(df, static_cast<float>(-uniform * row.factor));
  const float largest = 3.4028234e38f;
  const double magnitude_restore = row.restore < 0 ? -row.restore : row.restore;
  const VF restore =
      hn::Set(df, magnitude_restore > static_cast<double>(largest) ? largest : static_cast<float>(magnitude_restore));
  DoubleSum mass, squares;
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    BlockSum block_mass, block_squares;
    if (HWY_LIKELY(shape.IsWhole(begin))) {
      unsigned char* block = to + begin * Element::kBytes;
      for (int j = 0; j < kUnroll; ++j) {
        const std::int64_t column = begin + j * kLanes;
        const VF exponential = ScaledExp(reader.D(column), magic, lowest);
        VF gradient = hn::MulAdd(exponential, scale, offset);
        if constexpr (Reader::kMapped) gradient = hn::Mul(gradient, reader.Slope(column));
        const VF emitted = Element::Store(gradient, block + j * kLanes * Element::kBytes);
        if constexpr (kSignals) {
          block_mass.Put(j, hn::Mul(exponential, p_scale));
          const VF restored = hn::Mul(emitted, restore);
          block_squares.Put(j, hn::Mul(restored, restored));
        }
      }
    } else {
      HWY_ALIGN float staged[kBlock];
      HWY_ALIGN float restored[kBlock];
      HWY_ALIGN unsigned char out[kBlock * Element::kBytes];
      reader.Stage(shape, begin, staged);
      for (int j = 0; j < kUnroll; ++j) {
        const VF exponential = ScaledExp(hn::Load(df, staged + j * kLanes), magic, lowest);
        VF gradient = hn::MulAdd(exponential, scale, offset);
        if constexpr (Reader::kMapped) gradient = hn::Mul(gradient, reader.Slope(begin + j * kLanes));
        const VF emitted = Element::Store(gradient, out + j * kLanes * Element::kBytes);
        if constexpr (kSignals) {
          block_mass.Put(j, hn::Mul(exponential, p_scale));
          hn::Store(hn::Mul(emitted, restore), df, restored + j * kLanes);
        }
      }
      const std::int64_t width = shape.Width(begin);
      if (shape.HasTarget(begin)) {
        const std::int64_t at = shape.target - begin;
        const double p = row.target_exponential / row.sum;
        const double core = (0.0 - row.others / row.sum) + (row.weight - 1.0) * p + (row.smoothing - uniform);
        const float gradient = static_cast<float>(core * row.target_slope * row.factor);
        const float emitted = Element::StoreOne(gradient, out + at * Element::kBytes);
        if constexpr (kSignals) restored[at] = emitted * hn::GetLane(restore);
      }
      if constexpr (kSignals) {
        for (std::int64_t j = width; j < kBlock; ++j) restored[j] = 0;
        for (int j = 0; j < kUnroll; ++j) {
          const VF value = hn::Load(df, restored + j * kLanes);
          block_squares.Put(j, hn::Mul(value, value));
        }
      }
      __builtin_memcpy(to + begin * Element::kBytes, out, static_cast<std::size_t>(width * Element::kBytes));
    }
    if constexpr (kSignals) {
      mass.Add(block_mass.Total());
      squares.Add(block_squares.Total());
    }
  }
  if constexpr (!kSignals) return {};
  const float target_p = static_cast<float>(row.target_exponential / row.sum);
  return {mass.Total() + static_cast<double>(target_p), squares.Total()};
}

// A factor that is not finite (the probe of a loss scaler): what was written at factor 1 is multiplied one by one.
template <class Element>
HWY_NOINLINE void MultiplyRow(std::int64_t columns, float factor, unsigned char* row) {
  for (std::int64_t j = 0; j < columns; ++j) {
    unsigned char* at = row + j * Element::kBytes;
    Element::StoreOne(Element::LoadOne(at) * factor, at);
  }
}

template <class Element>
HWY_NOINLINE bool HasNonfinite(std::int64_t columns, const unsigned char* row) {
  for (std::int64_t j = 0; j < columns; ++j) {
    if ((FloatToBits(Element::LoadOne(row + j * Element::kBytes)) & 0x7f800000u) == 0x7f800000u) return true;
  }
  return false;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_GRADIENT_INL_H_
