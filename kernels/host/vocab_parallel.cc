// The vocabulary-parallel calls of the C ABI: arguments are checked here, all of them, before a byte is written; then the backend runs.
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shard_job.h"
#include "kernels/cpu/variant.h"
#include "kernels/host/counter_block.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/vocab_parallel_arguments.h"
#include "kernels/host/vocab_parallel_group.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_args;

constexpr char kShardScratch[] = "the scratch of a row for each thread and a few words for each rank";

struct ShardLaunch {
  CpuLaunch rows;
  cpu::ShardJob shard{};
  std::uint64_t* bad_rows = nullptr;  // [threads][bad_rows_stride]
  std::size_t bad_rows_stride = 0;
};

void BeginRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<ShardLaunch*>(context);
  launch.rows.variant->begin_shard(*launch.rows.job, launch.shard, begin, end, launch.rows.threads[thread].scratch);
}
void FinishRows(void* context, int thread, std::int64_t begin, std::int64_t end) {
  auto& launch = *static_cast<ShardLaunch*>(context);
  CpuThread& own = launch.rows.threads[thread];
  launch.rows.variant->finish_shard(*launch.rows.job, launch.shard, begin, end, own.scratch, &own.counters,
                                    launch.bad_rows + static_cast<std::size_t>(thread) * launch.bad_rows_stride);
}

void Describe(const Args& args, const cpu::CrossEntropyJob& job, ShardLaunch* launch) {
  launch->rows.variant = &cpu::ChosenVariant();
  launch->rows.job = &job;
  launch->shard.first_column = args.shard_offset;
  launch->shard.group_size = args.group_size;
  launch->shard.group_index = args.group_index;
}

int ReadAndCheck(const Args* given, const char* function, const void* exchanged, Args* args) {
  if (const int code = ReadVocabParallelArguments(given, function, args); code != LG_OK) return code;
  if (const int code = CheckVocabParallelArguments(*args, function); code != LG_OK) return code;
  if (args->loss.gauge != nullptr && args->loss.gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  if (DeviceBackend* backend = FindDeviceBackend()) {
    const void* const places[] = {args->loss.logits, exchanged, args->loss.loss};
    for (const void* place : places) {
      if (place != nullptr && backend->DeviceOf(place) >= 0) {
        return SetError(LG_UNIMPLEMENTED, "%s: logits: expected host memory, since this build has no vocabulary-parallel loss on a device; got memory of device %d",
                        function, backend->DeviceOf(place));
      }
    }
  }
  if (args->loss.stream != nullptr) {
    return SetError(LG_UNIMPLEMENTED, "%s: stream: expected NULL for tensors in host memory, got a stream", function);
  }
  return LG_OK;
}

int Begin(const Args& args, unsigned char* contribution) {
  if (args.loss.gauge != nullptr) args.loss.gauge->NoteLossCall();  // who hangs in the exchange has entered the step
  cpu::CrossEntropyJob job = MakeShardRowsJob(args);
  job.grad = nullptr;
  ShardLaunch launch;
  Describe(args, job, &launch);
  launch.shard.contribution_rows = contribution + LG_SHARD_HEADER_BYTES;
  launch.shard.salt = lg_shard_salt(args.step, args.micro_batch, static_cast<std::uint32_t>(args.group_index));
  const int threads = cpu::ThreadsFor(args.loss.threads, args.loss.rows, args.loss.columns);
  const CpuScratch scratch(job, threads, &launch.rows);
  const lg_shard_header header = ShardHeaderOf(args);
  std::memcpy(contribution, &header, sizeof header);
  if (args.loss.rows > 0) cpu::ForRows(threads, args.loss.rows, args.loss.columns, &launch, BeginRows);
  return LG_OK;
}

// The sender with most bad rows, the first of several.
void CountExchange(const ShardLaunch& launch, int threads, LaunchCounters* total) {
  for (std::int32_t s = 0; s < launch.shard.group_size; ++s) {
    std::uint64_t rows = 0;
    for (int thread = 0; thread < threads; ++thread) {
      rows += launch.bad_rows[static_cast<std::size_t>(thread) * launch.bad_rows_stride + static_cast<std::size_t>(s)];
    }
    total->exchange_bad_rows += rows;
    if (rows > total->exchange_worst_rows) {
      total->exchange_worst_rows = rows;
      total->exchange_bad_sender = static_cast<std::uint64_t>(s);
    }
  }
}

int Finish(const Args& args, const unsigned char* gathered, const char* function) {
  std::vector<cpu::ShardSender> senders(static_cast<std::size_t>(args.group_size));
  if (const int code = JudgeGroup(args, gathered, function, senders.data()); code != LG_OK) return code;

  cpu::CrossEntropyJob job = MakeShardRowsJob(args);
  const int threads = cpu::ThreadsFor(args.loss.threads, args.loss.rows, args.loss.columns);
  ShardLaunch launch;
  Describe(args, job, &launch);
  launch.shard.gathered = gathered;
  launch.shard.gathered_stride = args.gathered_stride;
  launch.shard.senders = senders.data();
  launch.bad_rows_stride = (senders.size() + 7) / 8 * 8;  // a cache line of its own for each thread
  std::vector<std::uint64_t> bad_rows(static_cast<std::size_t>(threads) * launch.bad_rows_stride);
  launch.bad_rows = bad_rows.data();
  const CpuScratch scratch(job, threads, &launch.rows);

  CounterBlock* block = AttachGauge(args.loss, LossPurpose::kForward, &job);
  const Denominator denominator = DenominatorOf(args.loss, job, LossPurpose::kForward);
  job.denominator = denominator.value;
  job.stream_grad = StreamsGradient(args.loss);
  if (args.loss.rows > 0) cpu::ForRows(threads, args.loss.rows, args.loss.columns, &launch, FinishRows);

  LaunchCounters total;
  for (int thread = 0; thread < threads; ++thread) Merge(launch.rows.threads[thread].counters, &total);
  CountExchange(launch, threads, &total);
  total.present |= LG_HAS_EXCHANGE;
  FinishLaunch(args.loss, job, denominator, total, block);
  return LG_OK;
}

}  // namespace
}  // namespace lossgauge

