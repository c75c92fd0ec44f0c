// Compiled with -march=x86-64-v4 -maes -mpclmul; called only after the machine
// was asked for all of these (variant.cc).
#include "kernels/cpu/row_inl.h"
#include "kernels/cpu/scale_inl.h"
#include "kernels/cpu/shard_inl.h"
#include "kernels/cpu/variant.h"

namespace lossgauge::cpu {

const Variant kAvx512Variant = {"avx512",
                              HWY_NAMESPACE::CrossEntropyRows,
                              HWY_NAMESPACE::ScaleRows,
                              HWY_NAMESPACE::BeginShardRows,
                              HWY_NAMESPACE::FinishShardRows,
                              &kLinearAvx512};

}  // namespace lossgauge::cpu
