// The sweep that writes a row's gradient, with the two signals that exist only
// there: the mass of the fp32 probabilities, and the squares of the gradient as
// emitted (after rounding to the logits' dtype).
//
// g = (p * (1 + 2 lambda log Z) - e/V) * slope * factor in one fused operation
// for every column but the target, p = exp(d) / sum. The target's own p - 1 +
// ... is formed in double from the sum of the others, so that it keeps its
// digits when p -> 1.
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
  double uniform;  // smoothing / V
  double target_slope;
  double factor;     // upstream * grad_scale / denominator; finite, not 0
  double restore;    // what undoes it: denominator / (upstream * grad_scale)
  bool is_unbiased;  // the kept exponentials are without kExpBias
};

// With a factor this small, taking the bias back in the same product would
// underflow: it is taken from the exponentials first.
HWY_INLINE bool NeedsUnbiasing(const GradientRow& row) {
  const double factor = row.weight * row.factor / row.sum;
  return factor < 0x1p-60 && factor > -0x1p-60;
}
HWY_NOINLINE void Unbias(std::int64_t columns, float* exponentials) {
  const VF unbias = hn::Set(DF(), 1.0f / kExpBias);
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    hn::Store(hn::Mul(hn::Load(DF(), exponentials + j), unbias), DF(), exponentials + j);
  }
}

struct GradientSignals {
  double mass = 0;
  double squares = 0;  // of the emitted gradient * restore
};

// `slopes` is null unless kMapped. kStream: `to` is aligned to a vector.
template <class Element, bool kSignals, bool kMapped, bool kStream>
HWY_NOINLINE GradientSignals WriteGradient(const GradientRow& row, const RowShape& shape, const float* exponentials,
                                           const float* slopes, unsigned char* to) {
  const DF df;
  const double unbias = row.is_unbiased ? 1.0 : 1.0 / static_cast<double>(kExpBias);
  const double factor = row.weight * row.factor;
  const VF scale = hn::Set(df, static_cast<float>(factor / row.sum * unbias));
  const VF p_scale = hn::Set(df, static_cast<float>(unbias / row.sum));
  const VF offset = hn::Set(df, static_cast<float>(-row.uniform * row.factor));
  constexpr double kLargestFloat = 3.4028234663852886e38;
  const double magnitude = row.restore < 0 ? -row.restore : row.restore;
  const VF restore = hn::Set(df, static_cast<float>(magnitude < kLargestFloat ? magnitude : kLargestFloat));
  DoubleSum mass, squares;
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    BlockSum block_mass, block_squares;
    const float* kept = exponentials + begin;
    if (HWY_LIKELY(shape.IsWhole(begin))) {
      unsigned char* block = to + begin * Element::kBytes;
      for (int j = 0; j < kUnroll; ++j) {
        const VF exponential = hn::Load(df, kept + j * kLanes);
        VF gradient = hn::MulAdd(exponential, scale, offset);
        if constexpr (kMapped) gradient = hn::Mul(gradient, hn::Load(df, slopes + begin + j * kLanes));
        unsigned char* at = block + j * kLanes * Element::kBytes;
        VF emitted;
        if constexpr (kStream) {
          emitted = Element::Stream(gradient, at);
        } else {
          emitted = Element::Store(gradient, at);
        }
        if constexpr (kSignals) {
          block_mass.Put(j, hn::Mul(exponential, p_scale));
          const VF restored = hn::Mul(emitted, restore);
          block_squares.Put(j, hn::Mul(restored, restored));
        }
      }
    } else {
      HWY_ALIGN float restored[kBlock];
      HWY_ALIGN unsigned char out[kBlock * Element::kBytes];
      for (int j = 0; j < kUnroll; ++j) {
        const VF exponential = hn::Load(df, kept + j * kLanes);
        VF gradient = hn::MulAdd(exponential, scale, offset);
        if constexpr (kMapped) gradient = hn::Mul(gradient, hn::Load(df, slopes + begin + j * kLanes));
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
        const double core = (0.0 - row.others / row.sum) + (row.weight - 1.0) * p + (row.smoothing - row.uniform);
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
  const float target_p = shape.target >= 0 ? static_cast<float>(row.target_exponential / row.sum) : 0.0f;
  return {mass.Total() + static_cast<double>(target_p), squares.Total()};
}

// A factor that is not finite (the probe of a loss scaler): what was written at
// factor 1 is multiplied one by one.
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
