// Whether the contributions of a group may be merged: who of it is proven to have answered to this call, and whether those who are fit together.
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_GROUP_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_GROUP_H_

#include "kernels/cpu/shard_job.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// Of checked arguments. Fills senders[group_size]. LG_OK with a sender that is not proven: none of its rows is. LG_FAILED_PRECONDITION: proven contributions
// that cannot belong to one loss. May throw std::bad_alloc.
int JudgeGroup(const lg_vocab_parallel_args& args, const unsigned char* gathered, const char* function, cpu::ShardSender* senders);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_GROUP_H_
