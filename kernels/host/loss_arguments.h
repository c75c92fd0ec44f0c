// Arguments of the loss calls: defaults, reading a structure of another size, and every check, with messages that name the
// argument, what was expected and what was got. Nothing here writes to the caller's memory.
#ifndef LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_

#include <cstddef>
#include <cstring>

#include "kernels/cpu/job.h"
#include "kernels/host/read_structure.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

lg_cross_entropy_args DefaultArguments() noexcept;
lg_scale_gradient_args DefaultScaleArguments() noexcept;

// Copies what the caller's structure has (convention 3), defaults for the rest; then replaces 0 by what it stands for in
// strides and vocab_size. `function` is for the message. Returns an lg_code.
int ReadArguments(const lg_cross_entropy_args* given, const char* function, lg_cross_entropy_args* args) noexcept;
// For structures of arguments that end in `loss`, an lg_cross_entropy_args with a size of its own, since it may be of another age than the space it has
// there: copies both over the defaults in `args`.
template <class Args>
int ReadStructureWithLoss(const Args* given, const char* function, const char* type, Args* args) noexcept {
  constexpr std::size_t kLoss = offsetof(Args, loss), kLeastLoss = offsetof(lg_cross_entropy_args, label_smoothing);
  const lg_cross_entropy_args defaults = args->loss;
  if (const int code = ReadStructure(given, function, type, kLoss + kLeastLoss, args); code != LG_OK) return code;
  std::size_t whole, part;
  std::memcpy(&whole, given, sizeof whole);
  std::memcpy(&part, &args->loss, sizeof part);
  if (part < kLeastLoss || part > whole - kLoss || part % alignof(lg_cross_entropy_args) != 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: args.loss.struct_size: expected %zu to %zu, a multiple of %zu, got %zu; fill args with %s_init first", function,
                    kLeastLoss, whole - kLoss, alignof(lg_cross_entropy_args), part, type);
  }
  if (part < sizeof args->loss) {
    const auto* from = reinterpret_cast<const unsigned char*>(&defaults);
    std::memcpy(reinterpret_cast<unsigned char*>(&args->loss) + part, from + part, sizeof args->loss - part);
  }
  args->loss.struct_size = sizeof args->loss;
  return LG_OK;
}
// Reads and checks.
int ReadScaleArguments(const lg_scale_gradient_args* given, lg_scale_gradient_args* args) noexcept;

// Of what ReadArguments gave.
int CheckArguments(const lg_cross_entropy_args& args, const char* function) noexcept;

// Of checked arguments: outputs lie apart from each other and from what is read, but for a gradient in place of the logits.
int CheckOverlaps(const lg_cross_entropy_args& args, const char* function) noexcept;

// Of checked arguments. Denominator 1, no signals.
cpu::CrossEntropyJob MakeCpuJob(const lg_cross_entropy_args& args) noexcept;
cpu::ScaleJob MakeScaleJob(const lg_scale_gradient_args& args) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LOSS_ARGUMENTS_H_
