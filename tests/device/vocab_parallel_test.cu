// The vocabulary-parallel loss over NCCL, a GPU for each of two ranks: one device's loss and gradient, the same bits on both ranks and in every run, graphs,
// records, and a rank that does not come. Skipped where there is one GPU, or no NCCL.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/device/vocab_parallel_group.h"
#include "tests/kernels/ring_telemetry.h"

namespace lossgauge::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 600, kVocab = 20011, kCuts[kRanks + 1] = {0, 12000, kVocab}, kPadding = 5;

#define EXPECT_CUDA(x) EXPECT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define EXPECT_LG(x) EXPECT_EQ((x), LG_OK) << lg_last_error()

// The same logits, whichever columns are asked for: about normal, and the target leads.
__global__ void Fill(__nv_bfloat16* to, std::int64_t rows, std::int64_t first, std::int64_t columns, std::int64_t width, const std::int64_t* targets,
                     unsigned seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < rows * width;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = i / width, column = i % width;
    unsigned long long x = static_cast<unsigned long long>(row * 1000003 + first + column + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    float sum = -2.f;
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((x >> (16 * part)) & 0xffff) / 65536.f;
    const float z = 1.7f * sum + (first + column == targets[row] ? 9.f : 0.f);
    to[i] = __float2bfloat16(column < columns ? z : NAN);
  }
}

// Columns [first, first + columns) of the problem on the current device, padding behind them.
struct Tensors {
  std::int64_t first, columns, width;
  __nv_bfloat16 *logits = nullptr, *grad = nullptr;
  std::int64_t* targets = nullptr;
  float *losses = nullptr, *log_z = nullptr, *loss = nullptr;
  unsigned char* gathered = nullptr;
  cudaStream_t stream = nullptr;

  Tensors(std::int64_t f, std::int64_t c, std::int64_t padding) : first(f), columns(c), width(c + padding) {
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const auto bytes = static_cast<std::size_t>(kRows * width * 2);
    std::int64_t contribution = 0;
    EXPECT_LG(lg_vocab_parallel_contribution_bytes(kRows, &contribution));
    EXPECT_CUDA(cudaMalloc(&logits, bytes));
    EXPECT_CUDA(cudaMalloc(&grad, bytes));
    EXPECT_CUDA(cudaMalloc(&targets, kRows * 8));
    EXPECT_CUDA(cudaMalloc(&losses, kRows * 4));
    EXPECT_CUDA(cudaMalloc(&log_z, kRows * 4));
    EXPECT_CUDA(cudaMalloc(&loss, 4));
    EXPECT_CUDA(cudaMalloc(&gathered, static_cast<std::size_t>(kRanks * contribution)));
    EXPECT_CUDA(cudaMemset(gathered, 0, static_cast<std::size_t>(kRanks * contribution)));
    std::vector<std::int64_t> t(kRows);
    for (std::int64_t i = 0; i < kRows; ++i) t[static_cast<std::size_t>(i)] = i % 7 == 5 ? -100 : static_cast<std::int64_t>(i * 2654435761u % kVocab);
    EXPECT_CUDA(cudaMemcpy(targets, t.data(), kRows * 8, cudaMemcpyHostToDevice));
    Refill(1);
    EXPECT_CUDA(cudaStreamSynchronize(stream));
  }
  ~Tensors() {
    for (void* p : {static_cast<void*>(logits), static_cast<void*>(grad), static_cast<void*>(targets), static_cast<void*>(losses), static_cast<void*>(log_z),
                    static_cast<void*>(loss), static_cast<void*>(gathered)}) {
      (void)cudaFree(p);
    }
    (void)cudaStreamDestroy(stream);
  }
  void Refill(unsigned seed) { Fill<<<512, 256, 0, stream>>>(logits, kRows, first, columns, width, targets, seed); }

  lg_cross_entropy_args LossArgs() const {
    lg_cross_entropy_args args;
    lg_cross_entropy_args_init(&args);
    args.logits = logits;
    args.logits_dtype = LG_BF16;
    args.rows = kRows;
    args.columns = width;
    args.vocab_size = columns;
    args.targets = targets;
    args.target_dtype = LG_INT64;
    args.z_loss_weight = 1e-4;
    args.label_smoothing = 0.1;
    args.losses = losses;
    args.log_z = log_z;
    args.loss = loss;
    args.grad_logits = grad;
    args.stream = stream;
    return args;
  }
  lg_vocab_parallel_args Args(int rank, int ranks = kRanks) const {
    lg_vocab_parallel_args args;
    lg_vocab_parallel_args_init(&args);
    args.group_size = ranks;
    args.group_index = rank;
    args.vocab_size = kVocab;
    args.shard_offset = first;
    args.shard_columns = columns;
    args.loss = LossArgs();
    return args;
  }
};

