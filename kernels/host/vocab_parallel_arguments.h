// Arguments of the vocabulary-parallel calls: defaults, reading a structure of another size, and every check. The part that they share with the other loss
// calls (args.loss) is checked by loss_arguments.h. Nothing here writes to the caller's memory.
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_ARGUMENTS_H_

#include <cstdint>

#include "kernels/cpu/job.h"
#include "kernels/host/vocab_parallel_contribution.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

lg_vocab_parallel_args DefaultVocabParallelArguments() noexcept;

// Copies what the caller's structure has (convention 3), defaults for the rest; then replaces what stands for something else: strides of 0, shard_columns
// of -1; args->loss.vocab_size becomes shard_columns. Returns an lg_code.
int ReadVocabParallelArguments(const lg_vocab_parallel_args* given, const char* function, lg_vocab_parallel_args* args) noexcept;

// Of what ReadVocabParallelArguments gave.
int CheckVocabParallelArguments(const lg_vocab_parallel_args& args, const char* function) noexcept;
// The part of it that is not about logits, but for their columns.
int CheckGroupAndShard(const lg_vocab_parallel_args& args, const char* function) noexcept;
// That a contribution may be written to `contribution`.
int CheckContribution(const lg_vocab_parallel_args& args, const void* contribution, const char* function) noexcept;
// That contributions may be read from `gathered` while outputs are written.
int CheckGathered(const lg_vocab_parallel_args& args, const void* gathered, const char* function) noexcept;

// Bytes of a contribution; 0 = `rows` is out of range.
std::int64_t ContributionBytes(std::int64_t rows) noexcept;

// Of checked arguments: what this rank says of itself, tag included.
lg_shard_header ShardHeaderOf(const lg_vocab_parallel_args& args) noexcept;
// Of checked arguments. Denominator 1, no signals.
cpu::CrossEntropyJob MakeShardRowsJob(const lg_vocab_parallel_args& args) noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_ARGUMENTS_H_
