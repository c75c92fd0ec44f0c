// Arguments of the linear cross-entropy calls: defaults, reading a structure of another size, and every check. The part that they share with the other
// loss calls (args.loss) is checked by loss_arguments.h. Nothing here writes to the caller's memory.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_ARGUMENTS_H_

#include <cstdint>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// kPrepare: by a backend that prepares nothing, as a plan. kPrepareOnDevice: multiplies with the tensors as they are, but looks at no target.
enum class LinearPurpose { kForward, kBackward, kPlan, kPrepare, kPrepareOnDevice };

lg_linear_cross_entropy_args DefaultLinearArguments() noexcept;

// Copies what the caller's structure has (convention 3), defaults for the rest; then replaces 0 by what it stands for in strides and vocab_size, and
// overwrites what args.loss says of logits: rows and columns are those of the call, pointers NULL, strides 0. Returns an lg_code.
int ReadLinearArguments(const lg_linear_cross_entropy_args* given, const char* function, lg_linear_cross_entropy_args* args) noexcept;

// Of what ReadLinearArguments gave. A plan is made before tensors are: it may lack those that are read, and no two of its pointers are compared.
int CheckLinearArguments(const lg_linear_cross_entropy_args& args, LinearPurpose purpose, const char* function) noexcept;

// logits_dtype as it is meant: -1 becomes `otherwise`. In args and in args->loss.
void ResolveLogitsType(lg_linear_cross_entropy_args* args, std::int32_t otherwise) noexcept;

inline bool WantsHeadGradient(const lg_linear_cross_entropy_args& args) noexcept { return args.grad_weight != nullptr || args.grad_bias != nullptr; }
inline bool WantsGradient(const lg_linear_cross_entropy_args& args) noexcept { return args.grad_hidden != nullptr || WantsHeadGradient(args); }

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_ARGUMENTS_H_
