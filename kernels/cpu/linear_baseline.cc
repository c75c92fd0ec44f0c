// Like variant_baseline.cc: Highway's scalar target on x86-64, where Eigen has SSE2.
#if defined(__x86_64__)
#define HWY_COMPILE_ONLY_SCALAR
#endif
#define Eigen lossgauge_eigen_baseline
#include "kernels/cpu/linear_inl.h"
#include "kernels/cpu/variant.h"

namespace lossgauge::cpu {

const LinearKernels kLinearBaseline = {HWY_NAMESPACE::GatherRows, HWY_NAMESPACE::LogitsTile, HWY_NAMESPACE::GradientTile, HWY_NAMESPACE::EmitRows};

}  // namespace lossgauge::cpu
