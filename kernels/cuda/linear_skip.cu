#include "kernels/cuda/linear_skip.h"

#include <new>

namespace lossgauge::cuda {

#if CUDART_VERSION >= 13000  // 12.4 has conditional nodes behind other signatures: there, every part runs
namespace {

static_assert(sizeof(cudaGraphConditionalHandle) == sizeof(unsigned long long), "kept as a word");

__global__ void Decide(cudaGraphConditionalHandle part, const int* count, int begin) { cudaGraphSetConditional(part, *count > begin ? 1u : 0u); }

struct Captured {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* after = nullptr;  // valid until the stream's next node
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
};
cudaError_t Ask(cudaStream_t stream, Captured* c) {
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &c->status, nullptr, &c->graph, &c->after, &c->edges, &c->count);
  return error == cudaSuccess && c->status != cudaStreamCaptureStatusActive ? cudaErrorStreamCaptureInvalidated : error;
}

}  // namespace

SkippableParts::SkippableParts(cudaStream_t captured, int parts) noexcept : captured_(captured) {
  Captured c;
  if (body_.error() != cudaSuccess || Ask(captured, &c) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  try {
    handles_.reserve(static_cast<std::size_t>(parts));  // before the graph has any of them
  } catch (const std::bad_alloc&) {
    return;
  }
  for (int i = 0; i < parts; ++i) {
    cudaGraphConditionalHandle handle = 0;
    if (cudaGraphConditionalHandleCreate(&handle, c.graph, 0, 0) != cudaSuccess) {
      (void)cudaGetLastError();
      return;  // a driver without them refuses the first one: no handle stays behind without its node
    }
    handles_.push_back(handle);
  }
  possible_ = true;
}

cudaError_t SkippableParts::Begin(const int* count, int begin) {
  const cudaGraphConditionalHandle handle = handles_.back();
  handles_.pop_back();
  Decide<<<1, 1, 0, captured_>>>(handle, count, begin);
  cudaError_t error = cudaGetLastError();
  Captured c;
  if (error == cudaSuccess) error = Ask(captured_, &c);
  if (error != cudaSuccess) return error;
  cudaGraphNodeParams part = {};
  part.type = cudaGraphNodeTypeConditional;
  part.conditional.handle = handle;
  part.conditional.type = cudaGraphCondTypeIf;
  part.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  error = cudaGraphAddNode(&node, c.graph, c.after, c.edges, c.count, &part);
  if (error == cudaSuccess) error = cudaStreamUpdateCaptureDependencies(captured_, &node, nullptr, 1, cudaStreamSetCaptureDependencies);
  if (error == cudaSuccess) error = cudaStreamBeginCaptureToGraph(body_, part.conditional.phGraph_out[0], nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed);
  open_ = error == cudaSuccess;
  return error;
}

cudaError_t SkippableParts::End() {
  if (!open_) return cudaSuccess;
  open_ = false;
  cudaGraph_t body = nullptr;  // the node's own
  return cudaStreamEndCapture(body_, &body);
}
#else
SkippableParts::SkippableParts(cudaStream_t captured, int) noexcept : captured_(captured) {}
cudaError_t SkippableParts::Begin(const int*, int) { return cudaErrorNotSupported; }
cudaError_t SkippableParts::End() { return cudaSuccess; }
#endif

}  // namespace lossgauge::cuda
