// The sweeps that read a row: largest logit and largest magnitude, then the sum
// of the exponentials of all columns but the target.
#ifndef LOSSGAUGE_KERNELS_CPU_REDUCE_INL_H_
#define LOSSGAUGE_KERNELS_CPU_REDUCE_INL_H_

#include "kernels/cpu/reader_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

struct RowExtremes {
  double before;  // largest logit of the columns before the target, -inf if
                  // there is none
  double after;
  double target;
  float max_abs;  // largest finite magnitude
  bool has_minus_infinity;
  bool has_nan;         // or a +inf
  bool nothing_finite;  // nothing but -inf, as far as there are columns
  HWY_INLINE double others() const { return before > after ? before : after; }
  HWY_INLINE double max() const { return target > others() ? target : others(); }
  HWY_INLINE double lead() const { return target - others(); }
  // As fp32: a soft cap lets far logits differ in their last bits of double
  // alone.
  HWY_INLINE bool target_is_first() const {
    const auto z = static_cast<float>(target);
    return z > static_cast<float>(before) && z >= static_cast<float>(after);
  }
};

constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// Rows with a NaN or an infinity, looked at one by one: they are rare.
template <class ValueAt>
HWY_NOINLINE void ClassifyNonfinite(std::int64_t columns, const ValueAt& value_at, RowExtremes* extremes) {
  float max_abs = -1;
  bool nan = false;
  for (std::int64_t j = 0; j < columns; ++j) {
    const float z = value_at(j);
    const std::uint32_t magnitude = FloatToBits(z) & 0x7fffffffu;
    if (magnitude < kInfinityBits) {
      const float abs = BitsToFloat(magnitude);
      if (abs > max_abs) max_abs = abs;
    } else if (magnitude > kInfinityBits || z > 0) {
      nan = true;
      break;
    } else {
      extremes->has_minus_infinity = true;
    }
  }
  extremes->has_nan = nan;
  extremes->nothing_finite = max_abs < 0;
  extremes->max_abs = max_abs < 0 ? 0 : max_abs;
}

template <class Element>
HWY_NOINLINE RowExtremes FindExtremes(const unsigned char* row, const RowShape& shape) {
  const DF df;
  const DU du;
  const VF lowest = hn::Set(df, -kInfinity);
  const auto magnitude_mask = hn::Set(du, 0x7fffffffu);
  VF m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  auto a0 = hn::Zero(du), a1 = a0, a2 = a0, a3 = a0;
  RowExtremes extremes{};
  extremes.target = -HUGE_VAL;
  float before = -kInfinity;
  const auto take = [&]() { return hn::GetLane(hn::MaxOfLanes(df, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)))); };
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    if (HWY_LIKELY(shape.IsWhole(begin))) {
      const unsigned char* from = row + begin * Element::kBytes;
      constexpr std::int64_t kStep = kLanes * Element::kBytes;
      for (int j = 0; j < 8; j += 4) {
        const VF v0 = Element::Load(from + (j + 0) * kStep), v1 = Element::Load(from + (j + 1) * kStep);
        const VF v2 = Element::Load(from + (j + 2) * kStep), v3 = Element::Load(from + (j + 3) * kStep);
        m0 = hn::Max(m0, v0), m1 = hn::Max(m1, v1), m2 = hn::Max(m2, v2), m3 = hn::Max(m3, v3);
        a0 = hn::Max(a0, hn::And(hn::BitCast(du, v0), magnitude_mask));
        a1 = hn::Max(a1, hn::And(hn::BitCast(du, v1), magnitude_mask));
        a2 = hn::Max(a2, hn::And(hn::BitCast(du, v2), magnitude_mask));
        a3 = hn::Max(a3, hn::And(hn::BitCast(du, v3), magnitude_mask));
      }
      continue;
    }
    HWY_ALIGN float z[kBlock];
    CopyBlock<Element>(row, begin, shape.Width(begin), z);
    for (std::int64_t j = 0; j < kBlock; j += kLanes) {
      a0 = hn::Max(a0, hn::And(hn::BitCast(du, hn::Load(df, z + j)), magnitude_mask));
    }
    if (shape.HasTarget(begin)) {
      const std::int64_t at = shape.target - begin;
      extremes.target = z[at];
      before = take();
      for (std::int64_t j = 0; j < at; ++j) before = z[j] > before ? z[j] : before;
      m0 = m1 = m2 = m3 = lowest;
      for (std::int64_t j = 0; j <= at; ++j) z[j] = -kInfinity;
      for (std::int64_t j = shape.Width(begin); j < kBlock; ++j) z[j] = -kInfinity;
    }
    for (std::int64_t j = 0; j < kBlock; j += kLanes) m0 = hn::Max(m0, hn::Load(df, z + j));
  }
  extremes.before = before;
  extremes.after = take();
  const auto largest = hn::GetLane(hn::MaxOfLanes(du, hn::Max(hn::Max(a0, a1), hn::Max(a2, a3))));
  if (HWY_LIKELY(largest < kInfinityBits)) {
    extremes.max_abs = BitsToFloat(largest);
  } else {
    ClassifyNonfinite(
        shape.columns, [row](std::int64_t j) { return Element::LoadOne(row + j * Element::kBytes); }, &extremes);
  }
  return extremes;
}

