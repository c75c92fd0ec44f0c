// The vocabulary-parallel calls of the C ABI: arguments are checked here, all of them, before a byte is written; then the backend runs.
#include <cstdint>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/host/counter_block.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/guarded.h"
#include "kernels/host/host_tensors.h"
#include "kernels/host/vocab_parallel_arguments.h"
#include "kernels/host/vocab_parallel_cpu.h"
#include "kernels/host/vocab_parallel_group.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_args;

constexpr char kShardScratch[] = "the scratch of a row for each thread and a few words for each rank";

int ReadAndCheck(const Args* given, const char* function, Args* args) {
  if (const int code = ReadVocabParallelArguments(given, function, args); code != LG_OK) return code;
  if (const int code = CheckVocabParallelArguments(*args, function); code != LG_OK) return code;
  if (args->loss.gauge != nullptr && args->loss.gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "%s: gauge: is closed", function);
  return LG_OK;
}

// nullptr: all of it is host memory. What lies on a device while the rest does not is refused there.
DeviceBackend* DeviceBackendOf(const Args& args, const void* exchanged) {
  DeviceBackend* const backend = FindDeviceBackend();
  if (backend == nullptr) return nullptr;
  const void* const places[] = {exchanged, args.loss.rows > 0 ? args.loss.logits : nullptr, args.loss.loss};
  for (const void* place : places) {
    if (place != nullptr && backend->DeviceOf(place) >= 0) return backend;
  }
  return nullptr;
}

int SetNoDevice(const char* function) {
  return SetError(LG_UNIMPLEMENTED, "%s: communicator: expected a build with CUDA and a device: NCCL exchanges memory of devices only", function);
}

int Begin(const Args& args, unsigned char* contribution) {
  if (args.loss.gauge != nullptr) args.loss.gauge->NoteLossCall();  // who hangs in the exchange has entered the step
  cpu::CrossEntropyJob job = MakeShardRowsJob(args);
  job.grad = nullptr;
  CpuLaunch rows;
  rows.job = &job;
  const int threads = cpu::ThreadsFor(args.loss.threads, args.loss.rows, args.loss.columns);
  ShardLaunch launch(args, threads, &rows);
  const CpuScratch scratch(job, threads, &rows);
  launch.Begin(args, args.loss.rows, contribution);
  return LG_OK;
}

int Finish(const Args& args, const unsigned char* gathered, const char* function) {
  cpu::CrossEntropyJob job = MakeShardRowsJob(args);
  const int threads = cpu::ThreadsFor(args.loss.threads, args.loss.rows, args.loss.columns);
  CpuLaunch rows;
  rows.job = &job;
  ShardLaunch launch(args, threads, &rows);
  if (const int code = launch.Judge(args, gathered, function); code != LG_OK) return code;
  const CpuScratch scratch(job, threads, &rows);

  CounterBlock* block = AttachGauge(args.loss, LossPurpose::kForward, &job);
  const Denominator denominator = DenominatorOf(args.loss, job, LossPurpose::kForward);
  job.denominator = denominator.value;
  job.stream_grad = StreamsGradient(args.loss);
  launch.Finish(args.loss.rows);

  LaunchCounters total;
  for (int thread = 0; thread < threads; ++thread) Merge(rows.threads[thread].counters, &total);
  launch.CountExchange(&total);
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
  if (const int code = lossgauge::ReadAndCheck(given, function, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckContribution(args, contribution, function); code != LG_OK) return code;
  if (auto* backend = lossgauge::DeviceBackendOf(args, contribution)) {
    return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] { return backend->VocabParallelBegin(args, contribution, function); });
  }
  if (const int code = lossgauge::CheckHostTensors(args.loss, function); code != LG_OK) return code;
  return lossgauge::Guarded(function, lossgauge::kShardScratch, [&] { return lossgauge::Begin(args, static_cast<unsigned char*>(contribution)); });
}

int lg_vocab_parallel_finish(const lg_vocab_parallel_args* given, const void* gathered) {
  const char* function = "lg_vocab_parallel_finish";
  lg_vocab_parallel_args args;
  if (const int code = lossgauge::ReadAndCheck(given, function, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckGathered(args, gathered, function); code != LG_OK) return code;
  if (auto* backend = lossgauge::DeviceBackendOf(args, gathered)) {
    return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] { return backend->VocabParallelFinish(args, gathered, function); });
  }
  if (const int code = lossgauge::CheckHostTensors(args.loss, function); code != LG_OK) return code;
  return lossgauge::Guarded(function, lossgauge::kShardScratch,
                            [&] { return lossgauge::Finish(args, static_cast<const unsigned char*>(gathered), function); });
}

