// Linear cross-entropy on tensors in host memory.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_H_

#include "kernels/host/device_backend.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// Of checked arguments whose logits_dtype is resolved. Return an lg_code; on failure nothing is written. May throw std::bad_alloc before anything is.
int PlanLinearOnCpu(const lg_linear_cross_entropy_args& args, const char* function, lg_linear_plan* plan) noexcept;
// purpose: kForward or kBackward. For kBackward args.loss has no gauge and no outputs.
int RunLinearOnCpu(const lg_linear_cross_entropy_args& args, LossPurpose purpose, const char* function);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_H_