extern "C" {

void lg_vocab_parallel_args_init(lg_vocab_parallel_args* args) {
  if (args != nullptr) *args = lossgauge::DefaultVocabParallelArguments();
}

int lg_vocab_parallel_contribution_bytes(int64_t rows, int64_t* bytes) {
  const char* function = "lg_vocab_parallel_contribution_bytes";
  if (bytes == nullptr) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: bytes: expected where to write the number, got NULL", function);
  const std::int64_t found = lossgauge::ContributionBytes(rows);
  if (found == 0) {
    return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: rows: expected >= 0 and contributions within 63 bits of bytes, got %lld", function,
                               static_cast<long long>(rows));
  }
  *bytes = found;
  return LG_OK;
}

int lg_vocab_parallel_begin(const lg_vocab_parallel_args* given, void* contribution) {
  const char* function = "lg_vocab_parallel_begin";
  lg_vocab_parallel_args args;
  if (const int code = lossgauge::ReadAndCheck(given, function, contribution, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckContribution(args, contribution, function); code != LG_OK) return code;
  return lossgauge::Guarded(function, lossgauge::kShardScratch, [&] { return lossgauge::Begin(args, static_cast<unsigned char*>(contribution)); });
}

int lg_vocab_parallel_finish(const lg_vocab_parallel_args* given, const void* gathered) {
  const char* function = "lg_vocab_parallel_finish";
  lg_vocab_parallel_args args;
  if (const int code = lossgauge::ReadAndCheck(given, function, gathered, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckGathered(args, gathered, function); code != LG_OK) return code;
  return lossgauge::Guarded(function, lossgauge::kShardScratch,
                            [&] { return lossgauge::Finish(args, static_cast<const unsigned char*>(gathered), function); });
}

}  // extern "C"
