// Compiled with -march=x86-64-v3 -maes -mpclmul; called only after the machine
// was asked for all of these (variant.cc).
#define Eigen lossgauge_eigen_avx2
#include "kernels/cpu/linear_inl.h"
#include "kernels/cpu/variant.h"

namespace lossgauge::cpu {

const LinearKernels kLinearAvx2 = {HWY_NAMESPACE::GatherRows, HWY_NAMESPACE::LogitsTile, HWY_NAMESPACE::GradientTile, HWY_NAMESPACE::EmitRows};

}  // namespace lossgauge::cpu
