// The variant that every machine of this architecture can run. On x86-64
// without further flags Highway has only its scalar target, and its 16-bit
// conversions for SSSE3 and SSE4 truncate: scalar it is, whatever flags the
// build adds. Elsewhere (NEON,
// ...) it is the compiler's own baseline.
#if defined(__x86_64__)
#define HWY_COMPILE_ONLY_SCALAR
#endif
#include "kernels/cpu/row_inl.h"
#include "kernels/cpu/scale_inl.h"
#include "kernels/cpu/shard_inl.h"
#include "kernels/cpu/variant.h"

namespace lossgauge::cpu {

const Variant kBaselineVariant = {"baseline",
                              HWY_NAMESPACE::CrossEntropyRows,
                              HWY_NAMESPACE::ScaleRows,
                              HWY_NAMESPACE::BeginShardRows,
                              HWY_NAMESPACE::FinishShardRows,
                              &kLinearBaseline};

}  // namespace lossgauge::cpu
