// Linear cross-entropy over NCCL, the head cut among one and two GPUs: one device's loss and gradients, the same bits on all ranks and in every run, graphs, records.
// Skipped where there is no NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/device/linear_tensors.cuh"
#include "tests/device/vocab_parallel_group.h"
#include "tests/kernels/ring_telemetry.h"

namespace lossgauge::test {
namespace {

constexpr std::int64_t kRows = 700, kWidth = 256, kVocab = 20010;

#define EXPECT_LG(x) EXPECT_EQ((x), LG_OK) << lg_last_error()

bool IsMasked(std::int64_t row) { return row % 7 == 5; }
std::int64_t FirstOf(int rank, int ranks) { return rank == 0 ? 0 : rank == ranks ? kVocab : 12000; }

float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
double ToDouble(float x) { return static_cast<double>(x); }

// Norm of a - b over that of b.
template <class T, class Convert>
double Difference(const std::vector<T>& a, const std::vector<T>& b, const Convert& convert) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = static_cast<double>(convert(a[i])), y = static_cast<double>(convert(b[i]));
    difference += (x - y) * (x - y);
    whole += y * y;
  }
  return std::sqrt(difference / whole);
}

// One rank: the tensors of the whole head, of which it uses its part.
struct RankAtWork {
  const LinearTensors& tensors;
  const int rank, ranks;
  void* const communicator;
  cudaStream_t stream = nullptr;
  lg_linear_cross_entropy_args linear;
  lg_vocab_parallel_linear_args args;

  RankAtWork(const LinearTensors& whole, int index, int count, void* over) : tensors(whole), rank(index), ranks(count), communicator(over) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const std::int64_t first = FirstOf(rank, ranks);
    linear = Whole();
    linear.columns = FirstOf(rank + 1, ranks) - first;
    linear.weight = tensors.weight + first * kWidth;
    linear.bias = tensors.bias + first;
    linear.grad_weight = tensors.grad_weight + first * kWidth;
    linear.grad_bias = tensors.grad_bias + first;
    lg_vocab_parallel_linear_args_init(&args);
    args.group_size = ranks;
    args.group_index = rank;
    args.vocab_size = kVocab;
    args.shard_offset = first;
    args.communicator = communicator;
    args.reduce_grad_hidden = 1;
    args.linear = &linear;
  }
  ~RankAtWork() { (void)cudaStreamDestroy(stream); }
  lg_linear_cross_entropy_args Whole() const {
    lg_linear_cross_entropy_args whole = tensors.Args(stream, 128);
    whole.loss.z_loss_weight = 1e-4;
    whole.loss.label_smoothing = 0.1;
    return whole;
  }
  void Wait() const { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << cudaGetErrorString(cudaGetLastError()); }
};

// work(rank at work) on each of 1, then of 2 GPUs if there are.
void OnGroups(const std::function<void(RankAtWork&)>& work) {
  if (Devices() < 1) GTEST_SKIP() << "no CUDA device";
  for (int ranks = 1; ranks <= std::min(2, Devices()); ++ranks) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const std::vector<void*> communicators = OpenCommunicators(ranks);
    for (void* communicator : communicators) {
      if (communicator == nullptr) GTEST_SKIP() << "no NCCL: " << lg_last_error();
    }
    OnEachRank(ranks, [&](int rank) {
      LinearTensors tensors(kRows, kWidth, kVocab, 3);
      tensors.Mask(IsMasked);
      {
        RankAtWork at(tensors, rank, ranks, communicators[static_cast<std::size_t>(rank)]);
        work(at);
        at.Wait();
      }
      EXPECT_LG(lg_communicator_close(communicators[static_cast<std::size_t>(rank)]));
    });
  }
}

TEST(VocabParallelLinearOverNccl, LossAndGradientsAreThoseOfOneDeviceInTheSameBitsEachRun) {
  std::vector<float> losses_of_rank[2];
  OnGroups([&](RankAtWork& at) {
    const LinearTensors& t = at.tensors;
    const lg_linear_cross_entropy_args whole = at.Whole();
    t.Clear();
    EXPECT_LG(lg_linear_cross_entropy(&whole));
    at.Wait();
    const auto losses = t.losses.Read(), loss = t.loss.Read(), grad_weight = t.grad_weight.Read(), grad_bias = t.grad_bias.Read();
    const auto grad_hidden = t.grad_hidden.Read();
    std::vector<unsigned char> first;
    for (int run = 0; run < 6; ++run) {
      t.Clear();
      at.args.step = run;
      EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
      at.Wait();
      const std::vector<unsigned char> now = t.Results();
      if (run == 0) first = now;
      EXPECT_TRUE(now == first) << "run " << run;
    }
    EXPECT_NEAR(t.loss.Read()[0], loss[0], 2e-6 * ToDouble(loss[0]));
    EXPECT_LT(Difference(t.losses.Read(), losses, ToDouble), 2e-6);
    EXPECT_LT(Difference(t.grad_hidden.Read(), grad_hidden, ToFloat), at.ranks == 1 ? 1e-3 : 6e-3) << "each rank rounds its part to bf16";
    const auto own = [&](const std::vector<float>& all, std::int64_t width) {
      return std::vector<float>(all.begin() + at.args.shard_offset * width, all.begin() + (at.args.shard_offset + at.linear.columns) * width);
    };
    EXPECT_LT(Difference(own(t.grad_weight.Read(), kWidth), own(grad_weight, kWidth), ToDouble), 1e-3);
    EXPECT_LT(Difference(own(t.grad_bias.Read(), 1), own(grad_bias, 1), ToDouble), 1e-3);
    losses_of_rank[at.rank] = t.losses.Read();
  });
  if (Devices() >= 2) EXPECT_EQ(losses_of_rank[0], losses_of_rank[1]);
}

