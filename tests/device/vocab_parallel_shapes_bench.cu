// Tries other shapes of the vocabulary-parallel kernels than those that the library chooses for long rows: warps of a row, rows at once in a CTA, CTAs of a
// multiprocessor, vectors on their way. 8192 x COLUMNS bf16 of one rank, gradient in place, without and with signals; ms, medians, and over the same bytes at
// copy speed. Of a shape that wins, the one to change is in kernels/cuda/shard_entries.cuh or
// shard_ring_entries.cuh.
//
//   vocab_parallel_shapes_bench [COLUMNS [ROUNDS]]
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/shard_arguments.h"
#include "kernels/cuda/shard_entries.cuh"
#include "kernels/cuda/shard_ring_entries.cuh"
#include "kernels/host/vocab_parallel_arguments.h"
#include "tests/device/bench_check.h"

namespace lossgauge::cuda {
namespace {

constexpr std::int64_t kRows = 8192;

template <int kWarps, int kGroups, int kCtas, int kFlight, bool kSignals>
struct Shape : RowsConfig<__nv_bfloat16, kWarps, 0, kGroups, kSignals, LogitMap::kNone> {
  static constexpr int IN_FLIGHT = kFlight, CTAS = kCtas;
};

struct Tried {
  std::string name;
  bool finishes, signals;
  KernelEntry entry;
  std::vector<double> ms;
};

template <int kWarps, int kGroups, int kCtas, int kFlight>
void AddFinish(std::vector<Tried>* all) {
  const std::string name =
      "finish " + std::to_string(kWarps) + " x " + std::to_string(kGroups) + " x " + std::to_string(kCtas) + ", " + std::to_string(kFlight);
  all->push_back({name, true, false, MakeShardFinishEntry<Shape<kWarps, kGroups, kCtas, kFlight, false>>(), {}});
  all->push_back({name + ", signals", true, true, MakeShardFinishEntry<Shape<kWarps, kGroups, kCtas, kFlight, true>>(), {}});
}
template <int kWarps, int kGroups, int kCtas, int kFlight>
void AddBegin(std::vector<Tried>* all) {
  const std::string name = "begin " + std::to_string(kWarps) + " x " + std::to_string(kGroups) + " x " + std::to_string(kCtas) + ", " + std::to_string(kFlight);
  all->push_back({name, false, true, MakeShardBeginEntry<Shape<kWarps, kGroups, kCtas, kFlight, true>>(), {}});
}

// Through a ring of slots: sweepers, units of a slot, slots, CTAs of a multiprocessor.
template <int kSweepers, int kUnits, int kSlots, int kCtas>
void AddRingFinish(std::vector<Tried>* all) {
  const std::string name = "finish, ring of " + std::to_string(kSlots) + " x " + std::to_string(kUnits) + " units, " + std::to_string(kSweepers) +
                           " sweepers x " + std::to_string(kCtas);
  all->push_back({name, true, false, MakeShardRingFinishEntry<ShardRing<__nv_bfloat16, kSweepers, kUnits, kSlots, false, kCtas>>(), {}});
  all->push_back({name + ", signals", true, true, MakeShardRingFinishEntry<ShardRing<__nv_bfloat16, kSweepers, kUnits, kSlots, true, kCtas>>(), {}});
}
template <int kSweepers, int kUnits, int kSlots, int kCtas>
void AddRingBegin(std::vector<Tried>* all) {
  const std::string name = "begin, ring of " + std::to_string(kSlots) + " x " + std::to_string(kUnits) + " units, " + std::to_string(kSweepers) +
                           " sweepers x " + std::to_string(kCtas);
  all->push_back({name, false, true, MakeShardRingBeginEntry<ShardRing<__nv_bfloat16, kSweepers, kUnits, kSlots, true, kCtas>>(), {}});
}

__global__ void Fill(__nv_bfloat16* to, std::size_t n) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    float sum = -2.f;
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((x >> (16 * part)) & 0xffff) / 65536.f;
    to[i] = __float2bfloat16(1.7f * sum);
  }
}

