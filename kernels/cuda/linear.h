// Linear cross-entropy on a device: products on the tensor cores, the loss kernels in place on one chunk of logits at a time.
#ifndef LOSSGAUGE_KERNELS_CUDA_LINEAR_H_
#define LOSSGAUGE_KERNELS_CUDA_LINEAR_H_

#include <cuda_runtime.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/workspace.h"
#include "kernels/host/vocab_parallel_linear_arguments.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

class Products;
struct Nccl;

// A call that can be enqueued: what it takes is known, there, and refused nothing. Holds the stream's workspace, unless the caller gave one, until it is gone.
struct LinearCall {
  const ShardedLinear* sharded = nullptr;  // the head is one rank's part, and each chunk has an exchange; null = it is whole
  const Nccl* nccl = nullptr;              // for the exchange over sharded->communicator
  lg_linear_cross_entropy_args args{};
  lg_linear_plan plan{};
  Device* device = nullptr;
  unsigned char* workspace = nullptr;
  cudaStream_t stream = nullptr;
  bool capturing = false;
  const char* function = "";
  Products* products = nullptr;
  HeldWorkspace held;
};

// Of checked arguments, whatever the device. Returns an lg_code.
int PlanLinearOnDevice(const lg_linear_cross_entropy_args& args, const ShardedLinear* sharded, const char* function, lg_linear_plan* plan) noexcept;

// Everything that can fail without a launch: memory, cuBLASLt, an algorithm for every product. `call` has its `sharded` already.
// Returns an lg_code. May throw std::bad_alloc.
int BeginLinear(const lg_linear_cross_entropy_args& args, Device* device, bool capturing, const char* function, LinearCall* call);

// LG_HAS_* that such a call vouches for beyond those of its loss.
unsigned long long LinearPresent(const LinearCall& call);

// Enqueues. `loss`: what MakeLaunch made of args.loss, with scratch and counters. Returns an lg_code.
int EnqueueLinear(const LinearCall& call, const CrossEntropyLaunch& loss) noexcept;

// Chooses the products' algorithms by timing them on the call's stream. Waits, so that a workspace taken on it is there for every stream. Returns an lg_code.
int TuneLinear(const LinearCall& call);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LINEAR_H_
