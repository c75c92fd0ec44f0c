#include "kernels/host/vocab_parallel_cpu.h"

#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/variant.h"
#include "kernels/host/vocab_parallel_arguments.h"

namespace lossgauge {

ShardLaunch::ShardLaunch(const lg_vocab_parallel_args& args, int threads, CpuLaunch* rows)
    : rows_(rows),
      threads_(threads),
      senders_(static_cast<std::size_t>(args.group_size)),
      bad_rows_stride_((senders_.size() + 7) / 8 * 8) {  // a cache line of its own for each thread
  bad_rows_.resize(static_cast<std::size_t>(threads) * bad_rows_stride_);
  rows->variant = &cpu::ChosenVariant();
  shard_.first_column = args.shard_offset;
  shard_.group_size = args.group_size;
  shard_.group_index = args.group_index;
  shard_.senders = senders_.data();
}

void ShardLaunch::BeginRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<ShardLaunch*>(context);
  const CpuLaunch& rows = *launch.rows_;
  rows.variant->begin_shard(*rows.job, launch.shard_, begin, end, rows.threads[thread].scratch);
}
void ShardLaunch::FinishRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<ShardLaunch*>(context);
  CpuLaunch& rows = *launch.rows_;
  CpuThread& own = rows.threads[thread];
  rows.variant->finish_shard(*rows.job, launch.shard_, begin, end, own.scratch, &own.counters,
                             launch.bad_rows_.data() + static_cast<std::size_t>(thread) * launch.bad_rows_stride_);
}

void ShardLaunch::Begin(const lg_vocab_parallel_args& args, std::int64_t count, unsigned char* contribution) {
  shard_.contribution_rows = contribution + LG_SHARD_HEADER_BYTES;
  shard_.salt = lg_shard_salt(args.step, args.micro_batch, static_cast<std::uint32_t>(args.group_index));
  const lg_shard_header header = ShardHeaderOf(args);
  std::memcpy(contribution, &header, sizeof header);
  if (count > 0) cpu::ForRows(threads_, count, rows_->job->columns, this, BeginRows);
}

int ShardLaunch::Judge(const lg_vocab_parallel_args& args, const unsigned char* gathered, const char* function) {
  shard_.gathered = gathered;
  shard_.gathered_stride = args.gathered_stride;
  return JudgeGroup(args, gathered, function, senders_.data());
}

void ShardLaunch::Finish(std::int64_t count) {
  if (count > 0) cpu::ForRows(threads_, count, rows_->job->columns, this, FinishRows);
}

void ShardLaunch::CountExchange(LaunchCounters* total) const {
  for (std::size_t s = 0; s < senders_.size(); ++s) {
    std::uint64_t rows = 0;
    for (std::size_t thread = 0; thread < static_cast<std::size_t>(threads_); ++thread) rows += bad_rows_[thread * bad_rows_stride_ + s];
    total->exchange_bad_rows += rows;
    if (rows > total->exchange_worst_rows) {
      total->exchange_worst_rows = rows;
      total->exchange_bad_sender = static_cast<std::uint64_t>(s);
    }
  }
}

}  // namespace lossgauge
