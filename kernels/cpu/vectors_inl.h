// Vector types, loads and stores of the three element types, sums in double,
// and the exponential. Compiled once for each instruction set.
//
// Memory of the caller is read and written in whole vectors that lie inside a
// row, or through memcpy of exactly the elements there are.
#ifndef LOSSGAUGE_KERNELS_CPU_VECTORS_INL_H_
#define LOSSGAUGE_KERNELS_CPU_VECTORS_INL_H_

#include <hwy/cache_control.h>
#include <hwy/highway.h>
// highway.h first
#include <hwy/contrib/math/math-inl.h>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/job.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::Rebind<std::int32_t, DF>;
using DU = hn::Rebind<std::uint32_t, DF>;
using DD = hn::ScalableTag<double>;
using DFH = hn::Rebind<float, DD>;  // as many floats as a vector of doubles
using VF = hn::Vec<DF>;
using VD = hn::Vec<DD>;

constexpr std::int64_t kLanes = HWY_LANES(float);
constexpr std::int64_t kUnroll = 8;
constexpr std::int64_t kBlock = kLanes * kUnroll;  // columns of one round of a row loop
static_assert(256 % kBlock == 0, "ScratchColumns covers whole blocks");

constexpr float kInfinity = HUGE_VALF;

struct Fp32 {
  static constexpr std::int64_t kBytes = 4;
  static constexpr bool kStreams = true;
  static HWY_INLINE VF Load(const unsigned char* from) {
    const DF df;
#if HWY_TARGET == HWY_SCALAR
    float value;
    __builtin_memcpy(&value, from, sizeof value);
    return hn::Set(df, value);
#else
    return hn::LoadU(df, reinterpret_cast<const float*>(from));
#endif
  }
  // Returns what was stored, as fp32.
  static HWY_INLINE VF Store(VF value, unsigned char* to) {
#if HWY_TARGET == HWY_SCALAR
    const float lane = hn::GetLane(value);
    __builtin_memcpy(to, &lane, sizeof lane);
#else
    hn::StoreU(value, DF(), reinterpret_cast<float*>(to));
#endif
    return value;
  }
  // Past the caches; `to` is aligned to a vector.
  static HWY_INLINE VF Stream(VF value, unsigned char* to) {
    hn::Stream(value, DF(), reinterpret_cast<float*>(to));
    return value;
  }
  static HWY_INLINE float LoadOne(const unsigned char* from) {
    float value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  static HWY_INLINE float StoreOne(float value, unsigned char* to) {
    __builtin_memcpy(to, &value, sizeof value);
    return value;
  }
};

struct Bf16 {
  static constexpr std::int64_t kBytes = 2;
  static constexpr bool kStreams = false;
  static HWY_INLINE VF Load(const unsigned char* from) {
    const DF df;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(df, LoadOne(from));
#else
    const hn::Rebind<std::uint16_t, DF> d16;
    return hn::BitCast(df,
                       hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)))));
#endif
  }
  // A NaN must come with a high mantissa bit set, as arithmetic makes it: the
  // rounding would carry a full mantissa into the sign.
  static HWY_INLINE VF Store(VF value, unsigned char* to) {
    const DF df;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(df, StoreOne(hn::GetLane(value), to));
#else
    const DU du;
    const hn::Rebind<std::uint16_t, DF> d16;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(DI(), hn::ShiftRight<16>(rounded))), d16, reinterpret_cast<std::uint16_t*>(to));
    return hn::BitCast(df, hn::And(rounded, hn::Set(du, 0xffff0000u)));
#endif
  }
  static HWY_INLINE float LoadOne(const unsigned char* from) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return Bf16ToFloat(bits);
  }
  static HWY_INLINE float StoreOne(float value, unsigned char* to) {
    const std::uint16_t bits = FloatToBf16(value);
    __builtin_memcpy(to, &bits, sizeof bits);
    return Bf16ToFloat(bits);
  }
};

