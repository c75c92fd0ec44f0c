#include "kernels/cuda/workspace.h"

#include <map>
#include <mutex>
#include <tuple>

namespace lossgauge::cuda {
namespace {

struct Held {
  unsigned long long stream_id = 0;
  void* memory = nullptr;
  std::size_t bytes = 0;
  bool captured = false;
};

// Of a stream that is gone: its last work may be under way still, and no order of another stream says when it ends.
cudaError_t FreeOrphan(void* memory) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // or a capture on another stream would be lost
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t error = cudaFree(memory);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}

}  // namespace

void* WorkspaceOf(int ordinal, cudaStream_t stream, std::size_t bytes, bool capturing, cudaError_t* error) {
  // Never destroyed: CUDA may be gone before static destructors run.
  static std::mutex mutex;
  static auto& of_streams = *new std::map<std::tuple<int, cudaStream_t, const void*>, Held>();
  // One handle stands for a stream of every thread; any other stands for one stream at a time.
  static thread_local char of_this_thread;
  // To ask a stream that is being captured for its id would end the capture.
  unsigned long long id = 0;
  *error = capturing ? cudaSuccess : cudaStreamGetId(stream, &id);
  if (*error != cudaSuccess) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  Held& held = of_streams[{ordinal, stream, stream == cudaStreamPerThread ? &of_this_thread : nullptr}];
  const bool reused = !capturing && held.memory != nullptr && held.stream_id != id;
  if (held.bytes >= bytes && !reused) {
    held.captured |= capturing;
    return held.memory;
  }
  if (capturing) {
    *error = cudaErrorStreamCaptureUnsupported;
    return nullptr;
  }
  if (held.memory != nullptr && !held.captured) *error = reused ? FreeOrphan(held.memory) : cudaFreeAsync(held.memory, stream);
  held = {};
  if (*error == cudaSuccess) *error = cudaMallocAsync(&held.memory, bytes, stream);
  if (*error != cudaSuccess) {
    held = {};
    return nullptr;
  }
  held.stream_id = id;
  held.bytes = bytes;
  return held.memory;
}

}  // namespace lossgauge::cuda
