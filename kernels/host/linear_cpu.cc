#include "kernels/host/linear_cpu.h"

#include "kernels/host/linear_cpu_launch.h"
#include "kernels/host/linear_cpu_sizes.h"

namespace lossgauge {

using Args = lg_linear_cross_entropy_args;

int PlanLinearOnCpu(const Args& args, const char* function, lg_linear_plan* plan) noexcept {
  const LinearSizes sizes = SizesOf(args);
  return PlanWith(args, sizes, sizes.memory.logits_row, function, plan);
}

int RunLinearOnCpu(const Args& args, LossPurpose purpose, const char* function) {
  const LinearSizes sizes = SizesOf(args);
  lg_linear_plan plan{};
  if (const int code = PlanWith(args, sizes, sizes.memory.logits_row, function, &plan); code != LG_OK) return code;
  const LinearWorkspace workspace(args, plan.workspace_bytes);
  return LinearLaunch(args, sizes, plan, args.loss.vocab_size, workspace.data()).Run(purpose);
}

}  // namespace lossgauge