// What a call has left, on the host.
struct Result {
  float loss = 0;
  std::vector<float> losses = std::vector<float>(kRows), log_z = std::vector<float>(kRows);
  std::vector<std::uint16_t> grad;  // [rows, columns]
  void Take(const Tensors& from) {
    EXPECT_CUDA(cudaStreamSynchronize(from.stream));
    EXPECT_CUDA(cudaMemcpy(&loss, from.loss, 4, cudaMemcpyDeviceToHost));
    EXPECT_CUDA(cudaMemcpy(losses.data(), from.losses, kRows * 4, cudaMemcpyDeviceToHost));
    EXPECT_CUDA(cudaMemcpy(log_z.data(), from.log_z, kRows * 4, cudaMemcpyDeviceToHost));
    std::vector<std::uint16_t> padded(static_cast<std::size_t>(kRows * from.width));
    EXPECT_CUDA(cudaMemcpy(padded.data(), from.grad, padded.size() * 2, cudaMemcpyDeviceToHost));
    grad.clear();
    for (std::int64_t i = 0; i < kRows; ++i) {
      const auto row = padded.begin() + i * from.width;
      grad.insert(grad.end(), row, row + from.columns);
      for (std::int64_t j = from.columns; j < from.width; ++j) EXPECT_EQ(row[j], 0) << "padding";
    }
  }
  bool SameBits(const Result& other) const { return SameLosses(other) && grad == other.grad; }
  bool SameLosses(const Result& other) const {
    return std::memcmp(&loss, &other.loss, 4) == 0 && std::memcmp(losses.data(), other.losses.data(), kRows * 4) == 0 &&
           std::memcmp(log_z.data(), other.log_z.data(), kRows * 4) == 0;
  }
};
double FromBf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return static_cast<double>(value);
}

class VocabParallelOverNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (Devices() < kRanks) GTEST_SKIP() << "fewer than two GPUs";
    communicators_ = OpenCommunicators(kRanks);
    for (void* communicator : communicators_) {
      if (communicator == nullptr) GTEST_SKIP() << "no NCCL: " << lg_last_error();
    }
  }
  void TearDown() override {
    if (communicators_.size() != kRanks) return;
    OnEachRank(kRanks, [&](int rank) {
      if (void* open = communicators_[static_cast<std::size_t>(rank)]) EXPECT_LG(lg_communicator_close(open));
    });
  }
  void* communicator(int rank) const { return communicators_[static_cast<std::size_t>(rank)]; }
  static std::unique_ptr<Tensors> ShardOf(int rank) { return std::make_unique<Tensors>(kCuts[rank], kCuts[rank + 1] - kCuts[rank], rank == 1 ? kPadding : 0); }

  std::vector<void*> communicators_;
};

TEST_F(VocabParallelOverNccl, LossAndGradientAreThoseOfOneDeviceInTheSameBitsEachRun) {
  Result right;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const Tensors whole(0, kVocab, 0);
    const lg_cross_entropy_args args = whole.LossArgs();
    ASSERT_EQ(lg_cross_entropy(&args), LG_OK) << lg_last_error();
    right.Take(whole);
  }
  Result of[kRanks];
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    lg_vocab_parallel_args args = shard->Args(rank);
    for (int run = 0; run < 20; ++run) {
      args.step = run;
      EXPECT_CUDA(cudaMemsetAsync(shard->grad, 0xff, static_cast<std::size_t>(kRows * shard->width * 2), shard->stream));
      EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));
      Result now;
      now.Take(*shard);
      if (run == 0) of[rank] = now;
      EXPECT_TRUE(now.SameBits(of[rank])) << "run " << run << ", rank " << rank;
    }
  });
  EXPECT_TRUE(of[0].SameLosses(of[1]));
  EXPECT_NEAR(of[0].loss, right.loss, 1e-6 * right.loss);
  for (std::size_t i = 0; i < static_cast<std::size_t>(kRows); ++i) {
    EXPECT_NEAR(of[0].losses[i], right.losses[i], 2e-6 * std::fabs(right.losses[i])) << i;
    EXPECT_NEAR(of[0].log_z[i], right.log_z[i], 2e-6 * std::fabs(right.log_z[i])) << i;
  }
  std::size_t differing = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::int64_t columns = kCuts[rank + 1] - kCuts[rank];
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::uint16_t got = of[rank].grad[static_cast<std::size_t>(i * columns + j)],
                            exact = right.grad[static_cast<std::size_t>(i * kVocab + kCuts[rank] + j)];
        if (got == exact) continue;
        ++differing;
        ASSERT_NEAR(FromBf16(got), FromBf16(exact), 0.0079 * std::fabs(FromBf16(exact)) + 1e-9) << "rank " << rank << ", row " << i << ", column " << j;
      }
    }
  }
  EXPECT_LT(differing, right.grad.size() / 100) << "more than roundings";
}

