#include "kernels/host/vocab_parallel_linear_arguments.h"

#include <cstddef>
#include <cstring>

#include "kernels/host/error.h"
#include "kernels/host/read_structure.h"
#include "kernels/host/vocab_parallel_arguments.h"

namespace lossgauge {
namespace {

constexpr int kMicroBatchBits = 40;  // of the tags' word; the rest tells chunks apart

}  // namespace

lg_vocab_parallel_linear_args DefaultShardedLinearArguments() noexcept {
  lg_vocab_parallel_linear_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.group_size = 1;
  args.shard_columns = -1;
  return args;
}

int ReadShardedLinear(const lg_vocab_parallel_linear_args* given, const char* function, ShardedLinear* call) noexcept {
  lg_vocab_parallel_linear_args args = DefaultShardedLinearArguments();
  const std::size_t least = offsetof(lg_vocab_parallel_linear_args, linear) + sizeof args.linear;
  if (const int code = ReadStructure(given, function, "lg_vocab_parallel_linear_args", least, &args); code != LG_OK) return code;
  if (args.linear == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: linear: expected the rank's lg_linear_cross_entropy_args, got NULL", function);
  }
  if (const int code = ReadLinearArguments(args.linear, function, &call->linear); code != LG_OK) return code;
  call->shard = DefaultVocabParallelArguments();
  call->shard.group_size = args.group_size;
  call->shard.group_index = args.group_index;
  call->shard.vocab_size = args.vocab_size;
  call->shard.shard_offset = args.shard_offset;
  call->shard.shard_columns = args.shard_columns == -1 ? call->linear.columns : args.shard_columns;
  call->shard.step = args.step;
  call->shard.micro_batch = args.micro_batch;
  call->linear.loss.vocab_size = call->shard.shard_columns;
  call->shard.loss = call->linear.loss;
  call->exchange = args.exchange;
  call->exchange_context = args.exchange_context;
  call->communicator = args.communicator;
  call->reduces_hidden = args.reduce_grad_hidden != 0;
  if (args.reduce_grad_hidden != 0 && args.reduce_grad_hidden != 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: reduce_grad_hidden: expected 0 or 1, got %d", function, args.reduce_grad_hidden);
  }
  return LG_OK;
}

int CheckShardedLinear(const ShardedLinear& call, LinearPurpose purpose, const char* function) noexcept {
  const lg_vocab_parallel_args& shard = call.shard;
  if (const int code = CheckGroupAndShard(shard, function); code != LG_OK) return code;
  if (shard.micro_batch >= std::int64_t{1} << kMicroBatchBits) {
    return SetError(LG_INVALID_ARGUMENT, "%s: micro_batch: expected below 2^%d, got %lld", function, kMicroBatchBits,
                    static_cast<long long>(shard.micro_batch));
  }
  lg_linear_cross_entropy_args linear = call.linear;
  if (linear.loss.vocab_size == 0) linear.loss.vocab_size = 1;  // nothing but padding
  if (const int code = CheckLinearArguments(linear, purpose, function); code != LG_OK) return code;
  if (call.exchange != nullptr && call.communicator != nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: exchange, communicator: expected one of them, got both", function);
  }
  if (call.reduces_hidden && call.communicator == nullptr && shard.group_size > 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: reduce_grad_hidden: expected 0 without a communicator (sum grad_hidden after the call), got 1", function);
  }
  if (purpose != LinearPurpose::kForward || shard.group_size == 1) return LG_OK;
  if (call.exchange == nullptr && call.communicator == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: exchange: expected it or a communicator for %d ranks, got NULL for both", function, shard.group_size);
  }
  if (call.linear.memory_budget != 0 && call.linear.chunk_rows == 0) {
    return SetError(
        LG_INVALID_ARGUMENT,
        "%s: chunk_rows: expected the same number on all ranks where there is a memory_budget (the least of what lg_vocab_parallel_linear_plan says "
        "on each), got 0",
        function);
  }
  return LG_OK;
}

void ResolveLogitsType(ShardedLinear* call, std::int32_t otherwise) noexcept {
  ResolveLogitsType(&call->linear, otherwise);
  call->shard.loss = call->linear.loss;
}

lg_vocab_parallel_args ChunkOf(const ShardedLinear& call, std::int64_t chunk, std::int64_t contribution_bytes) noexcept {
  lg_vocab_parallel_args args = call.shard;
  args.micro_batch += (chunk + 1) << kMicroBatchBits;
  args.gathered_stride = contribution_bytes;
  return args;
}

}  // namespace lossgauge
