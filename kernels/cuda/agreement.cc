#include "kernels/cuda/agreement.h"

#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/device.h"
#include "kernels/host/error.h"
#include "kernels/host/vocab_parallel_arguments.h"
#include "kernels/host/vocab_parallel_group.h"

namespace lossgauge::cuda {
namespace {

struct Said {
  lg_shard_header header;
  std::int64_t chunk_rows;
};
static_assert(sizeof(Said) % 8 == 0, "sent as words of 64 bits");

class DeviceMemory {
 public:
  ~DeviceMemory() { (void)cudaFree(memory_); }
  cudaError_t Take(std::size_t bytes) { return cudaMalloc(reinterpret_cast<void**>(&memory_), bytes); }
  unsigned char* get() const { return memory_; }

 private:
  unsigned char* memory_ = nullptr;
};

// Gathers in rank order into `all`. Returns an lg_code.
int Gather(const Nccl& nccl, std::int32_t index, const Said& own, Nccl::Communicator communicator, const char* function, std::vector<Said>* all) {
  SetUpStream stream;
  DeviceMemory memory;
  cudaError_t error = stream.error();
  const std::size_t bytes = all->size() * sizeof(Said);
  if (error == cudaSuccess) error = memory.Take(bytes);
  if (error != cudaSuccess) return SetCudaError(error, function, "what the ranks say of the call");
  unsigned char* const place = memory.get() + static_cast<std::size_t>(index) * sizeof(Said);
  error = cudaMemcpyAsync(place, &own, sizeof own, cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) {
    const int failed = nccl.AllGather(place, memory.get(), sizeof(Said) / 8, Nccl::kUint64, communicator, stream);
    if (failed != 0) return nccl.SetError(failed, function, "ncclAllGather");
    error = cudaMemcpyAsync(all->data(), memory.get(), bytes, cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = stream.Finish();
  return error == cudaSuccess ? static_cast<int>(LG_OK) : SetCudaError(error, function, "what the ranks say of the call");
}

int CheckSame(const char* function, const char* name, std::size_t rank, std::int64_t own, std::int64_t said) {
  if (own == said) return LG_OK;
  return SetError(LG_FAILED_PRECONDITION, "%s: %s: expected the same on all ranks of the group; this rank has %lld, rank %zu of the group %lld", function, name,
                  static_cast<long long>(own), rank, static_cast<long long>(said));
}

}  // namespace

void Agreements::Opened(Nccl::Communicator communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  unasked_.insert(communicator);
}
void Agreements::Closed(Nccl::Communicator communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  unasked_.erase(communicator);
}
bool Agreements::AwaitFirstCall(Nccl::Communicator communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  return unasked_.count(communicator) != 0;
}

int Agreements::Ask(const Nccl& nccl, const lg_vocab_parallel_args& args, std::int64_t chunk_rows, Nccl::Communicator communicator, const char* function) {
  std::vector<Said> all(static_cast<std::size_t>(args.group_size));
  const Said own = {ShardHeaderOf(args), chunk_rows};
  if (const int code = Gather(nccl, args.group_index, own, communicator, function, &all); code != LG_OK) return code;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const lg_shard_header& said = all[rank].header;
    // Those of another call are no contradiction to the judge, who takes them for late or lost.
    if (const int code = CheckSame(function, "step", rank, args.step, said.step); code != LG_OK) return code;
    if (const int code = CheckSame(function, "micro_batch", rank, args.micro_batch, said.micro_batch); code != LG_OK) return code;
  }
  lg_vocab_parallel_args group = args;
  group.gathered_stride = sizeof(Said);
  std::vector<cpu::ShardSender> senders(all.size());
  if (const int code = JudgeGroup(group, reinterpret_cast<const unsigned char*>(all.data()), function, senders.data()); code != LG_OK) return code;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (const int code = CheckSame(function, "chunk_rows", rank, chunk_rows, all[rank].chunk_rows); code != LG_OK) return code;
  }
  Closed(communicator);
  return LG_OK;
}

}  // namespace lossgauge::cuda
