// grad *= upstream in place, for gradients whose logits are gone. 1 leaves a
// row untouched, 0 gives exactly 0, and what is 0 stays 0 (masked rows and
// padding must not become NaN under an infinite upstream).
#ifndef LOSSGAUGE_KERNELS_CPU_SCALE_INL_H_
#define LOSSGAUGE_KERNELS_CPU_SCALE_INL_H_

#include "kernels/cpu/vectors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class Element>
HWY_NOINLINE void ScaleOneRow(std::int64_t columns, float upstream, unsigned char* row) {
  const DF df;
  const VF zero = hn::Zero(df);
  // A NaN may carry any payload: one by one, where rounding keeps it a NaN.
  const bool vectors = __builtin_isfinite(upstream);
  std::int64_t j = 0;
  for (; vectors && j + kLanes <= columns; j += kLanes) {
    unsigned char* at = row + j * Element::kBytes;
    const VF value = Element::Load(at);
    if (HWY_UNLIKELY(!hn::AllTrue(df, hn::Eq(value, value)))) break;
    Element::Store(hn::IfThenElse(hn::Eq(value, zero), value, hn::Mul(value, hn::Set(df, upstream))), at);
  }
  for (; j < columns; ++j) {
    unsigned char* at = row + j * Element::kBytes;
    const float value = Element::LoadOne(at);
    if (value != 0) Element::StoreOne(value * upstream, at);
  }
}

void ScaleRows(const ScaleJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float upstream = job.upstream[row * job.upstream_stride];
    unsigned char* at = job.grad + row * job.row_stride_bytes;
    if (upstream == 1.0f) continue;
    if (upstream == 0.0f) {
      __builtin_memset(at, 0, static_cast<std::size_t>(job.columns * (job.dtype == LG_DTYPE_FP32 ? 4 : 2)));
    } else if (job.dtype == LG_DTYPE_FP32) {
      ScaleOneRow<Fp32>(job.columns, upstream, at);
    } else if (job.dtype == LG_DTYPE_BF16) {
      ScaleOneRow<Bf16>(job.columns, upstream, at);
    } else {
      ScaleOneRow<Fp16>(job.columns, upstream, at);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_SCALE_INL_H_
