// A thread for each position: it looks up its document, and what it is asked for.
#include "kernels/cuda/pack_labels.h"

#include <algorithm>

#include "kernels/host/label_reason.h"

namespace lossgauge::cuda {
namespace {

constexpr int kThreads = 256;

template <class Token, class Length>
__global__ void __launch_bounds__(kThreads) PackLabels(const __grid_constant__ lg_pack_labels_args a) {
  const PackedDocuments<Token, Length> documents(a);
  unsigned seen[kLabelReasons] = {};
  for (long long t = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x; t < a.count; t += gridDim.x * static_cast<long long>(kThreads)) {
    const LabelReason reason = documents.ReasonOf(t, documents.OwnerOf(t));
    a.labels[t] = documents.LabelOf(t, reason);
#pragma unroll
    for (int i = 0; i < kLabelReasons; ++i) seen[i] += reason == i ? 1 : 0;  // no array in local memory
  }
  if (a.counts == nullptr) return;
#pragma unroll
  for (int i = 0; i < kLabelReasons; ++i) {
    const unsigned sum = __reduce_add_sync(0xffffffffu, seen[i]);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(reinterpret_cast<unsigned long long*>(a.counts) + i, static_cast<unsigned long long>(sum));
  }
}

}  // namespace

cudaError_t LaunchPackLabels(const lg_pack_labels_args& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  if (args.counts != nullptr) {
    if (const cudaError_t error = cudaMemsetAsync(args.counts, 0, kLabelReasons * sizeof *args.counts, stream); error != cudaSuccess) return error;
  }
  if (args.count == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>(std::min<long long>((args.count + kThreads - 1) / kThreads, 2048));
  const bool wide_tokens = args.token_dtype == LG_INT64, wide_lengths = args.length_dtype == LG_INT64;
  if (wide_tokens && wide_lengths) PackLabels<long long, long long><<<ctas, kThreads, 0, stream>>>(args);
  else if (wide_tokens) PackLabels<long long, int><<<ctas, kThreads, 0, stream>>>(args);
  else if (wide_lengths) PackLabels<int, long long><<<ctas, kThreads, 0, stream>>>(args);
  else PackLabels<int, int><<<ctas, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
