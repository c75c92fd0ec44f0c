#include "kernels/host/linear_cpu.h"

#include "kernels/host/error.h"

namespace lossgauge {

int PlanLinearOnCpu(const lg_linear_cross_entropy_args&, const char* function, lg_linear_plan*) noexcept {
  return SetError(LG_UNIMPLEMENTED, "%s: not on the CPU yet", function);
}

int RunLinearOnCpu(const lg_linear_cross_entropy_args&, LossPurpose, const char* function) {
  return SetError(LG_UNIMPLEMENTED, "%s: not on the CPU yet", function);
}

}  // namespace lossgauge
