// The vocabulary-parallel loss of real processes with a collective in shared memory: the single-device result on every rank, the same bits on every rank and
// run, and an error on the survivors when a rank dies in the exchange.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"
#include "tests/kernels/shared_memory_gather.h"
#include "tests/kernels/vocab_parallel_linear_ranks.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {
namespace {

constexpr std::int64_t kRows = 37, kVocab = 1003;
constexpr std::chrono::minutes kPatient{2};
constexpr std::chrono::milliseconds kImpatient{300};

Problem JobProblem(int dtype) {
  Problem problem = MakeProblem(Z(kRows, kVocab), Y(kRows, kVocab));
  problem.dtype = dtype;
  problem.label_smoothing = 0.1;
  problem.z_loss_weight = 1e-4;
  problem.denominator = 30;
  problem.targets[4] = problem.targets[30] = -100;
  problem.targets[5] = 0;
  problem.targets[6] = kVocab - 1;
  problem.logits[3 * kVocab + 700] = std::nan("");  // of one shard
  return problem;
}

// Runs `body` in a process for each rank and gives back their exit codes; 101 and up if a signal ended one.
std::vector<int> InProcesses(int ranks, const std::function<int(int rank)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(body(rank));
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 101 + WTERMSIG(status));
  }
  return codes;
}

constexpr int kDone = 0, kBeginFailed = 1, kGatherFailed = 2, kFinishFailed = 3;

// What a rank leaves for the parent: losses, log_z, loss, then its gradient.
struct Results {
  Results(int ranks, std::size_t gradient_bytes)
      : bytes_of_rank((2 * kRows + 1) * sizeof(float) + gradient_bytes), memory(bytes_of_rank * static_cast<std::size_t>(ranks)) {}
  void Put(int rank, const RankCall& call) const {
    unsigned char* to = Of(rank);
    std::memcpy(to, call.losses.data(), kRows * sizeof(float));
    std::memcpy(to + kRows * sizeof(float), call.log_z.data(), kRows * sizeof(float));
    std::memcpy(to + 2 * kRows * sizeof(float), &call.loss, sizeof(float));
    std::memcpy(to + (2 * kRows + 1) * sizeof(float), call.grad.data(), call.grad.size());
  }
  void Take(int rank, RankCall* call) const {
    const unsigned char* from = Of(rank);
    std::memcpy(call->losses.data(), from, kRows * sizeof(float));
    std::memcpy(call->log_z.data(), from + kRows * sizeof(float), kRows * sizeof(float));
    std::memcpy(&call->loss, from + 2 * kRows * sizeof(float), sizeof(float));
    std::memcpy(call->grad.data(), from + (2 * kRows + 1) * sizeof(float), call->grad.size());
    call->code = LG_OK;
  }
  unsigned char* Of(int rank) const { return memory.data() + bytes_of_rank * static_cast<std::size_t>(rank); }

  std::size_t bytes_of_rank;
  SharedMemory memory;
};

int RunRank(RankCall& call, SharedMemoryGather& gather, int rank) {
  call.Begin();
  if (call.code != LG_OK) return kBeginFailed;
  ExchangeMemory gathered(call.contribution.bytes() * static_cast<std::size_t>(call.args.group_size));
  if (!gather.Run(rank, call.contribution.data(), call.contribution.bytes(), gathered.data()).empty()) return kGatherFailed;
  call.Finish(gathered);
  return call.code == LG_OK ? kDone : kFinishFailed;
}

class VocabParallelProcesses : public testing::TestWithParam<int> {};

