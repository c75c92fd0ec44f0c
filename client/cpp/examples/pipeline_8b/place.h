// Where a rank's tensors are and how its ranks exchange: the CPU (host_place.cc), or a GPU, over NCCL or, where ranks share GPUs, host memory (cuda_place.cu).
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_PLACE_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/examples/pipeline_8b/options.h"
#include "client/cpp/examples/pipeline_8b/shared_exchange.h"

namespace lossgauge::pipeline_8b {

// Called with what was gathered, in host memory, before the receiver reads it.
using SpoilGathered = std::function<void(unsigned char* gathered, std::int64_t bytes)>;

// Failures end the process with a sentence.
class Place {
 public:
  virtual ~Place() = default;
  virtual void* stream() const = 0;  // of loss calls and publish
  virtual void* Allocate(std::int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  virtual void Clear(void* memory, std::int64_t bytes) = 0;
  virtual void Write(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void Read(void* to, const void* from, std::int64_t bytes) = 0;
  // Head rows [first, first + rows) of `width` bf16 elements.
  virtual void FillHead(void* head, std::int64_t first, std::int64_t rows, std::int64_t width, std::uint64_t seed) = 0;
  // Hidden states of a model that has learnt something: each row's logit at its target is about `lead`, the others about normal. targets in this memory.
  virtual void FillHidden(void* hidden, const std::int64_t* targets, std::int64_t rows, std::int64_t width, double lead, std::uint64_t seed,
                          std::uint64_t head_seed) = 0;
  // All that was enqueued has run.
  virtual void Finish() = 0;
  // bf16 [count], over all ranks. "" or what went wrong.
  virtual std::string SumHidden(void* grad, std::int64_t count) = 0;
  // The exchange of a call: "" or what went wrong. `spoil` may be empty.
  virtual std::string Gather(const void* contribution, void* gathered, std::int64_t bytes, const SpoilGathered& spoil) = 0;
  // An ncclComm_t, by which calls exchange without Gather; null = they do not.
  virtual void* communicator() const = 0;
  // ms that `chunks` bare exchanges of `bytes` take.
  virtual double TimeExchange(std::int64_t chunks, std::int64_t bytes) = 0;
  // The rank ends in a failure, and others may never come to what it would wait for.
  virtual void Abandon() {}
  // Bytes in use at the most, of this process or its device, and a word for what that is.
  virtual std::int64_t PeakBytes() = 0;
  virtual const char* PeakName() const = 0;
};

std::unique_ptr<Place> MakeHostPlace(int rank, SharedExchange* exchange);
// Null, with `error`, in a build without CUDA or where there is no GPU or no NCCL for the rank.
std::unique_ptr<Place> MakeCudaPlace(const Options& options, int rank, SharedExchange* exchange, std::string* error);

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_PLACE_H_
