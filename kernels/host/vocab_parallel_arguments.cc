#include "kernels/host/vocab_parallel_arguments.h"

#include <cstddef>
#include <cstring>

#include "kernels/host/error.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_args;

constexpr std::int32_t kLargestGroup = 65536;
constexpr std::uintptr_t kAlignment = 16;

long long Number(std::int64_t value) { return static_cast<long long>(value); }
bool IsAligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

}  // namespace

Args DefaultVocabParallelArguments() noexcept {
  Args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.group_size = 1;
  args.shard_columns = -1;
  args.loss = DefaultArguments();
  return args;
}

int ReadVocabParallelArguments(const Args* given, const char* function, Args* args) noexcept {
  *args = DefaultVocabParallelArguments();
  if (const int code = ReadStructureWithLoss(given, function, "lg_vocab_parallel_args", args); code != LG_OK) return code;
  lg_cross_entropy_args& loss = args->loss;
  if (loss.row_stride == 0) loss.row_stride = loss.columns;
  if (loss.grad_row_stride == 0) loss.grad_row_stride = loss.columns;
  if (args->shard_columns == -1) args->shard_columns = loss.columns;
  loss.vocab_size = args->shard_columns;
  if (args->gathered_stride == 0) args->gathered_stride = ContributionBytes(loss.rows);
  return LG_OK;
}

int CheckGroupAndShard(const Args& args, const char* function) noexcept {
  if (args.group_size < 1 || args.group_size > kLargestGroup) {
    return SetError(LG_INVALID_ARGUMENT, "%s: group_size: expected 1 to %d, got %d", function, kLargestGroup, args.group_size);
  }
  if (args.group_index < 0 || args.group_index >= args.group_size) {
    return SetError(LG_INVALID_ARGUMENT, "%s: group_index: expected 0 to group_size - 1 (%d), got %d", function, args.group_size - 1, args.group_index);
  }
  if (args.vocab_size < 1) return SetError(LG_INVALID_ARGUMENT, "%s: vocab_size: expected >= 1, got %lld", function, Number(args.vocab_size));
  if (args.loss.columns < 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: columns: expected >= 1 (a rank without columns has one of padding, and shard_columns 0), got %lld", function,
                    Number(args.loss.columns));
  }
  if (args.shard_columns < 0 || args.shard_columns > args.loss.columns) {
    return SetError(LG_INVALID_ARGUMENT, "%s: shard_columns: expected 0 to columns (%lld), or -1 for all of them, got %lld", function,
                    Number(args.loss.columns), Number(args.shard_columns));
  }
  if (args.shard_offset < 0 || args.shard_columns > args.vocab_size || args.shard_offset > args.vocab_size - args.shard_columns) {
    return SetError(LG_INVALID_ARGUMENT, "%s: shard_offset: expected 0 to vocab_size - shard_columns (%lld - %lld), got %lld", function,
                    Number(args.vocab_size), Number(args.shard_columns), Number(args.shard_offset));
  }
  if (args.step < 0) return SetError(LG_INVALID_ARGUMENT, "%s: step: expected >= 0, got %lld", function, Number(args.step));
  if (args.micro_batch < 0) return SetError(LG_INVALID_ARGUMENT, "%s: micro_batch: expected >= 0, got %lld", function, Number(args.micro_batch));
  for (const std::int64_t word : args.reserved) {
    if (word != 0) return SetError(LG_INVALID_ARGUMENT, "%s: reserved: expected 0, got %lld; this library knows no such member", function, Number(word));
  }
  return LG_OK;
}

int CheckVocabParallelArguments(const Args& args, const char* function) noexcept {
  if (const int code = CheckGroupAndShard(args, function); code != LG_OK) return code;
  lg_cross_entropy_args loss = args.loss;
  if (loss.vocab_size == 0) loss.vocab_size = 1;  // nothing but padding
  if (const int code = CheckArguments(loss, function); code != LG_OK) return code;
  if (ContributionBytes(loss.rows) == 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: rows: expected contributions within 63 bits of bytes, got %lld rows", function, Number(loss.rows));
  }
  return LG_OK;
}

