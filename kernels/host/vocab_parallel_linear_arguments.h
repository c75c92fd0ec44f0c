// Arguments of the vocabulary-parallel linear calls: defaults, reading, and every check. What they share with the linear and with the vocabulary-parallel calls
// is checked by those. Nothing here writes to the caller's memory.
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_ARGUMENTS_H_

#include <cstdint>

#include "kernels/host/linear_arguments.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// A call as the backends see it. Contributions of its chunks are those of vocabulary-parallel calls (ChunkOf), in which `rows` is that of the whole call.
struct ShardedLinear {
  lg_linear_cross_entropy_args linear;  // loss.vocab_size: real rows of this rank's part of the head, which may be none
  lg_vocab_parallel_args shard;         // the rank's place; `loss` is that of `linear`
  lg_exchange exchange;                 // null: over the communicator, or with nobody
  void* exchange_context;
  void* communicator;
  bool reduces_hidden;
};

lg_vocab_parallel_linear_args DefaultShardedLinearArguments() noexcept;

// Copies what the caller's structures have and replaces what stands for something else, as ReadLinearArguments and ReadVocabParallelArguments. Returns an
// lg_code.
int ReadShardedLinear(const lg_vocab_parallel_linear_args* given, const char* function, ShardedLinear* call) noexcept;
// Of what ReadShardedLinear gave.
int CheckShardedLinear(const ShardedLinear& call, LinearPurpose purpose, const char* function) noexcept;
// logits_dtype as it is meant, in all places.
void ResolveLogitsType(ShardedLinear* call, std::int32_t otherwise) noexcept;

// Rows of a rank's head if all had as many: for what all ranks must choose alike.
inline std::int64_t EvenShard(const ShardedLinear& call) noexcept { return (call.shard.vocab_size - 1) / call.shard.group_size + 1; }

// The vocabulary-parallel call that a chunk's exchange is: its place in the tags is of no other chunk and of no other kind of call. `gathered_stride` becomes
// `contribution_bytes`.
lg_vocab_parallel_args ChunkOf(const ShardedLinear& call, std::int64_t chunk, std::int64_t contribution_bytes) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_LINEAR_ARGUMENTS_H_
