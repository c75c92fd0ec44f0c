// The counters as threads see them: order never shows, nothing is lost or counted twice, no launch is split between two steps.
#include "kernels/host/counter_block.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

LaunchCounters Launch(double nll, std::int64_t position, float logit) {
  LaunchCounters launch;
  launch.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_MASS | LG_HAS_LOGIT_GRAD;
  launch.tokens = 2;
  launch.unmasked_tokens = launch.finite_tokens = 1;
  launch.nll_sum = lg_fixed128_from_double(nll);
  launch.log_z_sum = lg_fixed128_from_double(-nll);
  launch.log_z_max = static_cast<float>(-nll);
  launch.max_abs_logit = logit;
  launch.worst_logit_position = position;
  launch.worst_logit_column = position % 7;
  launch.worst_row_nll = static_cast<float>(nll);
  launch.worst_row_position = position;
  launch.worst_row_target = 3 * position;
  launch.denominator = 4;
  return launch;
}

TEST(CounterBlock, FoldGivesWhatWasAddedAndThenNothing) {
  CounterBlock block;
  block.Add(Launch(2.5, 11, 7));
  lg_step_record record{};
  ASSERT_TRUE(block.Fold(&record));
  EXPECT_EQ(record.tokens, 2u);
  EXPECT_EQ(lg_fixed128_to_double(record.nll_sum), 2.5);
  EXPECT_EQ(lg_fixed128_to_double(record.log_z_sum), -2.5);
  EXPECT_EQ(record.log_z_max, -2.5);
  EXPECT_EQ(record.worst_row_target, 33);
  EXPECT_EQ(record.worst_logit_column, 4);
  EXPECT_EQ(record.denominator_min, 4.0);
  EXPECT_FALSE(block.Fold(&record));
  EXPECT_EQ(record.tokens, 0u);
}

TEST(CounterBlock, BadRowsOfAnExchangeAddUpAndTheWorstLaunchNamesTheSender) {
  CounterBlock block;
  for (const std::uint64_t rows : {3, 9, 0, 9, 2}) {
    LaunchCounters launch = Launch(1, 0, 1);
    launch.present |= LG_HAS_EXCHANGE;
    launch.exchange_bad_rows = launch.exchange_worst_rows = rows;
    launch.exchange_bad_sender = 70000 - rows;
    block.Add(launch);
  }
  lg_step_record record{};
  block.Fold(&record);
  EXPECT_NE(record.present & LG_HAS_EXCHANGE, 0u);
  EXPECT_EQ(record.exchange_bad_rows, 23u);
  EXPECT_EQ(record.exchange_bad_sender, 69991u);
  block.Add(Launch(1, 0, 1));
  record = {};
  block.Fold(&record);
  EXPECT_EQ(record.exchange_bad_rows, 0u);
  EXPECT_EQ(record.exchange_bad_sender, 0u);
  EXPECT_EQ(record.present & LG_HAS_EXCHANGE, 0u);
}

TEST(CounterBlock, CarriesAndBorrowsCrossTheWords) {
  CounterBlock block;
  LaunchCounters launch;
  launch.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE;
  double sum = 0;
  for (const double term : {0.75, 0.75, -3.25, 1e6, -0.5, -1e6, 2.0}) {
    launch.nll_sum = lg_fixed128_from_double(term);
    block.Add(launch);
    sum += term;
  }
  lg_step_record record{};
  block.Fold(&record);
  EXPECT_EQ(lg_fixed128_to_double(record.nll_sum), sum);
}

TEST(CounterBlock, TiesGoToTheLowestPositionInAnyOrder) {
  for (const auto& order : {std::vector<std::int64_t>{5, 3, 9}, {9, 5, 3}, {3, 9, 5}}) {
    CounterBlock block;
    LaunchCounters merged;
    for (const std::int64_t position : order) {
      block.Add(Launch(1.5, position, 7));
      Merge(Launch(1.5, position, 7), &merged);
    }
    lg_step_record record{};
    block.Fold(&record);
    EXPECT_EQ(record.worst_row_position, 3);
    EXPECT_EQ(record.worst_logit_position, 3);
    EXPECT_EQ(merged.worst_row_position, 3);
    EXPECT_EQ(merged.worst_logit_position, 3);
  }
}

TEST(CounterBlock, ResetForgets) {
  CounterBlock block;
  block.Add(Launch(1, 1, 1));
  block.Reset();
  lg_step_record record{};
  EXPECT_FALSE(block.Fold(&record));
}

TEST(CounterBlock, ATermThatALaunchLacksIsAbsentUnlessTheLaunchHadNoTokens) {
  CounterBlock block;
  LaunchCounters without_mass = Launch(1, 1, 1);
  without_mass.present &= ~static_cast<std::uint64_t>(LG_HAS_MASS);
  LaunchCounters empty;
  empty.present = LG_HAS_LOSS;
  lg_step_record record{};
  block.Add(Launch(1, 1, 1));
  block.Add(empty);
  block.Fold(&record);
  EXPECT_NE(record.present & LG_HAS_MASS, 0u);
  record = {};
  block.Add(Launch(1, 1, 1));
  block.Add(without_mass);
  block.Fold(&record);
  EXPECT_EQ(record.present & LG_HAS_MASS, 0u);
  EXPECT_NE(record.present & LG_HAS_LOSS, 0u);
}

TEST(CounterBlock, ManyThreadsAndAFolderLoseNothingAndSplitNothing) {
  CounterBlock block;
  constexpr int kThreads = 4, kLaunches = 3000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kLaunches; ++i) block.Add(Launch(0.75, t * kLaunches + i, static_cast<float>(i % 5)));
      running.fetch_sub(1);
    });
  }
  std::uint64_t tokens = 0, launches = 0;
  lg_fixed128 nll{};
  const auto fold = [&] {
    lg_step_record record{};
    block.Fold(&record);
    // Whole launches only: each has two tokens, one of them finite, 0.75 nats.
    ASSERT_EQ(record.tokens, 2 * record.micro_batches);
    ASSERT_EQ(record.finite_tokens, record.micro_batches);
    ASSERT_EQ(lg_fixed128_to_double(record.nll_sum), 0.75 * static_cast<double>(record.micro_batches));
    if (record.micro_batches != 0) {
      ASSERT_EQ(record.worst_row_target, 3 * record.worst_row_position);
      ASSERT_EQ(record.worst_logit_column, record.worst_logit_position % 7);
    }
    tokens += record.tokens;
    launches += record.micro_batches;
    nll = lg_fixed128_add(nll, record.nll_sum);
  };
  while (running.load() != 0) {
    fold();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  fold();
  EXPECT_EQ(launches, static_cast<std::uint64_t>(kThreads * kLaunches));
  EXPECT_EQ(tokens, 2 * launches);
  EXPECT_EQ(lg_fixed128_to_double(nll), 0.75 * kThreads * kLaunches);
}

}  // namespace
}  // namespace lossgauge
