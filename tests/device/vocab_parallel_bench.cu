// Times the vocabulary-parallel loss on as many GPUs as there are, up to two, a thread each, against the memory limit of the same run: each logit of the shard
// read twice and written once (6 bytes in 16 bits) over the bandwidth of a large device-to-device copy, and a bare all-gather of as many bytes. 8192 x 131072
// bf16 over all ranks, in place. Beside it the form of the textbook, whose losses are compared with ours. Everything is taken in turns; medians over the rounds of
// the slowest rank.
//
//   vocab_parallel_bench [ROUNDS]
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/device/bench_check.h"
#include "tests/device/textbook_vocab_parallel.cuh"
#include "tests/device/vocab_parallel_group.h"

namespace {

using lossgauge::test::Meeting;

constexpr std::int64_t kRows = 8192, kVocab = 131072;

__global__ void FillNormal(__nv_bfloat16* to, std::size_t n, unsigned long long seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const float u = (static_cast<float>(x >> 40) + 1.f) / 16777217.f, angle = static_cast<float>(x & 0xffffff) / 8388608.f;
    to[i] = __float2bfloat16(sqrtf(-2.f * logf(u)) * cospif(angle));
  }
}
__global__ void Spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

enum What { kCopy, kGather, kBegin, kFinish, kTextbook, kWhole, kWholeWithGauge, kOneRank, kWhats };

using AllGather = int (*)(const void*, void*, std::size_t, int, void*, cudaStream_t);
using AllReduce = int (*)(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
constexpr int kNcclFloat32 = 7, kNcclSum = 0, kNcclMax = 2;

struct Rank {
  __nv_bfloat16 *source = nullptr, *work = nullptr;
  std::int64_t* targets = nullptr;
  float *losses = nullptr, *textbook = nullptr;  // textbook: max, sums, losses
  std::vector<float> textbook_losses = std::vector<float>(kRows);
  unsigned char* gathered = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  lg_gauge* gauge = nullptr;
  lg_vocab_parallel_args args;
  std::size_t bytes = 0;
  std::vector<double> ms[kWhats];
};

void SetUp(Rank& r, int rank, int ranks) {
  const std::int64_t columns = kVocab / ranks;
  r.bytes = static_cast<std::size_t>(kRows * columns * 2);
  std::int64_t contribution = 0;
  CHECK_LG(lg_vocab_parallel_contribution_bytes(kRows, &contribution));
  CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&r.source, r.bytes));
  CHECK(cudaMalloc(&r.work, r.bytes));
  CHECK(cudaMalloc(&r.targets, kRows * 8));
  CHECK(cudaMalloc(&r.losses, kRows * 4));
  CHECK(cudaMalloc(&r.textbook, 4 * kRows * 4));
  CHECK(cudaMalloc(&r.gathered, static_cast<std::size_t>(ranks * contribution)));
  CHECK(cudaEventCreate(&r.begin));
  CHECK(cudaEventCreate(&r.end));
  FillNormal<<<2048, 256, 0, r.stream>>>(r.source, r.bytes / 2, static_cast<unsigned>(rank));
  std::vector<std::int64_t> targets(kRows);
  for (std::int64_t i = 0; i < kRows; ++i) targets[static_cast<std::size_t>(i)] = i * 2654435761 % kVocab;
  CHECK(cudaMemcpy(r.targets, targets.data(), kRows * 8, cudaMemcpyHostToDevice));
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  const std::string run = "vocab_parallel_bench_" + std::to_string(ranks);
  options.run = run.c_str();
  options.attempt = "1";
  options.rank = rank;
  options.world_size = ranks;
  options.tp = {ranks, rank};
  options.vocab_size = kVocab;
  options.shard_offset = rank * columns;
  options.shard_columns = columns;
  options.ring_dir = "/dev/shm/lossgauge-bench-rings";
  CHECK_LG(lg_gauge_open(&options, &r.gauge));
  lg_vocab_parallel_args_init(&r.args);
  r.args.group_size = ranks;
  r.args.group_index = rank;
  r.args.vocab_size = kVocab;
  r.args.shard_offset = rank * columns;
  lg_cross_entropy_args& loss = r.args.loss;
  loss.logits = loss.grad_logits = r.work;
  loss.logits_dtype = LG_BF16;
  loss.rows = kRows;
  loss.columns = columns;
  loss.targets = r.targets;
  loss.target_dtype = LG_INT64;
  loss.denominator = static_cast<double>(kRows);
  loss.losses = r.losses;
  loss.stream = r.stream;
}

