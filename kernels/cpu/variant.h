// Which instruction set the CPU backend runs with.
#ifndef LOSSGAUGE_KERNELS_CPU_VARIANT_H_
#define LOSSGAUGE_KERNELS_CPU_VARIANT_H_

#include <string_view>

#include "kernels/cpu/job.h"

namespace lossgauge::cpu {

extern const LinearKernels kLinearBaseline;  // linear_*.cc
extern const Variant kBaselineVariant;
#if defined(LOSSGAUGE_CPU_X86)
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const Variant kAvx2Variant;
extern const Variant kAvx512Variant;
#endif

// The best variant that this machine and operating system support, lowered by
// the environment variable LOSSGAUGE_CPU_ISA
// ("avx512", "avx2", "baseline"; never raised, anything else is ignored).
// Decided once.
const Variant& ChosenVariant() noexcept;

// The variant of that name, or null if this build or this machine does not have
// it. For tests, and for ChosenVariant.
const Variant* FindVariant(std::string_view name) noexcept;

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_VARIANT_H_
