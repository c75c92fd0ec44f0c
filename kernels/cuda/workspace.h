// Device memory that calls on one stream use one after the other.
#ifndef LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_
#define LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>

namespace lossgauge::cuda {

// A stream's workspace for one call. What several threads enqueue on the stream would mix in it, and a call that needs more would free it between the
// launches of another: until this is gone, others who ask for it wait. That is as long as launches are enqueued, not until they have run.
struct HeldWorkspace {
  void* memory = nullptr;
  std::unique_lock<std::mutex> lock;
};

// The current device's workspace for `stream`, of at least `bytes`; allocated when first asked for and when it must grow, in the stream's order, so that
// nothing waits for the device. cudaErrorStreamCaptureUnsupported if it had to be allocated while the stream is being captured. On an error `held` is as it
// was. A workspace that a captured call has used is never freed; such a call takes what the last other call with the stream's handle left. What a destroyed
// stream left is freed when a new one gets the same handle, which waits for its work. May throw std::bad_alloc.
cudaError_t HoldWorkspace(int ordinal, cudaStream_t stream, std::size_t bytes, bool capturing, HeldWorkspace* held);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_
