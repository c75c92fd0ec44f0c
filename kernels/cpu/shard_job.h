// What a vocabulary-parallel loss call hands to one instruction set: the rows of this rank's columns, and who else takes part. Plain data only: this header
// is compiled for several instruction sets.
#ifndef LOSSGAUGE_KERNELS_CPU_SHARD_JOB_H_
#define LOSSGAUGE_KERNELS_CPU_SHARD_JOB_H_

#include <cstdint>

#include "kernels/host/vocab_parallel_contribution.h"

namespace lossgauge::cpu {

// A rank of the group, as its header says.
struct ShardSender {
  std::int64_t first_column;
  std::int64_t columns;  // real ones
  std::uint64_t salt;    // of its tags in this call
  bool proven;           // its header's tag is right; otherwise none of its rows is
};

struct ShardJob {
  std::int64_t first_column;  // of this rank
  std::int32_t group_size;
  std::int32_t group_index;
  // begin: where this rank's rows go, and the salt of their tags
  unsigned char* contribution_rows;
  std::uint64_t salt;
  // finish
  const unsigned char* gathered;
  std::int64_t gathered_stride;
  const ShardSender* senders;  // [group_size]
};

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_SHARD_JOB_H_