int lg_vocab_parallel_check(const lg_vocab_parallel_args* given, const void* gathered) {
  const char* function = "lg_vocab_parallel_check";
  lg_vocab_parallel_args args;
  if (const int code = lossgauge::ReadAndCheck(given, function, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckGathered(args, gathered, function); code != LG_OK) return code;
  return lossgauge::Guarded(function, lossgauge::kShardScratch, [&] {
    auto* backend = lossgauge::FindDeviceBackend();
    if (backend != nullptr && backend->DeviceOf(gathered) >= 0) {
      return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: gathered: expected a copy in host memory, got memory of device %d", function,
                                 backend->DeviceOf(gathered));
    }
    std::vector<lossgauge::cpu::ShardSender> senders(static_cast<std::size_t>(args.group_size));
    if (const int code = lossgauge::JudgeGroup(args, static_cast<const unsigned char*>(gathered), function, senders.data()); code != LG_OK) return code;
    for (std::int32_t s = 0; s < args.group_size; ++s) {
      if (senders[static_cast<std::size_t>(s)].proven) continue;
      return lossgauge::SetError(LG_FAILED_PRECONDITION,
                                 "%s: gathered: expected the contribution of rank %d of the group to this call, got another's, an old or a changed one", function, s);
    }
    return static_cast<int>(LG_OK);
  });
}

int lg_vocab_parallel_cross_entropy(const lg_vocab_parallel_args* given, void* communicator, void* gathered) {
  const char* function = "lg_vocab_parallel_cross_entropy";
  lg_vocab_parallel_args args;
  if (const int code = lossgauge::ReadAndCheck(given, function, &args); code != LG_OK) return code;
  if (const int code = lossgauge::CheckGathered(args, gathered, function); code != LG_OK) return code;
  if (args.gathered_stride != lossgauge::ContributionBytes(args.loss.rows)) {
    return lossgauge::SetError(LG_INVALID_ARGUMENT,
                               "%s: gathered_stride: expected 0 or the %lld bytes of a contribution, which is how NCCL lays them; got %lld", function,
                               static_cast<long long>(lossgauge::ContributionBytes(args.loss.rows)), static_cast<long long>(args.gathered_stride));
  }
  const unsigned char* const own = static_cast<unsigned char*>(gathered) + args.group_index * args.gathered_stride;
  if (const int code = lossgauge::CheckContribution(args, own, function); code != LG_OK) return code;
  if (communicator == nullptr) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: communicator: expected an ncclComm_t, got NULL", function);
  return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] {
    auto* backend = lossgauge::DeviceBackendOf(args, gathered);
    return backend != nullptr ? backend->VocabParallelCrossEntropy(args, communicator, gathered, function) : lossgauge::SetNoDevice(function);
  });
}

int lg_communicator_unique_id(void* id) {
  const char* function = "lg_communicator_unique_id";
  if (id == nullptr) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: id: expected room for 128 bytes, got NULL", function);
  return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] {
    auto* backend = lossgauge::FindDeviceBackend();
    return backend != nullptr ? backend->MakeUniqueId(id, function) : lossgauge::SetNoDevice(function);
  });
}

int lg_communicator_open(const void* id, int32_t group_size, int32_t group_index, void** communicator) {
  const char* function = "lg_communicator_open";
  if (id == nullptr) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: id: expected the 128 bytes of lg_communicator_unique_id, got NULL", function);
  if (communicator == nullptr) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: communicator: expected where to write it, got NULL", function);
  if (group_size < 1) return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: group_size: expected >= 1, got %d", function, group_size);
  if (group_index < 0 || group_index >= group_size) {
    return lossgauge::SetError(LG_INVALID_ARGUMENT, "%s: group_index: expected 0 to group_size - 1 (%d), got %d", function, group_size - 1, group_index);
  }
  return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] {
    auto* backend = lossgauge::FindDeviceBackend();
    return backend != nullptr ? backend->OpenCommunicator(id, group_size, group_index, communicator, function) : lossgauge::SetNoDevice(function);
  });
}

int lg_communicator_close(void* communicator) {
  const char* function = "lg_communicator_close";
  if (communicator == nullptr) return LG_OK;
  return lossgauge::Guarded(function, lossgauge::kDeviceBookkeeping, [&] {
    auto* backend = lossgauge::FindDeviceBackend();
    return backend != nullptr ? backend->CloseCommunicator(communicator, function) : lossgauge::SetNoDevice(function);
  });
}

}  // extern "C"
