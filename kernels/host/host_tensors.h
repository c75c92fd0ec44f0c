// Tensors of a call that runs on the host: none may be a device's, whose memory the host can neither read nor write without ending the process; nor is there a stream.
#ifndef LOSSGAUGE_KERNELS_HOST_HOST_TENSORS_H_
#define LOSSGAUGE_KERNELS_HOST_HOST_TENSORS_H_

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// Of checked arguments. Return an lg_code; the message says that the others are in host memory. No more than a look for a backend where there is no device.
int CheckHostTensors(const lg_cross_entropy_args& args, const char* function) noexcept;
int CheckHostTensors(const lg_linear_cross_entropy_args& args, const char* function) noexcept;
int CheckHostTensors(const lg_scale_gradient_args& args, const char* function) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_HOST_TENSORS_H_