void Run(int ranks, int rounds, AllGather all_gather, AllReduce all_reduce) {
  const std::vector<void*> communicators = lossgauge::test::OpenCommunicators(ranks);
  if (std::find(communicators.begin(), communicators.end(), nullptr) != communicators.end()) {
    std::fprintf(stderr, "no communicator: %s\n", lg_last_error());
    std::exit(1);
  }
  std::vector<std::unique_ptr<Rank>> all(static_cast<std::size_t>(ranks));
  for (auto& rank : all) rank = std::make_unique<Rank>();
  Meeting meeting(ranks);
  lossgauge::test::OnEachRank(ranks, [&](int rank) {
    Rank& r = *all[static_cast<std::size_t>(rank)];
    void* const communicator = communicators[static_cast<std::size_t>(rank)];
    SetUp(r, rank, ranks);
    const std::size_t contribution = 128 + 64 * static_cast<std::size_t>(kRows);
    unsigned char* const own = r.gathered + static_cast<std::size_t>(rank) * contribution;
    const auto whole = [&] { CHECK_LG(lg_vocab_parallel_cross_entropy(&r.args, communicator, r.gathered)); };
    lg_cross_entropy_args one_rank = r.args.loss;
    const std::function<void()> work[kWhats] = {
        [&] { CHECK(cudaMemcpyAsync(r.work, r.source, r.bytes, cudaMemcpyDeviceToDevice, r.stream)); },
        [&] {
          if (all_gather(own, r.gathered, contribution / 8, 5, communicator, r.stream) != 0) std::exit(1);
        },
        [&] { CHECK_LG(lg_vocab_parallel_begin(&r.args, own)); },
        [&] { CHECK_LG(lg_vocab_parallel_finish(&r.args, r.gathered)); },
        [&] {
          const lossgauge::textbook::Shard shard{r.work,     r.targets,          kRows, kVocab / ranks, rank * (kVocab / ranks), static_cast<float>(kRows),
                                                 r.textbook, r.textbook + kRows, r.textbook + 3 * kRows};
          lossgauge::textbook::Enqueue(shard, r.stream, [&](float* memory, std::int64_t count, bool is_max) {
            if (all_reduce(memory, memory, static_cast<std::size_t>(count), kNcclFloat32, is_max ? kNcclMax : kNcclSum, communicator, r.stream) != 0) std::exit(1);
          });
          CHECK(cudaGetLastError());
        },
        whole,
        whole,
        [&] {
          if (ranks == 1) CHECK_LG(lg_cross_entropy(&one_rank));
        },
    };
    for (int round = 0; round < rounds + 3; ++round) {
      for (int what = 0; what < kWhats; ++what) {
        r.args.step = round;
        r.args.micro_batch = what < kWhole ? 0 : what;
        r.args.loss.gauge = what == kWholeWithGauge ? r.gauge : nullptr;
        // Finish follows begin and a gather of this round, as the logits stand.
        if (what == kBegin || what >= kTextbook) CHECK(cudaMemcpyAsync(r.work, r.source, r.bytes, cudaMemcpyDeviceToDevice, r.stream));
        if (what == kFinish) work[kGather]();
        CHECK(cudaStreamSynchronize(r.stream));
        meeting.Wait();
        Spin<<<1, 1, 0, r.stream>>>(200000);  // ranks begin together, within what the host takes to enqueue
        CHECK(cudaEventRecord(r.begin, r.stream));
        work[what]();
        CHECK(cudaEventRecord(r.end, r.stream));
        CHECK(cudaStreamSynchronize(r.stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, r.begin, r.end));
        if (round >= 3) r.ms[what].push_back(static_cast<double>(ms));
      }
    }
    std::vector<float> losses(static_cast<std::size_t>(kRows));
    CHECK(cudaMemcpy(losses.data(), r.losses, losses.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(r.textbook_losses.data(), r.textbook + 3 * kRows, losses.size() * 4, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const double ours = static_cast<double>(losses[i]), theirs = static_cast<double>(r.textbook_losses[i]);
      if (ours > 0 && std::fabs(ours - theirs) <= 1e-5 * theirs) continue;
      std::fprintf(stderr, "rank %d: loss %zu is %.9g, of the textbook's form %.9g\n", rank, i, ours, theirs);
      std::exit(1);
    }
    CHECK_LG(lg_gauge_close(r.gauge, nullptr));
    CHECK_LG(lg_communicator_close(communicator));
    for (void* p : {static_cast<void*>(r.source), static_cast<void*>(r.work), static_cast<void*>(r.targets), static_cast<void*>(r.losses), static_cast<void*>(r.textbook),
                    static_cast<void*>(r.gathered)}) {
      CHECK(cudaFree(p));
    }
  });
  double median[kWhats];
  for (int what = 0; what < kWhats; ++what) {
    std::vector<double> slowest;
    for (std::size_t round = 0; round < all[0]->ms[what].size(); ++round) {
      double ms = 0;
      for (const auto& rank : all) ms = std::max(ms, rank->ms[what][round]);
      slowest.push_back(ms);
    }
    std::nth_element(slowest.begin(), slowest.begin() + static_cast<std::ptrdiff_t>(slowest.size() / 2), slowest.end());
    median[what] = slowest[slowest.size() / 2];
  }
  const double pass = median[kCopy] / 2;  // the shard read, or written, once
  const double floor = 3 * pass + median[kGather];
  std::printf("| %d | %.0f | %.4f | %.4f (%.3f) | %.4f (%.3f) | %.4f | %.4f | %.4f | %.3f | %.3f | %.4f | %.2f | %s |\n", ranks,
              static_cast<double>(all[0]->bytes) / pass / 1e6, median[kGather], median[kBegin], median[kBegin] / pass, median[kFinish],
              median[kFinish] / (2 * pass), median[kWhole], median[kWholeWithGauge], floor, median[kWhole] / floor, median[kWholeWithGauge] / floor, median[kTextbook],
              median[kTextbook] / median[kWhole],
              ranks == 1 ? (std::to_string(median[kOneRank]).substr(0, 6)).c_str() : "");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const int devices = lossgauge::test::Devices();
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  const auto all_gather = library != nullptr ? reinterpret_cast<AllGather>(dlsym(library, "ncclAllGather")) : nullptr;
  const auto all_reduce = library != nullptr ? reinterpret_cast<AllReduce>(dlsym(library, "ncclAllReduce")) : nullptr;
  if (devices == 0 || all_gather == nullptr || all_reduce == nullptr) {
    std::fprintf(stderr, "no device or no libnccl.so.2\n");
    return 1;
  }
  std::printf(
      "%lld x %lld bf16 over all ranks, gradient in place; ms, medians of the slowest rank over %d rounds; in brackets over the same bytes at copy speed\n\n",
      static_cast<long long>(kRows), static_cast<long long>(kVocab), rounds);
  std::printf(
      "| ranks | copy GB/s | all-gather | begin | finish | begin, gather, finish | with a gauge | floor | of the floor | with a gauge | textbook | of ours | lg_cross_entropy |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (int ranks = 1; ranks <= std::min(devices, 2); ++ranks) Run(ranks, rounds, all_gather, all_reduce);
  return 0;
}
