#include "kernels/host/vocab_parallel_linear_cpu.h"

#include <algorithm>

#include "kernels/host/error.h"
#include "kernels/host/linear_cpu_launch.h"
#include "kernels/host/linear_cpu_sizes.h"
#include "kernels/host/vocab_parallel_arguments.h"
#include "kernels/host/vocab_parallel_cpu.h"

namespace lossgauge {
namespace {

LinearSizes ShardedSizes(const ShardedLinear& call) {
  LinearSizes sizes = SizesOf(call.linear);
  sizes.memory.other_row += call.shard.group_size * std::int64_t{LG_SHARD_ROW_BYTES};
  sizes.memory.fixed += call.shard.group_size * std::int64_t{LG_SHARD_HEADER_BYTES} + kLine;
  return sizes;
}

int Plan(const ShardedLinear& call, const LinearSizes& sizes, const char* function, lg_linear_plan* plan) noexcept {
  const std::int64_t even_row = EvenShard(call) * (call.linear.logits_dtype == LG_FP32 ? 4 : 2);
  return PlanWith(call.linear, sizes, even_row, function, plan);
}

class ShardedLaunch final : public LinearLaunch {
 public:
  ShardedLaunch(const ShardedLinear& call, const LinearSizes& sizes, const lg_linear_plan& plan, const char* function, unsigned char* workspace)
      : LinearLaunch(call.linear, sizes, plan, call.shard.vocab_size, workspace),
        call_(call),
        function_(function),
        chunks_(std::max<std::int64_t>(1, plan.chunks)),
        bytes_(ContributionBytes(plan.chunk_rows)),
        gathered_(rest()->Take(bytes_ * call.shard.group_size)),
        shard_(call.shard, sizes.threads, rows_launch()) {}

 private:
  // Of all rows: who masks other ones makes as many exchanges.
  std::int64_t ChunksOf(std::int64_t) const override { return chunks_; }
  bool OwnsHiddenGradient() const override { return call_.shard.group_size == 1; }

  int RunLoss(std::int64_t chunk, std::int64_t rows) override {
    const lg_vocab_parallel_args args = ChunkOf(call_, chunk, bytes_);
    unsigned char* const own = gathered_ + args.group_index * bytes_;
    std::fill(targets() + rows, targets() + chunk_rows(), job().ignore_index);
    shard_.Begin(args, chunk_rows(), own);
    if (call_.exchange != nullptr) {
      if (const int code = call_.exchange(call_.exchange_context, own, gathered_, bytes_, nullptr); code != LG_OK) {
        return SetError(static_cast<lg_code>(code), "%s: exchange: of chunk %lld returned %d", function_, static_cast<long long>(chunk), code);
      }
    }
    if (const int code = shard_.Judge(args, gathered_, function_); code != LG_OK) return code;
    shard_.Finish(chunk_rows());  // where others have a row and this rank has none, they disagree
    empty_rows_ += static_cast<std::uint64_t>(chunk_rows() - rows);
    return LG_OK;
  }

  void AddCounts(LaunchCounters* total) const override {
    shard_.CountExchange(total);
    total->tokens -= empty_rows_;
    total->present |= LG_HAS_EXCHANGE;
  }

  const ShardedLinear& call_;
  const char* const function_;
  const std::int64_t chunks_, bytes_;
  unsigned char* const gathered_;
  ShardLaunch shard_;
  std::uint64_t empty_rows_ = 0;  // of chunks, counted as tokens
};

}  // namespace

int PlanShardedLinearOnCpu(const ShardedLinear& call, const char* function, lg_linear_plan* plan) noexcept {
  return Plan(call, ShardedSizes(call), function, plan);
}

int RunShardedLinearOnCpu(const ShardedLinear& call, const char* function) {
  const LinearSizes sizes = ShardedSizes(call);
  lg_linear_plan plan{};
  if (const int code = Plan(call, sizes, function, &plan); code != LG_OK) return code;
  const LinearWorkspace workspace(call.linear, plan.workspace_bytes);
  return ShardedLaunch(call, sizes, plan, function, workspace.data()).Run(LossPurpose::kForward);
}

}  // namespace lossgauge