void Run(std::int64_t columns, int rounds) {
  std::vector<Tried> all;
  AddFinish<16, 1, 2, 4>(&all);
  AddFinish<8, 1, 3, 4>(&all);
  AddRingFinish<16, 64, 6, 1>(&all);
  AddRingFinish<16, 32, 12, 1>(&all);
  AddRingFinish<8, 32, 5, 2>(&all);
  AddBegin<8, 1, 4, 4>(&all);
  AddRingBegin<16, 64, 6, 1>(&all);
  AddRingBegin<8, 32, 5, 2>(&all);

  cudaError_t error = cudaSuccess;
  Device* const device = Device::Get(0, &error);
  CHECK(error);
  const std::size_t bytes = static_cast<std::size_t>(kRows * columns) * 2;
  __nv_bfloat16 *source, *work;
  std::int64_t* targets;
  unsigned char* gathered;
  DeviceCounters* counters;
  std::int64_t contribution = 0;
  CHECK_LG(lg_vocab_parallel_contribution_bytes(kRows, &contribution));
  CHECK(cudaMalloc(&source, bytes));
  CHECK(cudaMalloc(&work, bytes));
  CHECK(cudaMalloc(&targets, kRows * 8));
  CHECK(cudaMalloc(&gathered, static_cast<std::size_t>(contribution)));
  CHECK(cudaMalloc(&counters, sizeof *counters));
  Fill<<<2048, 256>>>(source, bytes / 2);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < kRows; ++i) values.push_back(i * 2654435761 % columns);
  CHECK(cudaMemcpy(targets, values.data(), kRows * 8, cudaMemcpyHostToDevice));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));

  lg_vocab_parallel_args args = DefaultVocabParallelArguments();
  args.vocab_size = args.shard_columns = columns;
  args.loss.logits = args.loss.grad_logits = work;
  args.loss.logits_dtype = LG_BF16;
  args.loss.rows = kRows;
  args.loss.columns = args.loss.vocab_size = args.loss.row_stride = args.loss.grad_row_stride = columns;
  args.loss.targets = targets;
  args.loss.denominator = static_cast<double>(kRows);
  args.gathered_stride = contribution;
  ShardLaunch launch = MakeShardLaunch(args);
  launch.gathered = launch.contribution = gathered;
  launch.gathered_stride = contribution;
  std::vector<double> copies;
  const auto timed = [&](const std::function<void()>& work_of) {
    CHECK(cudaEventRecord(begin, stream));
    work_of();
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms);
  };
  const auto refill = [&] { CHECK(cudaMemcpyAsync(work, source, bytes, cudaMemcpyDeviceToDevice, stream)); };
  const auto enqueue = [&](const KernelEntry& entry, const ShardLaunch& what) {
    void* arguments[] = {const_cast<ShardLaunch*>(&what)};
    CHECK(LaunchPersistent(device->facts(), entry, kRows, arguments, stream));
  };
  for (int round = 0; round < rounds + 2; ++round) {
    const double copy = timed(refill);
    if (round >= 2) copies.push_back(copy);
    for (Tried& tried : all) {
      refill();
      ShardLaunch what = launch;
      what.loss.scratch = device->Scratch(false);
      what.loss.counters = tried.signals && tried.finishes ? counters : nullptr;
      CHECK(cudaMemsetAsync(counters, 0, sizeof *counters, stream));
      if (tried.finishes) CHECK(LaunchShardBegin(device->facts(), LG_BF16, what, stream));
      const double ms = timed([&] { enqueue(tried.entry, what); });
      if (round >= 2) tried.ms.push_back(ms);
    }
  }
  const auto median = [](std::vector<double> ms) {
    std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
    return ms[ms.size() / 2];
  };
  const double pass = median(copies) / 2;  // the shard read, or written, once
  std::printf("%lld x %lld bf16, copy %.0f GB/s\n\n| kernel: warps x rows x CTAs, vectors in flight | ms | over the copy |\n| --- | --- | --- |\n",
              static_cast<long long>(kRows), static_cast<long long>(columns), static_cast<double>(bytes) / pass / 1e6);
  for (const Tried& tried : all) {
    const double ms = median(tried.ms);
    std::printf("| %s | %.4f | %.3f |\n", tried.name.c_str(), ms, ms / ((tried.finishes ? 2 : 1) * pass));
  }
  for (void* memory :
       {static_cast<void*>(source), static_cast<void*>(work), static_cast<void*>(targets), static_cast<void*>(gathered), static_cast<void*>(counters)})
    CHECK(cudaFree(memory));
}

}  // namespace
}  // namespace lossgauge::cuda

int main(int argc, char** argv) {
  lossgauge::cuda::Run(argc > 1 ? std::atoll(argv[1]) : 65536, argc > 2 ? std::atoi(argv[2]) : 9);
  return 0;
}