TEST_P(VocabParallelProcesses, GiveTheResultOfOneDeviceWithTheSameBitsOnEveryRankAndRun) {
  const int count = GetParam();
  const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
  // One rank has only padding.
  std::vector<Shard> shards = EvenShards(kVocab, count - 1);
  shards.push_back({kVocab, 0, 5});
  for (const int dtype : {LG_FP32, LG_BF16, LG_FP16}) {
    const Problem problem = JobProblem(dtype);
    const Outcome single = TestedBackend().Run(problem);
    std::vector<std::vector<unsigned char>> first_run;
    for (int run = 0; run < 2; ++run) {
      Ranks ranks(problem, shards);
      std::size_t gradient_bytes = 0;
      for (const RankCall& call : ranks.calls) gradient_bytes = std::max(gradient_bytes, call.grad.size());
      const Results results(count, gradient_bytes);
      SharedMemoryGather gather(count, bytes, kPatient);
      const std::vector<int> codes = InProcesses(count, [&](int rank) {
        RankCall& call = ranks.calls[static_cast<std::size_t>(rank)];
        call.args.loss.threads = 1 + run;
        const int code = RunRank(call, gather, rank);
        results.Put(rank, call);
        return code;
      });
      EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(count), kDone));
      for (int rank = 0; rank < count; ++rank) {
        const unsigned char* of_rank = results.Of(rank);
        const std::vector<unsigned char> left(of_rank, of_rank + results.bytes_of_rank);
        if (run == 0) {
          first_run.push_back(left);
        } else {
          EXPECT_EQ(left, first_run[static_cast<std::size_t>(rank)]) << "rank " << rank << " has other bits in another run";
        }
        results.Take(rank, &ranks.calls[static_cast<std::size_t>(rank)]);
      }
      ranks.ExpectLikeOracle();
      for (std::size_t i = 0; i < kRows; ++i) {
        if (std::isnan(single.losses[i])) continue;
        EXPECT_NEAR(ranks.calls[0].losses[i], single.losses[i], 1e-6f * std::fabs(single.losses[i]));
      }
    }
  }
}

TEST_P(VocabParallelProcesses, WhoDiesInTheExchangeLeavesAnErrorOnTheOthers) {
  const int count = GetParam();
  const auto bytes = static_cast<std::size_t>(ContributionBytes(kRows));
  Ranks ranks(JobProblem(LG_FP32), EvenShards(kVocab, count));
  SharedMemoryGather gather(count, bytes, kImpatient);
  const int dead = count - 1;
  const std::vector<int> codes = InProcesses(count, [&](int rank) {
    RankCall& call = ranks.calls[static_cast<std::size_t>(rank)];
    if (rank == dead) {
      call.Begin();
      kill(getpid(), SIGKILL);
    }
    const int code = RunRank(call, gather, rank);
    return call.Unwritten() ? code : 50;
  });
  std::vector<int> right(static_cast<std::size_t>(count), kGatherFailed);
  right.back() = 101 + SIGKILL;
  EXPECT_EQ(codes, right);
}

TEST_P(VocabParallelProcesses, ManyStepsFollowOneAnother) {
  const int count = GetParam();
  const Problem problem = JobProblem(LG_BF16);
  Ranks ranks(problem, EvenShards(kVocab, count));
  SharedMemoryGather gather(count, static_cast<std::size_t>(ContributionBytes(kRows)), kPatient);
  const std::vector<int> codes = InProcesses(count, [&](int rank) {
    RankCall& call = ranks.calls[static_cast<std::size_t>(rank)];
    std::vector<float> first;
    for (int step = 0; step < 50; ++step) {
      call.args.step = step;
      if (const int code = RunRank(call, gather, rank); code != kDone) return code;
      if (step == 0) first = call.losses;
      if (std::memcmp(first.data(), call.losses.data(), first.size() * sizeof(float)) != 0) return 60;
    }
    return kDone;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(count), kDone));
}

// The same with a head that is cut, whose chunks each have an exchange.
struct Seat {
  SharedMemoryGather* gather;
  int rank;
};
int GatherChunk(void* context, const void* contribution, void* gathered, std::int64_t bytes, void*) {
  const Seat& seat = *static_cast<Seat*>(context);
  return seat.gather->Run(seat.rank, contribution, static_cast<std::size_t>(bytes), gathered).empty() ? LG_OK : LG_UNAVAILABLE;
}

LinearProblem HeadProblem(int dtype) {
  constexpr std::int64_t kWidth = 24;
  LinearProblem problem = MakeLinearProblem(X(kRows, kWidth), W(kVocab, kWidth), JobProblem(dtype).targets);
  problem.dtype = dtype;
  problem.chunk_rows = 10;
  problem.loss.label_smoothing = 0.1;
  problem.loss.z_loss_weight = 1e-4;
  return problem;
}

