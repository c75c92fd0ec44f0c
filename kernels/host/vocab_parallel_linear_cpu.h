// Vocabulary-parallel linear cross-entropy on tensors in host memory.
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_CPU_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_CPU_H_

#include "kernels/host/vocab_parallel_linear_arguments.h"

namespace lossgauge {

// Of checked arguments whose logits_dtype is resolved. Return an lg_code. The second may throw std::bad_alloc before anything is written, and what the caller's
// exchange throws.
int PlanShardedLinearOnCpu(const ShardedLinear& call, const char* function, lg_linear_plan* plan) noexcept;
int RunShardedLinearOnCpu(const ShardedLinear& call, const char* function);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_CPU_H_
