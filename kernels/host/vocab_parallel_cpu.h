// Rows of a shard on the CPU's threads, before and after the exchange, for the calls on logits that are there and on those that a head makes.
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CPU_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CPU_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/shard_job.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/vocab_parallel_group.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

class ShardLaunch {
 public:
  // Of checked arguments. `rows`, which must stay, has job, variant and threads' scratch by the first call of the others. May throw std::bad_alloc.
  ShardLaunch(const lg_vocab_parallel_args& args, int threads, CpuLaunch* rows);

  // The rows [0, count) of the job into a contribution to the call that `args` tell of, after its header.
  void Begin(const lg_vocab_parallel_args& args, std::int64_t count, unsigned char* contribution);
  // Judges the group, which may refuse (JudgeGroup); then loss, gradient and signals of rows [0, count), signals into the threads' counters.
  int Judge(const lg_vocab_parallel_args& args, const unsigned char* gathered, const char* function);
  void Finish(std::int64_t count);

  // What is not proven of all that was finished: into exchange_bad_rows and its sender, the one with most, the first of several.
  void CountExchange(LaunchCounters* total) const;

 private:
  static void BeginRows(void* launch, int thread, std::int64_t begin, std::int64_t end);
  static void FinishRows(void* launch, int thread, std::int64_t begin, std::int64_t end);

  CpuLaunch* const rows_;
  const int threads_;
  cpu::ShardJob shard_{};
  std::vector<cpu::ShardSender> senders_;
  std::vector<std::uint64_t> bad_rows_;  // [threads][bad_rows_stride_]
  std::size_t bad_rows_stride_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CPU_H_