TEST_P(VocabParallelProcesses, ShareAHeadWithTheSameBitsOnEveryRankAndRun) {
  const int count = GetParam();
  for (const int dtype : {LG_FP32, LG_BF16, LG_FP16}) {
    LinearRanks ranks(HeadProblem(dtype), EvenShards(kVocab, count));
    const LinearOutcome single = TestedBackend().RunLinear(HeadProblem(dtype));
    const auto outputs = [](LinearRankCall& call) {
      return std::vector<std::pair<void*, std::size_t>>{{call.losses.data(), call.losses.size() * sizeof(float)},  {call.log_z.data(), call.log_z.size() * sizeof(float)},
                                                        {&call.loss, sizeof(float)},                               {call.grad_hidden.bytes.data(), call.grad_hidden.bytes.size()},
                                                        {call.grad_weight.bytes.data(), call.grad_weight.bytes.size()}};
    };
    std::size_t bytes_of_rank = 0;
    for (const auto& output : outputs(*ranks.calls.back())) bytes_of_rank += output.second + 4096;
    std::vector<unsigned char> first_run;
    for (int run = 0; run < 2; ++run) {
      const SharedMemory left(bytes_of_rank * static_cast<std::size_t>(count));
      SharedMemoryGather gather(count, static_cast<std::size_t>(ContributionBytes(10)), kPatient);
      const std::vector<int> codes = InProcesses(count, [&](int rank) {
        LinearRankCall& call = *ranks.calls[static_cast<std::size_t>(rank)];
        Seat seat{&gather, rank};
        call.args.exchange = GatherChunk;
        call.args.exchange_context = &seat;
        call.linear.loss.threads = 1 + run;
        call.Run();
        unsigned char* to = left.data() + bytes_of_rank * static_cast<std::size_t>(rank);
        for (const auto& [from, bytes] : outputs(call)) std::memcpy(to, from, bytes), to += bytes;
        return call.code;
      });
      EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(count), LG_OK));
      const std::vector<unsigned char> all(left.data(), left.data() + bytes_of_rank * static_cast<std::size_t>(count));
      if (run == 0) first_run = all;
      EXPECT_EQ(all, first_run) << "another run has other bits";
      for (int rank = 0; rank < count; ++rank) {
        const unsigned char* from = left.data() + bytes_of_rank * static_cast<std::size_t>(rank);
        LinearRankCall& call = *ranks.calls[static_cast<std::size_t>(rank)];
        for (const auto& [to, bytes] : outputs(call)) std::memcpy(to, from, bytes), from += bytes;
        call.code = LG_OK;
      }
    }
    ranks.ExpectLikeOracle();
    for (std::size_t i = 0; i < kRows; ++i) EXPECT_NEAR(ranks.calls[0]->losses[i], single.losses[i], 1e-6f * std::fabs(single.losses[i]));
  }
}

TEST_P(VocabParallelProcesses, WhoDiesBetweenTwoChunksLeavesAnErrorOnTheOthers) {
  const int count = GetParam();
  LinearRanks ranks(HeadProblem(LG_FP32), EvenShards(kVocab, count));
  SharedMemoryGather gather(count, static_cast<std::size_t>(ContributionBytes(10)), kImpatient);
  const std::vector<int> codes = InProcesses(count, [&](int rank) {
    LinearRankCall& call = *ranks.calls[static_cast<std::size_t>(rank)];
    struct Mortal : Seat {
      int left;
    } seat{{&gather, rank}, rank == count - 1 ? 1 : 1000};
    call.args.exchange = [](void* context, const void* contribution, void* gathered, std::int64_t bytes, void* stream) {
      if (static_cast<Mortal*>(context)->left-- == 0) kill(getpid(), SIGKILL);
      return GatherChunk(static_cast<Seat*>(static_cast<Mortal*>(context)), contribution, gathered, bytes, stream);
    };
    call.args.exchange_context = &seat;
    call.Run();
    return call.loss == RankCall::kUnwritten ? call.code : 50;
  });
  std::vector<int> right(static_cast<std::size_t>(count), LG_UNAVAILABLE);
  right.back() = 101 + SIGKILL;
  EXPECT_EQ(codes, right);
}

INSTANTIATE_TEST_SUITE_P(Groups, VocabParallelProcesses, testing::Values(2, 3, 4, 8), [](const auto& each) { return std::to_string(each.param); });

}  // namespace
}  // namespace lossgauge::test
