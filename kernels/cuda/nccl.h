// NCCL, loaded when first needed: the library links nothing of it, and its header is not needed. What is declared here of it has been the same in all of NCCL 2.
#ifndef LOSSGAUGE_KERNELS_CUDA_NCCL_H_
#define LOSSGAUGE_KERNELS_CUDA_NCCL_H_

#include <cuda_runtime.h>

#include <cstddef>

namespace lossgauge::cuda {

struct NcclUniqueId {
  char bytes[128];
};

// The functions by their own names. They return 0 or an ncclResult_t.
struct Nccl {
  using Communicator = void*;  // ncclComm_t
  static constexpr int kInProgress = 7;  // ncclInProgress
  static constexpr int kUint64 = 5;      // ncclUint64
  static constexpr int kSum = 0;         // ncclSum
  // ncclDataType_t of LG_FP32, LG_BF16 or LG_FP16.
  static constexpr int FloatType(int dtype) { return dtype == 0 ? 7 : dtype == 1 ? 9 : 6; }

  int (*GetUniqueId)(NcclUniqueId* id);
  int (*CommInitRank)(Communicator* communicator, int ranks, NcclUniqueId id, int rank);
  int (*CommDestroy)(Communicator communicator);
  int (*CommCount)(Communicator communicator, int* count);
  int (*CommUserRank)(Communicator communicator, int* rank);
  int (*CommCuDevice)(Communicator communicator, int* device);
  int (*CommGetAsyncError)(Communicator communicator, int* error);
  int (*AllGather)(const void* from, void* to, std::size_t count, int type, Communicator communicator, cudaStream_t stream);
  int (*AllReduce)(const void* from, void* to, std::size_t count, int type, int operation, Communicator communicator, cudaStream_t stream);
  const char* (*GetErrorString)(int error);

  // The copy that the process has loaded under this name, or else the one that the loader finds. nullptr, and this thread's error set: not to be had.
  static const Nccl* Get(const char* function);
  // Sets this thread's error; returns its lg_code.
  int SetError(int error, const char* function, const char* what) const;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_NCCL_H_
