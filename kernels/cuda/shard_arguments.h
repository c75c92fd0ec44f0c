// Arguments of the vocabulary-parallel calls with tensors on a device.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_ARGUMENTS_H_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_ARGUMENTS_H_

#include "kernels/cuda/shard_launch.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

// Every tensor where `exchanged` (the argument of that name) is, and sizes that kernels take. Return an lg_code.
int CheckShardDevices(const lg_vocab_parallel_args& args, const void* exchanged, const char* name, int ordinal, const char* function);

// What kernels take of groups and vocabularies. Returns an lg_code.
int CheckShardSizes(const lg_vocab_parallel_args& args, const char* function);

// Of checked arguments; without scratch, counters, contribution and gathered.
ShardLaunch MakeShardLaunch(const lg_vocab_parallel_args& args);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_ARGUMENTS_H_