struct Fp16 {
  static constexpr std::int64_t kBytes = 2;
  static constexpr bool kStreams = false;
  static HWY_INLINE VF Load(const unsigned char* from) {
    const DF df;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(df, LoadOne(from));
#else
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(df, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#endif
  }
  static HWY_INLINE VF Store(VF value, unsigned char* to) {
    const DF df;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(df, StoreOne(hn::GetLane(value), to));
#else
    const hn::Rebind<hwy::float16_t, DF> d16;
    const auto half = hn::DemoteTo(d16, value);
    hn::StoreU(half, d16, reinterpret_cast<hwy::float16_t*>(to));
    return hn::PromoteTo(df, half);
#endif
  }
  static HWY_INLINE float LoadOne(const unsigned char* from) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return Fp16ToFloat(bits);
  }
  static HWY_INLINE float StoreOne(float value, unsigned char* to) {
    const std::uint16_t bits = FloatToFp16(value);
    __builtin_memcpy(to, &bits, sizeof bits);
    return Fp16ToFloat(bits);
  }
};

// Rounds doubles to floats; what is out of range becomes infinite (Highway's
// scalar target would turn infinities into finite numbers).
HWY_INLINE hn::Vec<DFH> Narrow(VD value) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DFH(), static_cast<float>(hn::GetLane(value)));
#else
  return hn::DemoteTo(DFH(), value);
#endif
}

// Sum of floats kept in double. Long sums in fp32 drift by more than 1e-6, most
// of all when all terms are equal.
class DoubleSum {
 public:
  HWY_INLINE DoubleSum() : low_(hn::Zero(DD())), high_(hn::Zero(DD())) {}
  HWY_INLINE void Add(VF value) {
    const DD dd;
#if HWY_TARGET == HWY_SCALAR
    low_ = hn::Add(low_, hn::PromoteTo(dd, value));
#else
    low_ = hn::Add(low_, hn::PromoteTo(dd, hn::LowerHalf(DFH(), value)));
    high_ = hn::Add(high_, hn::PromoteTo(dd, hn::UpperHalf(DFH(), value)));
#endif
  }
  HWY_INLINE double Total() const { return hn::GetLane(hn::SumOfLanes(DD(), hn::Add(low_, high_))); }

 private:
  VD low_, high_;
};

// Sum of a block's kUnroll vectors as a tree: at most three roundings on the
// way of any term.
struct BlockSum {
  VF four[4];
  HWY_INLINE void Put(int j, VF value) { four[j & 3] = j < 4 ? value : hn::Add(four[j & 3], value); }
  HWY_INLINE VF Total() const { return hn::Add(hn::Add(four[0], four[1]), hn::Add(four[2], four[3])); }
};

// exp(d) * 2^64 for d <= 0, exactly 0 below e^-131 (and for -inf). The factor
// keeps full relative accuracy that far down instead of to e^-87, at no cost:
// it rides in the constant that rounds the exponent. exp(0) is exact.
constexpr float kExpBias = 0x1p64f;

HWY_INLINE VF BiasedExp(VF d) {
  const DF df;
  const DI di;
  const VF magic = hn::Set(df, 12582912.0f + 64.0f);  // 1.5 * 2^23: adding it leaves the rounded
                                                      // exponent in the low mantissa bits
#if HWY_TARGET == HWY_SCALAR
  // Without a fused multiply-add the product d * log2(e) would cost 6e-8 of |d|
  // more than the contract has: there, log2(e) in double.
  const double exponent = static_cast<double>(hn::GetLane(d)) * 1.4426950408889634;
  const VF shifted = hn::Set(df, static_cast<float>(exponent) + hn::GetLane(magic));
  const VF r = hn::Set(df, static_cast<float>(exponent - static_cast<double>(hn::GetLane(shifted) - hn::GetLane(magic))));
#else
  const VF log2e = hn::Set(df, 1.44269504f);
  const VF shifted = hn::MulAdd(d, log2e, magic);
  const VF r = hn::MulSub(d, log2e, hn::Sub(shifted, magic));
#endif
  // 2^r on [-1/2, 1/2] within 2.2e-8.
  VF poly = hn::MulAdd(r, hn::Set(df, 0.00015594719f), hn::Set(df, 0.001340666f));
  poly = hn::MulAdd(r, poly, hn::Set(df, 0.009617693f));
  poly = hn::MulAdd(r, poly, hn::Set(df, 0.055503104f));
  poly = hn::MulAdd(r, poly, hn::Set(df, 0.24022652f));
  poly = hn::MulAdd(r, poly, hn::Set(df, 0.69314724f));
  poly = hn::MulAdd(r, poly, hn::Set(df, 1.0f));
  const auto bits = hn::Add(hn::BitCast(di, poly), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenElseZero(hn::Gt(d, hn::Set(df, -131.0f)), hn::BitCast(df, bits));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_VECTORS_INL_H_
