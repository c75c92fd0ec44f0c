// Loss calls from several threads on one gauge, threads inside a call, and calls in a forked child.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/linear_backend.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

TEST(Threads, SeveralThreadsMayCallOnOneGauge) {
  const auto telemetry = TestedBackend().OpenTelemetry({997, {}});
  Problem problem = MakeProblem(Z(4, 997), Y(4, 997));
  problem.telemetry = telemetry.get();
  TestedBackend().Run(problem);
  const lg_step_record once = telemetry->Publish();
  constexpr int kThreads = 4, kCalls = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) TestedBackend().Run(problem);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const lg_step_record all = telemetry->Publish();
  lg_fixed128 nll{}, mass{};
  for (int i = 0; i < kThreads * kCalls; ++i) {
    nll = lg_fixed128_add(nll, once.nll_sum);
    mass = lg_fixed128_add(mass, once.probability_mass);
  }
  EXPECT_EQ(all.micro_batches, static_cast<std::uint64_t>(kThreads * kCalls));
  EXPECT_EQ(lg_fixed128_compare(all.nll_sum, nll), 0);
  EXPECT_EQ(lg_fixed128_compare(all.probability_mass, mass), 0);
  EXPECT_EQ(all.mask_fingerprint, once.mask_fingerprint * kThreads * kCalls);
  EXPECT_EQ(all.worst_row_position, once.worst_row_position);
}

TEST(Threads, TheirNumberChangesNoBit) {
  for (const bool mapped : {false, true}) {
    Problem problem = MakeProblem(Z(37, 20011), Y(37, 20011));
    if (mapped) problem.logit_softcap = 6;
    problem.dtype = LG_BF16;
    const Observed one = RunObserved(problem);
    for (const int threads : {2, 3, 8}) {
      problem.threads = threads;
      const Observed many = RunObserved(problem);
      EXPECT_EQ(one.outcome.grad_bytes, many.outcome.grad_bytes);
      EXPECT_EQ(one.outcome.losses, many.outcome.losses);
      EXPECT_EQ(one.outcome.loss, many.outcome.loss);
      EXPECT_EQ(lg_fixed128_compare(one.record.nll_sum, many.record.nll_sum), 0);
      EXPECT_EQ(lg_fixed128_compare(one.record.logit_grad_sq_sum, many.record.logit_grad_sq_sum), 0);
      EXPECT_EQ(lg_fixed128_compare(one.record.probability_mass, many.record.probability_mass), 0);
      EXPECT_EQ(one.record.worst_logit_position, many.record.worst_logit_position);
      EXPECT_EQ(one.record.worst_logit_column, many.record.worst_logit_column);
    }
  }
}

TEST(Threads, TheirNumberChangesNoBitOfALinearHead) {
  for (const int dtype : {LG_FP32, LG_BF16}) {
    LinearProblem problem = MakeLinearProblem(X(70, 96), W(3001, 96), Y(70, 3001));
    problem.dtype = problem.head_grad_dtype = dtype;
    problem.chunk_rows = 30;
    problem.bias.assign(3001, 0.5);
    const LinearObserved one = RunLinearObserved(problem);
    ASSERT_EQ(one.outcome.code, LG_OK) << one.outcome.message;
    for (const int threads : {2, 3, 8}) {
      problem.loss.threads = threads;
      const LinearObserved many = RunLinearObserved(problem);
      EXPECT_EQ(one.outcome.grad_hidden_bytes, many.outcome.grad_hidden_bytes);
      EXPECT_EQ(one.outcome.grad_weight_bytes, many.outcome.grad_weight_bytes);
      EXPECT_EQ(one.outcome.grad_bias_bytes, many.outcome.grad_bias_bytes);
      EXPECT_EQ(one.outcome.losses, many.outcome.losses);
      EXPECT_EQ(lg_fixed128_compare(one.record.hidden_grad_sq_sum, many.record.hidden_grad_sq_sum), 0);
      EXPECT_EQ(lg_fixed128_compare(one.record.head_grad_sq_sum, many.record.head_grad_sq_sum), 0);
      EXPECT_EQ(lg_fixed128_compare(one.record.nll_sum, many.record.nll_sum), 0);
    }
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST(Threads, AForkedChildComputesTheSameBits) {
  Problem problem = MakeProblem(Z(32, 20011), Y(32, 20011));
  problem.threads = 3;
  const Outcome parent = TestedBackend().Run(problem);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Outcome outcome = TestedBackend().Run(problem);
    _exit(outcome.code == LG_OK && outcome.grad_bytes == parent.grad_bytes && outcome.losses == parent.losses ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace lossgauge::test
