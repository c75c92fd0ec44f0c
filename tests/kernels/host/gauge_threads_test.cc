// Gauges and threads: the code that ThreadSanitizer watches (label tsan).
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/host/heartbeat.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {
namespace {

void InThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(GaugeThreads, SixtyFourOpenPublishAndCloseAtOnce) {
  ScratchDirectory scratch;
  std::atomic<int> on{0};
  InThreads(64, [&](int i) {
    lg_gauge_options options = Options(scratch.path());
    options.world_size = 64;
    options.rank = i;
    lg_gauge* gauge = nullptr;
    if (lg_gauge_open(&options, &gauge) == LG_OK) on.fetch_add(1);
    for (int step = 0; step < 10; ++step) lg_gauge_publish(gauge, nullptr);
    lg_gauge_close(gauge, nullptr);
  });
  EXPECT_EQ(on.load(), 64);
  EXPECT_EQ(StepRings(scratch.path()).size(), 64u);
}

TEST(GaugeThreads, SixtyFourOfOneNameLeaveOneWinner) {
  ScratchDirectory scratch;
  std::vector<lg_gauge*> gauges(64);
  std::atomic<int> on{0}, refused{0};
  InThreads(64, [&](int i) {
    const lg_gauge_options options = Options(scratch.path());
    const int code = lg_gauge_open(&options, &gauges[static_cast<std::size_t>(i)]);
    (code == LG_OK ? on : refused).fetch_add(1);
    EXPECT_TRUE(code == LG_OK || code == LG_ALREADY_EXISTS) << lg_last_error();
  });
  for (lg_gauge* gauge : gauges) lg_gauge_close(gauge, nullptr);
  EXPECT_EQ(on.load(), 1);
  EXPECT_EQ(refused.load(), 63);
}

TEST(GaugeThreads, LossCallsFromManyAddUpWhileOnePublishes) {
  ScratchDirectory scratch;
  const lg_gauge_options options = Options(scratch.path());
  lg_gauge* gauge = nullptr;
  ASSERT_EQ(lg_gauge_open(&options, &gauge), LG_OK);
  const std::string path = State(gauge).steps_path;
  std::atomic<bool> done{false};
  std::thread publisher([&] {
    while (!done.load()) {
      lg_gauge_publish(gauge, nullptr);
      std::this_thread::yield();
    }
    lg_gauge_publish(gauge, nullptr);
  });
  constexpr int kThreads = 4, kCalls = 2000;
  InThreads(kThreads, [&](int i) {
    const lg_observation observation = Observation(0.25, 2, 1);
    for (int call = 0; call < kCalls; ++call) {
      lg_gauge_observe(gauge, &observation);
      if (i == 0 && call % 100 == 0) lg_gauge_note(gauge, call, "from a loss thread");
    }
  });
  done.store(true);
  publisher.join();
  lg_gauge_close(gauge, nullptr);
  const auto steps = RingFile(path).Records<lg_step_record>();
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().total_tokens, std::uint64_t{2 * kThreads * kCalls});
  EXPECT_EQ(lg_fixed128_to_double(steps.back().total_nll_sum), 0.25 * kThreads * kCalls);
}

TEST(Heartbeat, BeatsUntilItIsStopped) {
  std::int64_t first = 0, second = 0;
  Heartbeat heartbeat;
  ASSERT_TRUE(heartbeat.Start(&first, &second, 1000000));
  const std::int64_t at_start = __atomic_load_n(&first, __ATOMIC_ACQUIRE);
  EXPECT_GT(at_start, 0);
  while (__atomic_load_n(&first, __ATOMIC_ACQUIRE) == at_start || __atomic_load_n(&second, __ATOMIC_ACQUIRE) == at_start) {
    std::this_thread::yield();
  }
  heartbeat.Stop();
  const std::int64_t at_end = first;
  heartbeat.Stop();
  EXPECT_EQ(first, at_end);
}

TEST(Heartbeat, TakesNoSignalsOfTheJob) {
  std::int64_t word = 0;
  Heartbeat heartbeat;
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_TRUE(heartbeat.Start(&word, nullptr));
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < SIGRTMIN; ++signal) EXPECT_EQ(::sigismember(&before, signal), ::sigismember(&after, signal));
  // The thread's own mask, as the kernel shows it.
  std::string blocked;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name_file(task.path() / "comm");
    std::string name;
    std::getline(name_file, name);
    if (name != "lossgauge-beat") continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("SigBlk:", 0) == 0) blocked = line.substr(8);
    }
  }
  if (!blocked.empty()) {  // the thread names itself a moment after it was made
    const unsigned long long mask = std::stoull(blocked, nullptr, 16);
    EXPECT_TRUE((mask >> (SIGINT - 1)) & 1);
    EXPECT_TRUE((mask >> (SIGTERM - 1)) & 1);
    EXPECT_TRUE((mask >> (SIGUSR1 - 1)) & 1);
  }
}

}  // namespace
}  // namespace lossgauge