// z = softcap(scale * logit) and dz/dlogit of one row into scratch. tanh and
// its slope come from one exponential: 1 - tanh^2 formed from tanh would lose
// all its digits where the cap bites.
template <class Element>
HWY_NOINLINE RowExtremes MapRow(const CrossEntropyJob& job, const unsigned char* row, const RowShape& shape,
                                const RowScratch& scratch) {
  const DD dd;
  const DFH half;
  const VD scale = hn::Set(dd, job.logit_scale);
  const VD one = hn::Set(dd, 1.0);
  const VD cap = hn::Set(dd, job.logit_softcap);
  const VD inverse_cap = hn::Set(dd, job.logit_softcap != 0 ? 1.0 / job.logit_softcap : 0.0);
  const VD far = hn::Set(dd, -700.0);
  const bool capped = job.logit_softcap != 0;
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    HWY_ALIGN float x[kBlock];
    CopyBlock<Element>(row, begin, shape.Width(begin), x);
    for (std::int64_t j = 0; j < kBlock; j += static_cast<std::int64_t>(HWY_LANES(double))) {
      const VD scaled = hn::Mul(hn::PromoteTo(dd, hn::Load(half, x + j)), scale);
      if (!capped) {
        hn::StoreU(scaled, dd, scratch.logits + begin + j);
        hn::StoreU(Narrow(scale), half, scratch.slopes + begin + j);
        continue;
      }
      const VD u = hn::Mul(scaled, inverse_cap);
      const VD e = hn::Exp(dd, hn::Max(hn::Mul(hn::Abs(u), hn::Set(dd, -2.0)), far));
      const VD share = hn::Div(one, hn::Add(one, e));
      const VD tanh = hn::CopySign(hn::Mul(hn::Sub(one, e), share), u);
      const VD slope = hn::Mul(hn::Mul(hn::Set(dd, 4.0), e), hn::Mul(hn::Mul(share, share), scale));
      // Max may have dropped a NaN.
      const VD z = hn::IfThenElse(hn::Eq(u, u), hn::Mul(tanh, cap), u);
      hn::StoreU(z, dd, scratch.logits + begin + j);
      hn::StoreU(Narrow(slope), half, scratch.slopes + begin + j);
    }
  }
  RowExtremes extremes{};
  extremes.before = extremes.after = -HUGE_VAL;
  extremes.target = shape.target >= 0 ? scratch.logits[shape.target] : -HUGE_VAL;
  std::uint32_t largest = 0;
  for (std::int64_t j = 0; j < shape.columns; ++j) {
    const double z = scratch.logits[j];
    double& max = j < shape.target ? extremes.before : extremes.after;
    if (j != shape.target && z > max) max = z;
    const std::uint32_t magnitude = FloatToBits(static_cast<float>(z)) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest < kInfinityBits) {
    extremes.max_abs = BitsToFloat(largest);
  } else {
    ClassifyNonfinite(
        shape.columns, [&](std::int64_t j) { return static_cast<float>(scratch.logits[j]); }, &extremes);
  }
  return extremes;
}

