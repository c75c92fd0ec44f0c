#include "kernels/cuda/workspace.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace lossgauge::cuda {
namespace {

struct Kept {
  std::mutex mutex;
  unsigned long long stream_id = 0;
  void* memory = nullptr;
  std::size_t bytes = 0;
  bool captured = false;
  void Forget() { stream_id = 0, memory = nullptr, bytes = 0, captured = false; }
};
using Key = std::tuple<int, cudaStream_t, const void*>;

Kept& KeptOf(const Key& key) {
  // Never destroyed: CUDA may be gone before static destructors run.
  static std::mutex mutex;
  static auto& of_streams = *new std::map<Key, Kept>();  // whose elements stay where they are
  std::lock_guard<std::mutex> lock(mutex);
  return of_streams[key];
}

// Of a stream that is gone: its last work may be under way still, and no order of another stream says when it ends.
cudaError_t FreeOrphan(void* memory) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // or a capture on another stream would be lost
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t error = cudaFree(memory);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}

}  // namespace

cudaError_t HoldWorkspace(int ordinal, cudaStream_t stream, std::size_t bytes, bool capturing, HeldWorkspace* held) {
  // One handle stands for a stream of every thread; any other stands for one stream at a time.
  static thread_local char of_this_thread;
  // To ask a stream that is being captured for its id would end the capture.
  unsigned long long id = 0;
  if (!capturing) {
    if (const cudaError_t error = cudaStreamGetId(stream, &id); error != cudaSuccess) return error;
  }
  Kept& kept = KeptOf({ordinal, stream, stream == cudaStreamPerThread ? &of_this_thread : nullptr});
  std::unique_lock<std::mutex> lock(kept.mutex);
  const bool reused = !capturing && kept.memory != nullptr && kept.stream_id != id;
  if (kept.bytes < bytes || reused) {
    if (capturing) return cudaErrorStreamCaptureUnsupported;
    cudaError_t error = cudaSuccess;
    if (kept.memory != nullptr && !kept.captured) error = reused ? FreeOrphan(kept.memory) : cudaFreeAsync(kept.memory, stream);
    kept.Forget();
    if (error == cudaSuccess) error = cudaMallocAsync(&kept.memory, bytes, stream);
    if (error != cudaSuccess) {
      kept.Forget();
      return error;
    }
    kept.stream_id = id;
    kept.bytes = bytes;
  }
  kept.captured |= capturing;
  held->memory = kept.memory;
  held->lock = std::move(lock);
  return cudaSuccess;
}

}  // namespace lossgauge::cuda
