// Sizes that ranks must agree on before they exchange on a device: NCCL does not check that all give as many bytes, and waits, or mixes them up, where they do not.
// No size can be checked by a collective of that very size, so the first call over a communicator is preceded by one of a fixed size, for which the host waits.
#ifndef LOSSGAUGE_KERNELS_CUDA_AGREEMENT_H_
#define LOSSGAUGE_KERNELS_CUDA_AGREEMENT_H_

#include <cstdint>
#include <mutex>
#include <set>

#include "kernels/cuda/nccl.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

// Thread-safe. Only communicators that this library has opened are asked: of another's, whose address may have been that of one before it, the ranks might not
// know alike whether it is new.
class Agreements {
 public:
  void Opened(Nccl::Communicator communicator);
  void Closed(Nccl::Communicator communicator);
  // Whether the next call over it is the first, of those that are not captured. The same on all of its ranks, which make the same calls.
  bool AwaitFirstCall(Nccl::Communicator communicator);

  // What the ranks say of the call: rows, dtype, options, columns that cover the vocabulary once, chunk_rows (0: logits in one piece). LG_FAILED_PRECONDITION on
  // all of them names argument, rank and values where they contradict each other; the next call asks again. Waits for the group. Of checked arguments.
  int Ask(const Nccl& nccl, const lg_vocab_parallel_args& args, std::int64_t chunk_rows, Nccl::Communicator communicator, const char* function);

 private:
  std::mutex mutex_;
  std::set<Nccl::Communicator> unasked_;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_AGREEMENT_H_