struct RowSums {
  double exponentials = 0;  // sum of exp(d) over all columns but the target
  double differences = 0;   // sum of d over all columns but the target; only if asked for
};

// Writes the exponentials (times kExpBias; 0 for the target and for lanes that
// are no column) to `keep` if kKeep.
template <bool kDifferences, bool kKeep, class Reader>
HWY_NOINLINE RowSums SumRow(const Reader& reader, const RowShape& shape, float* keep) {
  const DF df;
  DoubleSum exponentials, differences;
  double staged_differences = 0;
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    BlockSum exponential, difference;
    if (HWY_LIKELY(shape.IsWhole(begin))) {
      for (int j = 0; j < kUnroll; ++j) {
        const VF d = reader.D(begin + j * kLanes);
        const VF value = BiasedExp(d);
        exponential.Put(j, value);
        if constexpr (kKeep) hn::Store(value, df, keep + begin + j * kLanes);
        if constexpr (kDifferences) difference.Put(j, d);
      }
      if constexpr (kDifferences) differences.Add(difference.Total());
    } else {
      HWY_ALIGN float staged[kBlock];
      reader.Stage(shape, begin, staged);
      for (int j = 0; j < kUnroll; ++j) {
        const VF value = BiasedExp(hn::Load(df, staged + j * kLanes));
        exponential.Put(j, value);
        if constexpr (kKeep) hn::Store(value, df, keep + begin + j * kLanes);
      }
      if constexpr (kDifferences) {
        const std::int64_t width = shape.Width(begin);
        for (std::int64_t j = 0; j < width; ++j) {
          if (begin + j != shape.target) staged_differences += static_cast<double>(staged[j]);
        }
      }
    }
    exponentials.Add(exponential.Total());
  }
  return {exponentials.Total() / static_cast<double>(kExpBias), kDifferences ? differences.Total() + staged_differences : 0.0};
}

// The same sum of exponentials with d and exp in double. Where the target leads
// by 16 nats or more, the whole loss is this sum, and the rounding of d to fp32
// alone would cost it 1e-6.
template <class Reader>
HWY_NOINLINE double SumPrecisely(const Reader& reader, const RowShape& shape) {
  const DD dd;
  VD sum = hn::Zero(dd);
  for (std::int64_t begin = 0; begin < shape.columns; begin += kBlock) {
    HWY_ALIGN double d[kBlock];
    reader.StagePrecise(shape, begin, d);
    for (std::int64_t j = 0; j < kBlock; j += static_cast<std::int64_t>(HWY_LANES(double))) {
      const VD value = hn::Max(hn::Load(dd, d + j), hn::Set(dd, -2000.0));
      sum = hn::Add(sum, hn::Exp(dd, value));
    }
  }
  return hn::GetLane(hn::SumOfLanes(dd, sum));
}

// First column whose magnitude is `max_abs`.
template <class ValueAt>
HWY_INLINE std::int64_t FindMagnitudeFrom(std::int64_t begin, std::int64_t columns, float max_abs, const ValueAt& value_at) {
  for (std::int64_t j = begin; j < columns; ++j) {
    if (__builtin_fabsf(value_at(j)) == max_abs) return j;
  }
  return 0;
}

template <class Element>
HWY_NOINLINE std::int64_t FindMagnitude(const unsigned char* row, std::int64_t columns, float max_abs) {
  const DF df;
  const VF wanted = hn::Set(df, max_abs);
  std::int64_t begin = 0;
  for (; begin + kBlock <= columns; begin += kBlock) {
    auto hit = hn::Eq(hn::Abs(Element::Load(row + begin * Element::kBytes)), wanted);
    for (int j = 1; j < kUnroll; ++j) {
      hit = hn::Or(hit, hn::Eq(hn::Abs(Element::Load(row + (begin + j * kLanes) * Element::kBytes)), wanted));
    }
    if (!hn::AllFalse(df, hit)) break;
  }
  return FindMagnitudeFrom(begin, columns, max_abs,
                           [row](std::int64_t j) { return Element::LoadOne(row + j * Element::kBytes); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_REDUCE_INL_H_
