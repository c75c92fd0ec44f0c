// The sidecar as a process, SIGKILLed 100 times at random moments while a million records flow.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/clock.h"
#include "server/state/run_book.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"

namespace lossgauge {
namespace {

using testing::FakeProducer;

TEST(Sidecar, KilledAHundredTimesItsTotalsAreStillTheProducers) {
  constexpr std::uint32_t kRanks = 4;
  constexpr std::int64_t kSteps = 250'000;
  constexpr int kKills = 100;
  ScratchDirectory directory;
  const std::string rings = directory.path() + "/rings", state_dir = directory.path() + "/state", log = directory.path() + "/log";
  std::filesystem::create_directory(rings);

  std::vector<std::unique_ptr<FakeProducer>> producers;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    testing::FakeProducerOptions options;
    options.directory = rings;
    options.run = "run";
    options.rank = rank;
    options.world_size = kRanks;
    producers.push_back(std::make_unique<FakeProducer>(options));
  }
  std::atomic<bool> done{false};
  std::thread job([&] {
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (auto& producer : producers) producer->PublishStep(step);
      if (step % 100 == 0) {
        for (auto& producer : producers) producer->Beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(12));
      }
    }
    done = true;
  });

  const std::vector<std::string> arguments = {"sidecar",           "--ring_dir=" + rings,  "--state_dir=" + state_dir,
                                              "--http_listen=none", "--grpc_listen=none", "--log_level=error"};
  std::mt19937_64 random(20260101);
  for (int kill = 0; kill < kKills; ++kill) {
    testing::DaemonProcess sidecar(arguments, log);
    // From "not even open" to "well under way".
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
    sidecar.Signal(SIGKILL);
    EXPECT_EQ(sidecar.Wait(), 128 + SIGKILL) << sidecar.Log();
  }
  testing::DaemonProcess last(arguments, log);
  job.join();
  for (auto& producer : producers) {
    producer->Close();
    producer->Die();
  }
  std::this_thread::sleep_for(std::chrono::seconds(3));
  last.Signal(SIGTERM);
  EXPECT_EQ(last.Wait(), 0) << last.Log();

  state::StoreOptions options;
  options.directory = state_dir;
  auto store = state::Store::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->open_note(), "");
  testing::FakeJudges judges;
  state::SystemClock clock;
  state::RunBook book({}, &judges, store->get(), clock.NowNs());
  ASSERT_TRUE(book.Load(clock.NowNs()).ok());
  const auto run = state::FindRun(*book.BuildSnapshot(clock.NowNs(), {}), "run");
  ASSERT_NE(run, nullptr);
  ASSERT_EQ(run->ranks.size(), kRanks);
  for (const auto& rank : run->ranks) {
    const FakeProducer& producer = *producers[rank.rank];
    EXPECT_EQ(rank.totals.steps, producer.last().total_steps);
    EXPECT_EQ(rank.totals.finite_tokens, producer.last().total_finite_tokens);
    EXPECT_EQ(lg_fixed128_compare(rank.totals.nll_sum, producer.last().total_nll_sum), 0);
    std::uint64_t lost = 0;
    for (const std::uint64_t records : rank.totals.records_lost) lost += records;
    EXPECT_EQ(rank.totals.records_read + lost, producer.published() + producer.published_events());
    std::printf("rank %u: %llu read, %llu lost to overruns while the sidecar was down or behind\n", rank.rank,
                static_cast<unsigned long long>(rank.totals.records_read), static_cast<unsigned long long>(lost));
  }
  // No step twice, sequence numbers without a gap.
  auto history = (*store)->reader();
  std::uint64_t sequence = 0;
  std::int64_t step = -1;
  for (;;) {
    state::StepQuery query;
    query.run = "run";
    query.after_sequence = sequence;
    query.limit = 10'000;
    const auto page = history->ReadSteps(query);
    ASSERT_TRUE(page.ok()) << page.status();
    if (page->empty()) break;
    for (const auto& summary : *page) {
      ASSERT_EQ(summary.sequence, sequence + 1);
      ASSERT_GT(summary.step, step);
      sequence = summary.sequence;
      step = summary.step;
    }
  }
  EXPECT_EQ(step, kSteps - 1);
  std::printf("%llu of %lld steps in history\n", static_cast<unsigned long long>(sequence), static_cast<long long>(kSteps));
}

}  // namespace
}  // namespace lossgauge
