// Compiled with -march=x86-64-v3 -maes -mpclmul; called only after the machine
// was asked for all of these (variant.cc).
#include "kernels/cpu/row_inl.h"
#include "kernels/cpu/scale_inl.h"
#include "kernels/cpu/shard_inl.h"
#include "kernels/cpu/variant.h"

namespace lossgauge::cpu {

const Variant kAvx2Variant = {"avx2",
                              HWY_NAMESPACE::CrossEntropyRows,
                              HWY_NAMESPACE::ScaleRows,
                              HWY_NAMESPACE::BeginShardRows,
                              HWY_NAMESPACE::FinishShardRows,
                              &kLinearAvx2};

}  // namespace lossgauge::cpu
