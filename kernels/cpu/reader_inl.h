// How the row loops see the logits of one row: as `d = z - max`, a block of
// columns at a time, wherever z comes from.
//
//   Direct   z is the caller's logit, read anew in each sweep (a row of 128k
//   fp32 logits stays in the second-level cache) Mapped   z = softcap(scale *
//   logit), computed once in double into scratch: rounded to fp32, a capped
//   logit of 30 would already
//            cost 1e-6 of its probability
//
// The last block of a row and the block that holds the target are staged:
// copied to the stack, lanes that are no column (or are the target, whose
// exponential is kept apart) set to -inf after the mapping, so that no soft cap
// can turn a padding lane into a logit.
#ifndef LOSSGAUGE_KERNELS_CPU_READER_INL_H_
#define LOSSGAUGE_KERNELS_CPU_READER_INL_H_

#include "kernels/cpu/vectors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

// The columns of a row, cut into blocks; `target` splits off its own block. -1 = the target is not among these columns.
struct RowShape {
  std::int64_t columns;
  std::int64_t target;
  HWY_INLINE std::int64_t Width(std::int64_t begin) const { return columns - begin < kBlock ? columns - begin : kBlock; }
  HWY_INLINE bool HasTarget(std::int64_t begin) const { return target >= begin && target < begin + kBlock; }
  HWY_INLINE bool IsWhole(std::int64_t begin) const { return columns - begin >= kBlock && !HasTarget(begin); }
};

// z of up to one block as floats; lanes from `width` on repeat the block's
// first column.
template <class Element>
HWY_INLINE void CopyBlock(const unsigned char* row, std::int64_t begin, std::int64_t width, float* to) {
  HWY_ALIGN unsigned char raw[kBlock * Element::kBytes];
  const unsigned char* from = row + begin * Element::kBytes;
  __builtin_memcpy(raw, from, static_cast<std::size_t>(width * Element::kBytes));
  for (std::int64_t j = width; j < kBlock; ++j) __builtin_memcpy(raw + j * Element::kBytes, from, Element::kBytes);
  for (std::int64_t j = 0; j < kBlock; j += kLanes) hn::Store(Element::Load(raw + j * Element::kBytes), DF(), to + j);
}

template <class Element>
class DirectReader {
 public:
  static constexpr bool kMapped = false;
  DirectReader(const unsigned char* row, float max) : row_(row), max_(max) {}
  HWY_INLINE VF D(std::int64_t column) const {
    return hn::Sub(Element::Load(row_ + column * Element::kBytes), hn::Set(DF(), max_));
  }
  void Stage(const RowShape& shape, std::int64_t begin, float* d) const {
    const std::int64_t width = shape.Width(begin);
    CopyBlock<Element>(row_, begin, width, d);
    const VF max = hn::Set(DF(), max_);
    for (std::int64_t j = 0; j < kBlock; j += kLanes) hn::Store(hn::Sub(hn::Load(DF(), d + j), max), DF(), d + j);
    for (std::int64_t j = width; j < kBlock; ++j) d[j] = -kInfinity;
    if (shape.HasTarget(begin)) d[shape.target - begin] = -kInfinity;
  }
  // d in double, for rows whose loss hangs on far smaller logits.
  void StagePrecise(const RowShape& shape, std::int64_t begin, double* d) const {
    HWY_ALIGN float z[kBlock];
    const std::int64_t width = shape.Width(begin);
    CopyBlock<Element>(row_, begin, width, z);
    for (std::int64_t j = 0; j < width; ++j) d[j] = static_cast<double>(z[j]) - static_cast<double>(max_);
    for (std::int64_t j = width; j < kBlock; ++j) d[j] = -HUGE_VAL;
    if (shape.HasTarget(begin)) d[shape.target - begin] = -HUGE_VAL;
  }

 private:
  const unsigned char* row_;
  float max_;
};

class MappedReader {
 public:
  static constexpr bool kMapped = true;
  MappedReader(const RowScratch& scratch, double max) : scratch_(scratch), max_(max) {}
  HWY_INLINE VF D(std::int64_t column) const {
    const DD dd;
    const VD max = hn::Set(dd, max_);
    const double* z = scratch_.logits + column;
#if HWY_TARGET == HWY_SCALAR
    return Narrow(hn::Sub(hn::LoadU(dd, z), max));
#else
    const auto low = Narrow(hn::Sub(hn::LoadU(dd, z), max));
    const auto high = Narrow(hn::Sub(hn::LoadU(dd, z + HWY_LANES(double)), max));
    return hn::Combine(DF(), high, low);
#endif
  }
  void Stage(const RowShape& shape, std::int64_t begin, float* d) const {
    const std::int64_t width = shape.Width(begin);
    for (std::int64_t j = 0; j < width; ++j) d[j] = static_cast<float>(scratch_.logits[begin + j] - max_);
    for (std::int64_t j = width; j < kBlock; ++j) d[j] = -kInfinity;
    if (shape.HasTarget(begin)) d[shape.target - begin] = -kInfinity;
  }
  void StagePrecise(const RowShape& shape, std::int64_t begin, double* d) const {
    const std::int64_t width = shape.Width(begin);
    for (std::int64_t j = 0; j < width; ++j) d[j] = scratch_.logits[begin + j] - max_;
    for (std::int64_t j = width; j < kBlock; ++j) d[j] = -HUGE_VAL;
    if (shape.HasTarget(begin)) d[shape.target - begin] = -HUGE_VAL;
  }

 private:
  const RowScratch& scratch_;
  double max_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_READER_INL_H_