TEST(VocabParallelLinearOverNccl, ChunksOfOtherSizesAreNamedInTheFirstCall) {
  OnGroups([](RankAtWork& at) {
    at.linear.chunk_rows = 128 + 64 * at.rank;
    const int code = lg_vocab_parallel_linear_cross_entropy(&at.args);
    if (at.ranks == 1) return;
    EXPECT_EQ(code, LG_FAILED_PRECONDITION);
    EXPECT_THAT(lg_last_error(), testing::HasSubstr("lg_vocab_parallel_linear_cross_entropy: chunk_rows: expected the same on all ranks of the group"));
    at.linear.chunk_rows = 128;
    EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
  });
}

TEST(VocabParallelLinearOverNccl, ACapturedCallGivesItsBitsAtEveryReplay) {
  OnGroups([](RankAtWork& at) {
    const LinearTensors& t = at.tensors;
    EXPECT_LG(lg_vocab_parallel_linear_prepare(&at.args));
    EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
    at.Wait();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
    EXPECT_EQ(cudaStreamEndCapture(at.stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (unsigned seed = 5; seed < 8; ++seed) {
      t.Refill(seed);
      t.Clear();
      EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
      at.Wait();
      const std::vector<unsigned char> direct = t.Results();
      t.Clear();
      EXPECT_EQ(cudaGraphLaunch(executable, at.stream), cudaSuccess);
      at.Wait();
      EXPECT_TRUE(t.Results() == direct) << "seed " << seed;
    }
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
  });
}

TEST(VocabParallelLinearOverNccl, RecordsOfTheRanksAddUp) {
  lg_step_record records[2];
  int count = 0;
  OnGroups([&](RankAtWork& at) {
    TelemetryOptions options;
    options.vocab_size = kVocab;
    options.ranks = at.ranks;
    options.rank = at.rank;
    options.shard_offset = at.args.shard_offset;
    options.shard_columns = at.linear.columns;
    RingTelemetry telemetry(options, [] { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); });
    at.linear.loss.gauge = telemetry.gauge();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      at.args.micro_batch = micro_batch;
      at.linear.accumulate = micro_batch;
      EXPECT_LG(lg_vocab_parallel_linear_cross_entropy(&at.args));
    }
    at.Wait();
    records[at.rank] = telemetry.Publish();
    count = at.ranks;
  });
  if (count == 0) GTEST_SKIP();
  std::uint64_t live = 0, hits = 0;
  for (std::int64_t row = 0; row < kRows; ++row) live += !IsMasked(row);
  lg_fixed128 mass{};
  for (int rank = 0; rank < count; ++rank) {
    const lg_step_record& record = records[rank];
    EXPECT_EQ(record.micro_batches, 2u);
    EXPECT_EQ(record.tokens, 2u * kRows);
    EXPECT_EQ(record.finite_tokens, 2 * live);
    EXPECT_EQ(record.mass_error_rows, 0u);
    EXPECT_EQ(record.exchange_bad_rows, 0u);
    EXPECT_NE(record.present & LG_HAS_EXCHANGE, 0u);
    EXPECT_EQ(record.present & LG_HAS_HIDDEN_GRAD, count == 1 ? LG_HAS_HIDDEN_GRAD : 0u);
    EXPECT_EQ(record.mask_fingerprint, records[0].mask_fingerprint);
    EXPECT_EQ(lg_fixed128_compare(record.nll_sum, records[0].nll_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.log_z_sum, records[0].log_z_sum), 0);
    hits += record.target_hits;
    mass = lg_fixed128_add(mass, record.probability_mass);
  }
  EXPECT_EQ(hits, 2 * live);
  EXPECT_NEAR(lg_fixed128_to_double(mass), 2.0 * static_cast<double>(live), 0.25);
}

}  // namespace
}  // namespace lossgauge::test