int CheckContribution(const Args& args, const void* contribution, const char* function) noexcept {
  const lg_cross_entropy_args& loss = args.loss;
  const std::int64_t bytes = ContributionBytes(loss.rows);
  if (contribution == nullptr || !IsAligned(contribution)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: contribution: expected %lld bytes aligned to 16, got %p", function, Number(bytes), contribution);
  }
  const TensorSpan written{contribution, 1, bytes, bytes, 1};
  if (Overlap(written, {loss.logits, loss.rows, loss.columns, loss.row_stride, BytesOfType(loss.logits_dtype)}) ||
      Overlap(written, {loss.targets, loss.rows, 1, loss.target_stride, BytesOfType(loss.target_dtype)})) {
    return SetError(LG_INVALID_ARGUMENT, "%s: contribution: expected memory apart from logits and targets, got %p", function, contribution);
  }
  return LG_OK;
}

int CheckGathered(const Args& args, const void* gathered, const char* function) noexcept {
  const lg_cross_entropy_args& loss = args.loss;
  const std::int64_t bytes = ContributionBytes(loss.rows);
  std::int64_t span;
  if (args.gathered_stride < bytes || args.gathered_stride % static_cast<std::int64_t>(kAlignment) != 0 ||
      __builtin_mul_overflow(args.gathered_stride, std::int64_t{args.group_size}, &span)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: gathered_stride: expected a multiple of 16, at least the %lld bytes of a contribution, or 0 for them; got %lld",
                    function, Number(bytes), Number(args.gathered_stride));
  }
  if (gathered == nullptr || !IsAligned(gathered)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: gathered: expected %d contributions aligned to 16, got %p", function, args.group_size, gathered);
  }
  const TensorSpan read{gathered, args.group_size, bytes, args.gathered_stride, 1};
  const std::int64_t rows = loss.rows;
  if (Overlap(read, {loss.grad_logits, rows, loss.columns, loss.grad_row_stride, BytesOfType(loss.logits_dtype)}) || Overlap(read, {loss.losses, rows, 1, 1, 4}) ||
      Overlap(read, {loss.log_z, rows, 1, 1, 4}) || Overlap(read, {loss.loss, 1, 1, 1, 4})) {
    return SetError(LG_INVALID_ARGUMENT, "%s: gathered: expected memory apart from the outputs, got %p", function, gathered);
  }
  return CheckOverlaps(loss, function);
}

std::int64_t ContributionBytes(std::int64_t rows) noexcept {
  if (rows < 0 || rows > (INT64_MAX - LG_SHARD_HEADER_BYTES) / LG_SHARD_ROW_BYTES) return 0;
  return LG_SHARD_HEADER_BYTES + rows * LG_SHARD_ROW_BYTES;
}

lg_shard_header ShardHeaderOf(const Args& args) noexcept {
  const lg_cross_entropy_args& loss = args.loss;
  lg_shard_header header;
  std::memset(&header, 0, sizeof header);
  header.magic = LG_SHARD_MAGIC;
  header.version = LG_SHARD_VERSION;
  header.sender = static_cast<std::uint32_t>(args.group_index);
  header.logits_dtype = loss.logits_dtype;
  header.step = args.step;
  header.micro_batch = args.micro_batch;
  header.rows = loss.rows;
  header.group_size = args.group_size;
  header.shard_offset = args.shard_offset;
  header.shard_columns = args.shard_columns;
  header.vocab_size = args.vocab_size;
  header.position_base = loss.position_base;
  header.ignore_index = loss.ignore_index;
  header.label_smoothing = loss.label_smoothing;
  header.z_loss_weight = loss.z_loss_weight;
  header.logit_scale = loss.logit_scale;
  header.logit_softcap = loss.logit_softcap;
  std::uint64_t words[LG_SHARD_HEADER_BYTES / 8];
  std::memcpy(words, &header, sizeof words);
  header.tag = lg_shard_header_tag(lg_shard_salt(args.step, args.micro_batch, header.sender), words);
  return header;
}

cpu::CrossEntropyJob MakeShardRowsJob(const Args& args) noexcept {
  cpu::CrossEntropyJob job = MakeCpuJob(args.loss);
  job.classes = args.vocab_size;
  return job;
}

}  // namespace lossgauge
