// Arguments of loss calls with tensors on a device: where they must be, and what a kernel is told.
#ifndef LOSSGAUGE_KERNELS_CUDA_DEVICE_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_CUDA_DEVICE_ARGUMENTS_H_

#include "kernels/cuda/device_counters.h"
#include "kernels/host/device_backend.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

// Ordinal of the device that holds `pointer`; -1 for host memory, managed memory and pointers that no driver knows.
int DeviceOf(const void* pointer) noexcept;

// An argument's memory, for a kernel to read or write in elements of `alignment` bytes.
struct DeviceTensor {
  const char* name;
  const void* pointer;  // NULL = not given
  unsigned alignment;
};
// What a kernel cannot read ends the job's CUDA context. `where` is the argument that the call's device was read from. Return an lg_code.
int CheckTensor(const DeviceTensor& tensor, int ordinal, const char* where, const char* function);

// Every tensor where the logits are, and aligned to its elements (64-bit targets are read in halves).
int CheckDevices(const lg_cross_entropy_args& args, int ordinal, const char* function);
// Likewise, where hidden is.
int CheckLinearDevices(const lg_linear_cross_entropy_args& args, int ordinal, const char* function);

// Of checked arguments; without scratch and counters.
CrossEntropyLaunch MakeLaunch(const lg_cross_entropy_args& args, LossPurpose purpose);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_DEVICE_ARGUMENTS_H_
