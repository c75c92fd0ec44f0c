// Arguments of the loss calls: defaults, reading a structure of another size, and every check, with messages that name the
// argument, what was expected and what was got. Nothing here writes to the caller's memory.
#ifndef LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_

#include "kernels/cpu/job.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

lg_cross_entropy_args DefaultArguments() noexcept;
lg_scale_gradient_args DefaultScaleArguments() noexcept;

// Copies what the caller's structure has (convention 3), defaults for the rest; then replaces 0 by what it stands for in
// strides and vocab_size. `function` is for the message. Returns an lg_code.
int ReadArguments(const lg_cross_entropy_args* given, const char* function, lg_cross_entropy_args* args) noexcept;
// Reads and checks.
int ReadScaleArguments(const lg_scale_gradient_args* given, lg_scale_gradient_args* args) noexcept;

// Of what ReadArguments gave.
int CheckArguments(const lg_cross_entropy_args& args, const char* function) noexcept;

// Of checked arguments. Denominator 1, no signals.
cpu::CrossEntropyJob MakeCpuJob(const lg_cross_entropy_args& args) noexcept;
cpu::ScaleJob MakeScaleJob(const lg_scale_gradient_args& args) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_
