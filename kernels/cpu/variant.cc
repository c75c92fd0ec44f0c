#include "kernels/cpu/variant.h"

#include <cstdlib>

namespace lossgauge::cpu {
namespace {

#if defined(LOSSGAUGE_CPU_X86)
// __builtin_cpu_supports asks the operating system too (XGETBV): the wide
// registers must be saved on a context switch.
bool HasAvx2() {
  return __builtin_cpu_supports("x86-64-v3") && __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
}
bool HasAvx512() { return HasAvx2() && __builtin_cpu_supports("x86-64-v4"); }
#endif

const Variant* Choose() noexcept {
  const Variant* best = FindVariant("avx512");
  if (best == nullptr) best = FindVariant("avx2");
  if (best == nullptr) best = &kBaselineVariant;
  const char* wish = std::getenv("LOSSGAUGE_CPU_ISA");
  // A wish above what the machine has finds nothing and changes nothing.
  if (wish != nullptr) {
    if (const Variant* wished = FindVariant(wish)) best = wished;
  }
  return best;
}

}  // namespace

const Variant* FindVariant(std::string_view name) noexcept {
  if (name == "baseline") return &kBaselineVariant;
#if defined(LOSSGAUGE_CPU_X86)
  if (name == "avx2" && HasAvx2()) return &kAvx2Variant;
  if (name == "avx512" && HasAvx512()) return &kAvx512Variant;
#endif
  return nullptr;
}

const Variant& ChosenVariant() noexcept {
  static const Variant* const chosen = Choose();
  return *chosen;
}

}  // namespace lossgauge::cpu
