// Device memory that calls of one stream use one after the other.
#ifndef LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_
#define LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_

#include <cuda_runtime.h>

#include <cstddef>

namespace lossgauge::cuda {

// The current device's workspace for `stream`, of at least `bytes`; allocated when first asked for and when it must grow, in the stream's order, so that
// nothing waits. nullptr, and *error says why: cudaErrorStreamCaptureUnsupported if it had to be allocated while the stream is being captured. A workspace
// that a captured call has used is never freed; such a call takes what the last other call with the stream's handle left. What a destroyed stream left is
// freed when a new one gets the same handle, which waits for its work.
void* WorkspaceOf(int ordinal, cudaStream_t stream, std::size_t bytes, bool capturing, cudaError_t* error);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_WORKSPACE_H_
