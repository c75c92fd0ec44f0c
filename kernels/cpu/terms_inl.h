// Terms of rows on their way into the sums of a launch: clamped, so that no number of rows can overflow 128 bits.
#ifndef LOSSGAUGE_KERNELS_CPU_TERMS_INL_H_
#define LOSSGAUGE_KERNELS_CPU_TERMS_INL_H_

#include "kernels/cpu/vectors_inl.h"
#include "proto/lossgauge/ring/fixed128.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr double kLargestTerm = 0x1p31;  // abs NLL and abs log Z of a row in the sums
constexpr double kLargestSquare = 0x1p46;  // of squares and objectives: 2^17 clamped ones fit the 64 bits before the point
constexpr double kLargestMass = 0x1p16;

static HWY_INLINE void AddTerm(double value, double limit, bool* clamped, lg_fixed128* sum) {
  if (value > limit) value = limit, *clamped = true;
  if (value < -limit) value = -limit, *clamped = true;
  *sum = lg_fixed128_add(*sum, lg_fixed128_from_double(value));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_TERMS_INL_H_