TEST_F(VocabParallelOverNccl, ACapturedCallGivesItsBitsAtEveryReplay) {
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    const lg_vocab_parallel_args args = shard->Args(rank);
    EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));
    Result first, other;
    first.Take(*shard);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaStreamBeginCapture(shard->stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));
    EXPECT_CUDA(cudaStreamEndCapture(shard->stream, &graph));
    EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 6; ++replay) {
      shard->Refill(replay % 2 == 0 ? 2 : 1);
      EXPECT_CUDA(cudaGraphLaunch(executable, shard->stream));
      Result now;
      now.Take(*shard);
      if (replay == 0) other = now;
      EXPECT_TRUE(now.SameBits(replay % 2 == 0 ? other : first)) << "replay " << replay << ", rank " << rank;
    }
    EXPECT_FALSE(first.SameBits(other));
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
  });
}

TEST_F(VocabParallelOverNccl, RecordsOfBothRanksAddUp) {
  lg_step_record records[kRanks];
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    TelemetryOptions options;
    options.vocab_size = kVocab;
    options.ranks = kRanks;
    options.rank = rank;
    options.shard_offset = shard->first;
    options.shard_columns = shard->columns;
    RingTelemetry telemetry(options, [] { EXPECT_CUDA(cudaDeviceSynchronize()); });
    lg_vocab_parallel_args args = shard->Args(rank);
    args.loss.gauge = telemetry.gauge();
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      args.micro_batch = micro_batch;
      args.loss.position_base = micro_batch * kRows;
      EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));
    }
    EXPECT_CUDA(cudaStreamSynchronize(shard->stream));
    records[rank] = telemetry.Publish();
  });
  const lg_step_record &a = records[0], &b = records[1];
  EXPECT_EQ(a.micro_batches, 3u);
  EXPECT_EQ(a.unmasked_tokens, 3u * (kRows - (kRows + 1) / 7));
  EXPECT_EQ(a.finite_tokens, a.unmasked_tokens);
  const auto finite = static_cast<double>(a.finite_tokens);
  EXPECT_NEAR(lg_fixed128_to_double(lg_fixed128_add(a.probability_mass, b.probability_mass)), finite, 0.25 + 2e-6 * finite);
  EXPECT_EQ(a.target_hits + b.target_hits, a.finite_tokens);
  EXPECT_GT(a.target_hits, 0u);
  EXPECT_GT(b.target_hits, 0u);
  for (const lg_step_record& record : records) {
    EXPECT_EQ(record.mass_error_rows, 0u);
    EXPECT_EQ(record.exchange_bad_rows, 0u);
    EXPECT_NE(record.present & LG_HAS_EXCHANGE, 0u);
    EXPECT_EQ(record.finite_tokens, a.finite_tokens);
    EXPECT_EQ(record.correct_tokens, a.correct_tokens);
    EXPECT_EQ(record.mask_fingerprint, a.mask_fingerprint);
    EXPECT_EQ(record.target_fingerprint, a.target_fingerprint);
    EXPECT_EQ(lg_fixed128_compare(record.nll_sum, a.nll_sum), 0);
    EXPECT_EQ(lg_fixed128_compare(record.log_z_sum, a.log_z_sum), 0);
  }
}

TEST_F(VocabParallelOverNccl, ARankThatDoesNotComeHangsNoCallAndLeavesNoLoss) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  const auto abort = library != nullptr ? reinterpret_cast<int (*)(void*)>(dlsym(library, "ncclCommAbort")) : nullptr;
  ASSERT_NE(abort, nullptr);
  Meeting both(kRanks);
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    lg_vocab_parallel_args args = shard->Args(rank);
    EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));  // connects; and leaves what is stale at the next call
    Result healthy;
    healthy.Take(*shard);
    EXPECT_FALSE(std::isnan(healthy.loss));
    both.Wait();
    if (rank == 0) {
      args.step = 1;
      EXPECT_LG(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_EQ(cudaStreamQuery(shard->stream), cudaErrorNotReady) << "it did not wait for the other rank";
    }
    both.Wait();
    EXPECT_EQ(abort(communicator(rank)), 0);
    communicators_[static_cast<std::size_t>(rank)] = nullptr;
    if (rank == 0) {
      Result late;
      late.Take(*shard);
      EXPECT_TRUE(std::isnan(late.loss));
      EXPECT_TRUE(std::isnan(late.losses[0]));
      EXPECT_TRUE(std::isnan(FromBf16(late.grad[0])));
    }
  });
}

