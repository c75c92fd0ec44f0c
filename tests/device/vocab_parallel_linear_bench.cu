// Times linear cross-entropy over a head that is cut among as many GPUs as there are, up to two, a thread each, against the three plain products of one rank's
// shard with cuBLASLt's fastest algorithms and the bare exchanges of as many bytes. 8192 tokens, width 4096, vocabulary 128256, bf16, grad_weight in fp32.
// Everything is taken in turns and under load; medians over the rounds of the slowest rank. Products are taken on the first GPU alone.
//
//   vocab_parallel_linear_bench [ROUNDS]
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/device/bench_check.h"
#include "tests/device/linear_tensors.cuh"
#include "tests/device/plain_products.h"
#include "tests/device/vocab_parallel_group.h"

namespace lossgauge {
namespace {

using test::Meeting;

constexpr std::int64_t kRows = 8192, kWidth = 4096, kVocab = 128256;

enum What { kCall, kCallWithGauge, kCallSummed, kExchange, kWhats };
using AllGather = int (*)(const void*, void*, std::size_t, int, void*, cudaStream_t);

double Median(std::vector<double> ms) {
  std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
  return ms[ms.size() / 2];
}

// Median ms of `run`, `count` times on the stream, the first third left out.
double Block(cudaStream_t stream, int count, const std::function<void()>& run) {
  std::vector<cudaEvent_t> events(static_cast<std::size_t>(count) + 1);
  for (auto& event : events) CHECK(cudaEventCreate(&event));
  CHECK(cudaEventRecord(events[0], stream));
  for (int i = 0; i < count; ++i) {
    run();
    CHECK(cudaEventRecord(events[static_cast<std::size_t>(i) + 1], stream));
  }
  CHECK(cudaEventSynchronize(events.back()));
  std::vector<double> times;
  for (int i = count / 3; i < count; ++i) {
    float ms;
    CHECK(cudaEventElapsedTime(&ms, events[static_cast<std::size_t>(i)], events[static_cast<std::size_t>(i) + 1]));
    times.push_back(static_cast<double>(ms));
  }
  for (auto& event : events) CHECK(cudaEventDestroy(event));
  return Median(times);
}

void Run(int ranks, int rounds, AllGather all_gather) {
  const std::vector<void*> communicators = test::OpenCommunicators(ranks);
  if (std::find(communicators.begin(), communicators.end(), nullptr) != communicators.end()) {
    std::fprintf(stderr, "no communicator: %s\n", lg_last_error());
    std::exit(1);
  }
  const std::int64_t columns = kVocab / ranks;
  std::vector<std::vector<double>> of_ranks[kWhats];
  for (auto& what : of_ranks) what.resize(static_cast<std::size_t>(ranks));
  std::vector<double> plain_ms;
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  Meeting meeting(ranks);
  test::OnEachRank(ranks, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const LinearTensors tensors(kRows, kWidth, columns, 1);
    std::vector<std::int64_t> targets;
    for (std::int64_t i = 0; i < kRows; ++i) targets.push_back((i * 2654435761 + 12345) % kVocab);
    tensors.targets.Write(targets);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    lg_gauge_options options;
    lg_gauge_options_init(&options);
    const std::string run = "vocab_parallel_linear_bench_" + std::to_string(ranks);
    options.run = run.c_str();
    options.attempt = "1";
    options.rank = rank;
    options.world_size = ranks;
    options.tp = {ranks, rank};
    options.vocab_size = kVocab;
    options.shard_offset = rank * columns;
    options.shard_columns = columns;
    options.ring_dir = "/dev/shm/lossgauge-bench-rings";
    lg_gauge* gauge = nullptr;
    CHECK_LG(lg_gauge_open(&options, &gauge));
    lg_linear_cross_entropy_args linear = tensors.Args(stream, 0);
    linear.bias = linear.grad_bias = nullptr;
    linear.loss.losses = linear.loss.log_z = nullptr;
    linear.loss.denominator = static_cast<double>(kRows);
    lg_vocab_parallel_linear_args args;
    lg_vocab_parallel_linear_args_init(&args);
    args.group_size = ranks;
    args.group_index = rank;
    args.vocab_size = kVocab;
    args.shard_offset = rank * columns;
    args.communicator = communicators[index];
    args.linear = &linear;
    lg_linear_plan own{};
    own.struct_size = sizeof own;
    CHECK_LG(lg_vocab_parallel_linear_plan(&args, &own));
    CHECK_LG(lg_vocab_parallel_linear_prepare(&args));
    if (rank == 0) plan = own;
    std::int64_t bytes = 0;
    CHECK_LG(lg_vocab_parallel_contribution_bytes(own.chunk_rows, &bytes));
    const DeviceArray<unsigned char> gathered(static_cast<std::size_t>(bytes * ranks));
    std::unique_ptr<DeviceArray<__nv_bfloat16>> logits;
    std::vector<std::unique_ptr<PlainProduct>> products;
    if (rank == 0) {
      logits = std::make_unique<DeviceArray<__nv_bfloat16>>(LinearTensors::Size(kRows, columns));
      products.push_back(std::make_unique<PlainProduct>(CUBLAS_OP_T, CUBLAS_OP_N, columns, kRows, kWidth, false, tensors.weight, tensors.hidden, *logits));
      products.push_back(std::make_unique<PlainProduct>(CUBLAS_OP_N, CUBLAS_OP_N, kWidth, kRows, columns, false, tensors.weight, *logits, tensors.grad_hidden));
      products.push_back(std::make_unique<PlainProduct>(CUBLAS_OP_N, CUBLAS_OP_T, kWidth, columns, kRows, true, tensors.hidden, *logits, tensors.grad_weight));
    }
    std::int64_t step = 0;
    for (int round = 0; round < rounds + 1; ++round) {
      if (rank == 0) {
        const double ms = Block(nullptr, 24, [&] {
          for (const auto& product : products) product->Run();
        });
        if (round > 0) plain_ms.push_back(ms);
      }
      for (int what = 0; what < kWhats; ++what) {
        meeting.Wait();
        args.reduce_grad_hidden = what == kCallSummed ? 1 : 0;
        linear.loss.gauge = what == kCallWithGauge ? gauge : nullptr;
        const double ms = Block(stream, what == kExchange ? 60 : 24, [&] {
          if (what == kExchange) {
            for (std::int64_t chunk = 0; chunk < own.chunks; ++chunk) {
              if (all_gather(gathered + rank * bytes, gathered, static_cast<std::size_t>(bytes), 1, communicators[index], stream) != 0) std::exit(1);
            }
            return;
          }
          args.step = step++;
          CHECK_LG(lg_vocab_parallel_linear_cross_entropy(&args));
          if (what == kCallWithGauge) CHECK_LG(lg_gauge_publish(gauge, stream));
        });
        if (round > 0) of_ranks[what][index].push_back(ms);
      }
    }
    const float loss = tensors.loss.Read()[0];
    if (!(loss > 0)) std::fprintf(stderr, "rank %d: the loss is %g\n", rank, static_cast<double>(loss)), std::exit(1);
    CHECK_LG(lg_gauge_close(gauge, nullptr));
    CHECK(cudaStreamDestroy(stream));
    CHECK_LG(lg_communicator_close(communicators[index]));
  });
  double median[kWhats];
  for (int what = 0; what < kWhats; ++what) {
    std::vector<double> slowest;
    for (std::size_t round = 0; round < of_ranks[what][0].size(); ++round) {
      double ms = 0;
      for (const auto& rank : of_ranks[what]) ms = std::max(ms, rank[round]);
      slowest.push_back(ms);
    }
    median[what] = Median(slowest);
  }
  const double floor = Median(plain_ms) + median[kExchange];
  std::printf("| %d | %lld x %lld | %.3f | %.4f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f |\n", ranks, static_cast<long long>(plan.chunks),
              static_cast<long long>(plan.chunk_rows), Median(plain_ms), median[kExchange], median[kCall], median[kCall] / floor, median[kCallWithGauge],
              median[kCallWithGauge] / floor, median[kCallSummed], median[kCallSummed] / floor, static_cast<double>(plan.workspace_bytes) / 1e9);
  std::fflush(stdout);
}

}  // namespace
}  // namespace lossgauge

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3, devices = lossgauge::test::Devices();
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  const auto all_gather = library != nullptr ? reinterpret_cast<lossgauge::AllGather>(dlsym(library, "ncclAllGather")) : nullptr;
  if (devices == 0 || all_gather == nullptr) {
    std::fprintf(stderr, "no device or no libnccl.so.2\n");
    return 1;
  }
  std::printf("%lld x %lld, vocabulary %lld over all ranks, bf16; ms, medians over %d rounds; ratios to three products and exchanges\n\n",
              static_cast<long long>(lossgauge::kRows), static_cast<long long>(lossgauge::kWidth), static_cast<long long>(lossgauge::kVocab), rounds);
  std::printf("| ranks | chunks | three products of a shard | exchanges | call | ratio | with a gauge | ratio | grad_hidden summed | ratio | memory, GB |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (int ranks = 1; ranks <= std::min(devices, 2); ++ranks) lossgauge::Run(ranks, rounds, all_gather);
  return 0;
}
