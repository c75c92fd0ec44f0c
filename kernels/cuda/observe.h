// Statistics that a job computed itself, added to the counters of a step on the device.
#ifndef LOSSGAUGE_KERNELS_CUDA_OBSERVE_H_
#define LOSSGAUGE_KERNELS_CUDA_OBSERVE_H_

#include <cuda_runtime.h>

#include "kernels/cuda/device_counters.h"
#include "kernels/host/observed.h"

namespace lossgauge::cuda {

// The host's values travel as parameters of the kernel, those of a device are read there: nothing is copied, nothing waits.
cudaError_t LaunchObserve(const Observed& observed, DeviceCounters* counters, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_OBSERVE_H_