// Where sizes differ NCCL would wait, or mix the contributions up.
TEST_F(VocabParallelOverNccl, TheFirstCallNamesInWhatRanksContradictEachOther) {
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    const lg_vocab_parallel_args right = shard->Args(rank);
    const auto refused = [&](const char* name, const std::function<void(lg_vocab_parallel_args*)>& spoil) {
      lg_vocab_parallel_args args = right;
      spoil(&args);
      EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered), LG_FAILED_PRECONDITION) << name;
      EXPECT_THAT(lg_last_error(), HasSubstr("lg_vocab_parallel_cross_entropy: " + std::string(name) + ": expected"));
    };
    refused("rows", [rank](lg_vocab_parallel_args* a) { a->loss.rows = kRows - 100 * rank; });
    refused("label_smoothing", [rank](lg_vocab_parallel_args* a) { a->loss.label_smoothing = 0.1 + 0.1 * rank; });
    refused("step", [rank](lg_vocab_parallel_args* a) { a->step = rank; });
    refused("shard_offset", [rank](lg_vocab_parallel_args* a) { a->shard_offset = rank == 0 ? 0 : kCuts[1] - 1; });
    EXPECT_LG(lg_vocab_parallel_cross_entropy(&right, communicator(rank), shard->gathered));
    Result result;
    result.Take(*shard);
    EXPECT_FALSE(std::isnan(result.loss));
    lg_vocab_parallel_args later = right;  // is not asked, and proves itself on the device
    later.loss.label_smoothing = 0.1 + 0.1 * rank;
    EXPECT_LG(lg_vocab_parallel_cross_entropy(&later, communicator(rank), shard->gathered));
    result.Take(*shard);
    EXPECT_TRUE(std::isnan(result.loss));
  });
}

TEST_F(VocabParallelOverNccl, ACommunicatorOfAnotherPlaceIsRefusedByName) {
  OnEachRank(kRanks, [&](int rank) {
    const auto shard = ShardOf(rank);
    const lg_vocab_parallel_args args = shard->Args(1 - rank);
    EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, communicator(rank), shard->gathered), LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), AllOf(HasSubstr("lg_vocab_parallel_cross_entropy: communicator: expected this rank to be group_index"), HasSubstr("got")));
  });
}

TEST(VocabParallelOverNcclAlone, AGroupOfOneAndWhatIsRefused) {
  if (Devices() < 1) GTEST_SKIP() << "no CUDA device";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const std::vector<void*> communicators = OpenCommunicators(1);
  if (communicators[0] == nullptr) GTEST_SKIP() << "no NCCL: " << lg_last_error();
  const Tensors whole(0, kVocab, 0);
  const lg_cross_entropy_args plain = whole.LossArgs();
  ASSERT_EQ(lg_cross_entropy(&plain), LG_OK) << lg_last_error();
  Result right, got;
  right.Take(whole);
  lg_vocab_parallel_args args = whole.Args(0, 1);
  ASSERT_EQ(lg_vocab_parallel_cross_entropy(&args, communicators[0], whole.gathered), LG_OK) << lg_last_error();
  got.Take(whole);
  EXPECT_NEAR(got.loss, right.loss, 1e-6 * right.loss);

  EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, nullptr, whole.gathered), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("communicator: expected an ncclComm_t, got NULL"));
  args = whole.Args(0, 2);
  EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, communicators[0], whole.gathered), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("communicator: expected one of group_size ranks, 2, got 1"));
  args = whole.Args(0, 1);
  args.gathered_stride = 1 << 20;
  EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, communicators[0], whole.gathered), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("gathered_stride"));
  std::vector<unsigned char> host(1 << 20);
  args = whole.Args(0, 1);
  EXPECT_EQ(lg_vocab_parallel_cross_entropy(&args, communicators[0], host.data()), LG_INVALID_ARGUMENT);
  EXPECT_LG(lg_communicator_close(communicators[0]));
}

}  // namespace
}  // namespace lossgauge::test
