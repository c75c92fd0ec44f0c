// The loop over real rings and a real store, in one process: restarts at every point, a store that cannot write, publication order.
#include "server/main/pipeline.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <random>
#include <set>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/ring_source.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/fake_producer.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::main {
namespace {

using testing::FakeProducer;

// A store that can be told to fail, and that says when it is written.
class FlakyStore final : public state::Store {
 public:
  explicit FlakyStore(std::unique_ptr<state::Store> store) : store_(std::move(store)) {}
  std::string open_note() const override { return store_->open_note(); }
  absl::Status Commit(const state::Transaction& transaction) override {
    ++commits;
    if (on_commit) on_commit();
    if (broken) return absl::ResourceExhaustedError("no space left on device");
    return store_->Commit(transaction);
  }
  absl::StatusOr<std::vector<state::CursorRow>> LoadCursors() override { return store_->LoadCursors(); }
  absl::StatusOr<std::vector<state::RunRow>> LoadRuns() override { return store_->LoadRuns(); }
  absl::StatusOr<std::optional<state::RunRow>> LoadRun(const std::string& run) override { return store_->LoadRun(run); }
  absl::StatusOr<std::uint64_t> CountLedger(const std::string& run) override { return store_->CountLedger(run); }
  absl::StatusOr<std::vector<state::LedgerEntry>> LoadLedger(const std::string& run) override { return store_->LoadLedger(run); }
  absl::StatusOr<bool> Prune(state::TimeNs now_ns) override { return store_->Prune(now_ns); }
  state::HistoryCounts history_counts() const override { return store_->history_counts(); }
  std::uint64_t bytes() const override { return store_->bytes(); }
  std::shared_ptr<state::HistoryReader> reader() override { return store_->reader(); }

  bool broken = false;
  int commits = 0;
  std::function<void()> on_commit;

 private:
  std::unique_ptr<state::Store> store_;
};

class PipelineTest : public ::testing::Test {
 protected:
  PipelineTest() {
    spdlog::set_level(spdlog::level::off);
    std::filesystem::create_directory(rings());
    Open();
  }
  std::string rings() const { return directory_.path() + "/rings"; }

  void Open() {
    state::StoreOptions options;
    options.directory = directory_.path() + "/state";
    auto store = state::Store::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<FlakyStore>(*std::move(store));
    book_ = std::make_unique<state::RunBook>(state::RunBookOptions{}, &judges_, store_.get(), clock_.NowNs());
    ASSERT_TRUE(book_->Load(clock_.NowNs()).ok());
    ingest::RingSourceOptions source_options;
    source_options.directories = {rings()};
    source_ = std::make_unique<ingest::RingSource>(source_options, &clock_);
    pipeline_ = std::make_unique<Pipeline>(options_, &clock_, book_.get(), store_.get(), &board_, &mailbox_,
                                           std::vector<state::RecordSource*>{source_.get()});
  }
  // As SIGKILL would: nothing is said, nothing is written.
  void Kill() {
    pipeline_.reset();
    source_.reset();
    book_.reset();
    store_.reset();
    judges_ = testing::FakeJudges();
  }
  void Cycle(double seconds = 0.11) {
    clock_.Advance(static_cast<std::int64_t>(seconds * 1e9));
    while (pipeline_->RunCycle() == 0) {
    }
  }
  std::unique_ptr<FakeProducer> Producer(std::uint32_t rank, std::uint32_t world, const std::string& run = "run") {
    testing::FakeProducerOptions options;
    options.directory = rings();
    options.run = run;
    options.rank = rank;
    options.world_size = world;
    return std::make_unique<FakeProducer>(options);
  }
  // Waits half a second for a step to settle, and has committed step 0.
  std::pair<std::unique_ptr<FakeProducer>, std::unique_ptr<FakeProducer>> OpenWithAWholeStepOfTwoRanks() {
    options_.settle_wait_ns = 500'000'000;
    Open();
    auto a = Producer(0, 2), b = Producer(1, 2);
    a->PublishStep(0);
    b->PublishStep(0);
    Cycle();
    Cycle();
    return {std::move(a), std::move(b)};
  }
  std::shared_ptr<const state::RunSnapshot> Run(const std::string& run = "run") { return state::FindRun(*board_.Get(), run); }
  std::vector<state::StepSummary> History(const std::string& run = "run") {
    state::StepQuery query;
    query.run = run;
    query.limit = 1'000'000;
    auto steps = store_->reader()->ReadSteps(query);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return *std::move(steps);
  }

  ScratchDirectory directory_;
  PipelineOptions options_;  // of the next Open
  testing::ManualClock clock_;
  testing::FakeJudges judges_;
  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::unique_ptr<FlakyStore> store_;
  std::unique_ptr<state::RunBook> book_;
  std::unique_ptr<ingest::RingSource> source_;
  std::unique_ptr<Pipeline> pipeline_;
};

TEST_F(PipelineTest, StepsReachSnapshotAndHistory) {
  auto producer = Producer(0, 1);
  producer->PublishSteps(0, 99);
  Cycle();
  ASSERT_NE(Run(), nullptr);
  EXPECT_EQ(Run()->last_step->step, 99);
  EXPECT_EQ(History().size(), 100u);
  EXPECT_EQ(board_.Get()->self.rings_attached, 1u);
}

TEST_F(PipelineTest, NothingIsPublishedBeforeItIsInTheStore) {
  auto producer = Producer(0, 1);
  store_->on_commit = [&] {
    const auto run = Run();
    const std::uint64_t published = run == nullptr ? 1 : run->next_sequence;
    EXPECT_LE(published, History().size() + 1);
  };
  for (int step = 0; step < 50; ++step) {
    producer->PublishStep(step);
    Cycle(0.02);
    const auto run = Run();
    if (run != nullptr && run->last_step != nullptr) {
      EXPECT_LE(run->last_step->sequence, History().size());
    }
  }
  EXPECT_GT(store_->commits, 10);
}

TEST_F(PipelineTest, TransactionsAreBatched) {
  auto producer = Producer(0, 1);
  Cycle();
  const int before = store_->commits;
  for (int step = 0; step < 100; ++step) {
    producer->PublishStep(step);
    Cycle(0.001);
  }
  EXPECT_LE(store_->commits - before, 8) << "at most one in 15 ms";
}

TEST_F(PipelineTest, AStepThatIsStillComingInIsNotCommittedForItself) {
  const auto [a, b] = OpenWithAWholeStepOfTwoRanks();
  ASSERT_EQ(Run()->last_step->step, 0);
  const int before = store_->commits;
  a->PublishStep(1);
  for (int i = 0; i < 4; ++i) Cycle();
  EXPECT_EQ(store_->commits, before) << "nothing of it would outlive a restart";
  EXPECT_EQ(Run()->totals.steps, 2u) << "and what is not written is not shown";
  b->PublishStep(1);
  Cycle(0.001);
  EXPECT_EQ(store_->commits, before + 1) << "the whole step waits for nothing";
  EXPECT_EQ(Run()->last_step->step, 1);
  EXPECT_EQ(Run()->totals.steps, 4u);
}

TEST_F(PipelineTest, AStepThatComesInSlowlyIsCommittedAllTheSame) {
  const auto [a, b] = OpenWithAWholeStepOfTwoRanks();
  a->PublishStep(1);
  Cycle(0.01);
  const int before = store_->commits;
  Cycle(0.49);
  EXPECT_EQ(store_->commits, before);
  Cycle(0.01);
  EXPECT_EQ(store_->commits, before + 1);
  EXPECT_EQ(Run()->totals.steps, 3u);
  Kill();
  Open();
  b->PublishStep(1);
  Cycle();
  Cycle();
  EXPECT_EQ(Run()->last_step->step, 1);
  EXPECT_EQ(Run()->totals.steps, 4u) << "the sample that waited is read again, and counted once";
}

TEST_F(PipelineTest, ACommitThatCostMuchIsFollowedByAPauseAndOneThatOnlyWaitedByAShortOne) {
  options_.commit_pause_factor = 10;
  Open();
  auto producer = Producer(0, 1);
  std::int64_t step = 0;
  const auto commits_after = [&](double seconds) {
    producer->PublishStep(step++);
    const int before = store_->commits;
    Cycle(seconds);
    return store_->commits - before;
  };
  (void)commits_after(1);
  const auto takes = [this](std::int64_t wall_ms, std::int64_t cpu_ms) {
    store_->on_commit = [=, this] {
      clock_.Advance(wall_ms * 1'000'000);
      clock_.Compute(cpu_ms * 1'000'000);
    };
  };
  takes(200, 5);
  EXPECT_EQ(commits_after(1), 1);
  takes(60, 50);
  EXPECT_EQ(commits_after(0.15), 0) << "twice 200 ms have not passed since it began";
  EXPECT_EQ(commits_after(0.06), 1);
  takes(0, 0);
  EXPECT_EQ(commits_after(0.41), 0) << "ten times 50 ms have not passed";
  EXPECT_EQ(commits_after(0.04), 1);
}

TEST_F(PipelineTest, ADrainThreadThatComputesForLongStepsBackAndNoOtherThread) {
  options_.nice = 3;
  const int ours = getpriority(PRIO_PROCESS, 0);
  const auto priority_of_drain = [this] {
    auto priority = std::make_shared<std::promise<int>>();  // the drain thread may still be in set_value when get returns
    pipeline_->Post([priority] { priority->set_value(getpriority(PRIO_PROCESS, 0)); });
    return priority->get_future().get();
  };
  auto producer = Producer(0, 1);
  producer->PublishStep(0);
  for (const std::int64_t cpu_ns : {options_.busy_cycle_ns, options_.busy_cycle_ns + 1}) {
    Kill();
    std::filesystem::remove_all(directory_.path() + "/state");
    Open();
    store_->on_commit = [this, cpu_ns] { clock_.Compute(cpu_ns); };
    pipeline_->Start();
    for (int i = 0; i < 3; ++i) (void)priority_of_drain();  // at the end of a cycle each
    EXPECT_EQ(priority_of_drain(), cpu_ns > options_.busy_cycle_ns ? std::min(ours + 3, 19) : ours);
    pipeline_->Stop(0);
    EXPECT_GT(store_->commits, 0);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), ours);
  }
}

TEST_F(PipelineTest, AStoreThatCannotWriteStopsNothingAndLosesNothingOnceItCan) {
  auto producer = Producer(0, 1);
  producer->PublishStep(0);
  Cycle();
  store_->broken = true;
  producer->PublishSteps(1, 9);
  Cycle(0.5);
  Cycle(0.5);
  EXPECT_EQ(Run()->last_step->step, 9) << "monitoring goes on";
  EXPECT_GT(board_.Get()->self.state_write_errors, 0u);
  EXPECT_EQ(History().size(), 1u);
  const int commits = store_->commits;
  for (int i = 0; i < 50; ++i) {
    producer->PublishStep(10 + i);
    Cycle(0.01);
  }
  EXPECT_LE(store_->commits - commits, 2) << "not tried at every cycle";
  store_->broken = false;
  Cycle(1.1);
  EXPECT_EQ(History().size(), 60u);
  Kill();
  Open();
  Cycle();
  EXPECT_EQ(Run()->totals.steps, 60u);
  EXPECT_EQ(History().size(), 60u);
}

// observer C9: kills between "read", "joined", "committed" and "published", with two ranks that are never in the same place.
TEST_F(PipelineTest, RestartsAtAnyPointLoseNothingAndCountNothingTwice) {
  std::mt19937_64 random(7);
  constexpr std::int64_t kSteps = 4000;
  auto a = Producer(0, 2), b = Producer(1, 2);
  std::int64_t next_a = 0, next_b = 0;
  std::uint64_t highest_seen = 0;
  int kills = 0;
  while (next_a < kSteps || next_b < kSteps) {
    for (auto n = random() % 40; n > 0 && next_a < kSteps && next_a < next_b + 60; --n) a->PublishStep(next_a++);
    for (auto n = random() % 40; n > 0 && next_b < kSteps && next_b < next_a + 60; --n) b->PublishStep(next_b++);
    clock_.Advance(static_cast<std::int64_t>(random() % 20) * 1'000'000);
    store_->broken = random() % 8 == 0;
    pipeline_->RunCycle();
    const bool could_write = !store_->broken;
    store_->broken = false;
    if (could_write && Run() != nullptr && Run()->last_step != nullptr) {
      highest_seen = std::max(highest_seen, Run()->last_step->sequence);
    }
    if (random() % 3 == 0) {
      Kill();
      options_.settle_wait_ns = random() % 2 == 0 ? 50'000'000 : 0;
      Open();
      ++kills;
      EXPECT_GE(History().size() + 1, 1u);
    }
  }
  for (int i = 0; i < 5; ++i) Cycle(1.1);
  EXPECT_GT(kills, 40);
  for (const auto& [rank, producer] : {std::pair{0, a.get()}, std::pair{1, b.get()}}) {
    const state::RankTotals& totals = Run()->ranks[static_cast<std::size_t>(rank)].totals;
    EXPECT_EQ(totals.steps, producer->last().total_steps);
    EXPECT_EQ(totals.finite_tokens, producer->last().total_finite_tokens);
    EXPECT_EQ(lg_fixed128_compare(totals.nll_sum, producer->last().total_nll_sum), 0);
    EXPECT_EQ(totals.records_read, producer->published());
    for (const std::uint64_t lost : totals.records_lost) EXPECT_EQ(lost, 0u);
  }
  const auto history = History();
  ASSERT_EQ(history.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t i = 0; i < history.size(); ++i) {
    ASSERT_EQ(history[i].sequence, i + 1);
    ASSERT_EQ(history[i].step, static_cast<std::int64_t>(i));
    ASSERT_TRUE(history[i].complete) << i;
  }
  EXPECT_EQ(judges_.told("run")->steps_known, static_cast<std::uint64_t>(kSteps));
}

TEST_F(PipelineTest, WhatAReaderHasSeenARestartDoesNotTakeBack) {
  auto producer = Producer(0, 1);
  std::uint64_t seen = 0;
  std::map<std::uint64_t, std::int64_t> step_of_sequence;
  for (int round = 0; round < 60; ++round) {
    producer->PublishSteps(round * 10, round * 10 + 9);
    clock_.Advance(6'000'000);
    pipeline_->RunCycle();
    if (const auto run = Run(); run != nullptr && run->last_step != nullptr) {
      EXPECT_GE(run->last_step->sequence, seen) << "a resume token never goes back";
      seen = run->last_step->sequence;
      for (const auto& chunk : run->recent_steps) {
        for (const auto& step : *chunk) {
          const auto [it, fresh] = step_of_sequence.emplace(step->sequence, step->step);
          EXPECT_EQ(it->second, step->step) << "a sequence number keeps its step";
        }
      }
    }
    if (round % 4 == 3) {
      Kill();
      Open();
    }
  }
}

TEST_F(PipelineTest, CountsAcrossARestartWhatTheRingNoLongerHeld) {
  auto producer = Producer(0, 1);
  producer->PublishSteps(0, 99);
  Cycle();
  Kill();
  producer->PublishSteps(100, 1999);
  Open();
  Cycle();
  const state::RankTotals& totals = Run()->ranks[0].totals;
  EXPECT_EQ(totals.records_lost[0], 1900u - LG_STEP_SLOT_COUNT);
  EXPECT_EQ(totals.records_read + totals.records_lost[0], 2000u);
  EXPECT_EQ(totals.steps, 2000u) << "totals stay right across the gap";
}

// The cursor belongs to a segment: a new one of the same rank begins at its beginning.
TEST_F(PipelineTest, ANewSegmentDoesNotInheritACursor) {
  auto first = Producer(0, 1);
  first->PublishSteps(0, 49);
  Cycle();
  first->Die();
  Cycle(1.1);
  auto second = Producer(0, 1);
  second->PublishSteps(50, 59);
  Cycle(0.2);
  Kill();
  Open();
  Cycle(0.2);
  EXPECT_EQ(Run()->totals.steps, 60u);
  EXPECT_EQ(History().size(), 60u);
}

// observer B1: 50 short runs in sequence.
TEST_F(PipelineTest, FiftyShortRunsLeaveNothingBehind) {
  for (int i = 0; i < 50; ++i) {
    const std::string name = "run" + std::to_string(i);
    auto producer = Producer(0, 1, name);
    producer->PublishSteps(0, 9);
    producer->Close();
    producer->Die();
    Cycle(0.3);
    Cycle(1.2);
    ASSERT_NE(Run(name), nullptr);
    EXPECT_TRUE(Run(name)->ended);
  }
  EXPECT_EQ(board_.Get()->runs.size(), 50u);
  Cycle(301);
  Cycle(2);
  EXPECT_EQ(board_.Get()->runs.size(), 0u);
  EXPECT_EQ(board_.Get()->self.rings_attached, 0u) << "files that linger are not read again";
  Kill();
  Open();
  Cycle(3);
  EXPECT_EQ(board_.Get()->runs.size(), 0u);
  EXPECT_EQ(History("run7").size(), 10u) << "kept in the store";
}

// What a thread that stands still looks like from outside: at each stage its clock goes on and its cycle does not.
TEST_F(PipelineTest, AThreadThatStandsStillIsNotReadyAndOnlyOneThatHangsIsNotHealthy) {
  auto producer = Producer(0, 1);
  const auto seconds = [](std::int64_t count) { return count * testing::ManualClock::kSecond; };
  absl::Status going, not_hung;
  const auto look = [&] {
    going = pipeline_->watch().CheckGoing();
    not_hung = pipeline_->watch().CheckNotHung();
  };
  const auto stand_still = [&](std::int64_t count) {
    clock_.Advance(seconds(count));
    look();
  };
  Cycle();
  stand_still(29);
  EXPECT_TRUE(going.ok()) << going;
  stand_still(1);
  EXPECT_EQ(going.message(), "the drain thread has stood still for 30 s, asleep between two cycles: this process was stopped, or gets no CPU");
  EXPECT_TRUE(not_hung.ok());
  Cycle(0);
  look();
  EXPECT_TRUE(going.ok()) << "as soon as it comes round: " << going;

  producer->PublishStep(0);
  store_->on_commit = [&] { stand_still(200); };
  Cycle();
  EXPECT_EQ(going.message(), "the drain thread has stood still for 200 s, writing its state: the disk under --state_dir does not answer");
  EXPECT_TRUE(not_hung.ok()) << "a new process would stand there, too: " << not_hung;
  look();
  EXPECT_TRUE(going.ok()) << going;

  store_->on_commit = nullptr;
  judges_.told("run")->on_step = [&] { stand_still(119); };
  producer->PublishStep(1);
  Cycle();
  EXPECT_EQ(going.message(), "the drain thread has stood still for 119 s, judging steps");
  EXPECT_TRUE(not_hung.ok());
  judges_.told("run")->on_step = [&] { stand_still(120); };
  producer->PublishStep(2);
  Cycle();
  EXPECT_EQ(not_hung.message(), "the drain thread has stood still for 120 s, judging steps");
  look();
  EXPECT_TRUE(going.ok() && not_hung.ok());
}

TEST_F(PipelineTest, MailboxRequestsAreAnsweredAfterTheCommit) {
  auto producer = Producer(0, 1);
  Cycle();
  absl::Status status = absl::UnknownError("not called");
  std::uint64_t entries = 0;
  bool committed_first = false;
  const int commits = store_->commits;
  ASSERT_TRUE(mailbox_
                  .Send(state::Mailbox::Report{"run", {}},
                        [&](absl::Status s, std::uint64_t n) {
                          status = s;
                          entries = n;
                          committed_first = store_->commits > commits;
                        })
                  .ok());
  Cycle(0.001);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(entries, 1u);
  EXPECT_TRUE(committed_first);
}

TEST_F(PipelineTest, AReportThatCannotBeWrittenIsNotCalledDone) {
  auto producer = Producer(0, 1);
  Cycle();
  store_->broken = true;
  absl::Status status;
  const auto report = [&] {
    status = absl::UnknownError("not called");
    ASSERT_TRUE(mailbox_.Send(state::Mailbox::Report{"run", {}}, [&](absl::Status s, std::uint64_t) { status = s; }).ok());
    Cycle(0.02);
  };
  report();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  report();
  EXPECT_TRUE(absl::IsUnavailable(status)) << "also while it is not tried again: " << status;
  store_->broken = false;
  Cycle(1.1);
  report();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(*store_->CountLedger("run"), 3u) << "all were kept until they could be written";
}

// observer B8: the wall clock jumps; steps, order and ages do not.
TEST_F(PipelineTest, AWallClockThatJumpsMovesNothing) {
  auto producer = Producer(0, 1);
  producer->boot_step_ns = 250'000'000;
  std::int64_t step = 0;
  for (const std::int64_t hours : {0, -12, 1, 24, 0}) {
    producer->wall_offset_ns = hours * 3600 * 1'000'000'000;
    for (int i = 0; i < 10; ++i) producer->PublishStep(step++);
    Cycle();
  }
  const auto history = History();
  ASSERT_EQ(history.size(), 50u);
  for (std::size_t i = 0; i < history.size(); ++i) {
    EXPECT_EQ(history[i].step, static_cast<std::int64_t>(i));
    if (i > 0) {
      EXPECT_DOUBLE_EQ(*history[i].step_seconds, 0.25);
      EXPECT_GE(history[i].receive_time_ns, history[i - 1].receive_time_ns);
    }
  }
  EXPECT_EQ(board_.Get()->self.late_records, 0u);
}

TEST_F(PipelineTest, TheThreadDrainsWhatIsThereBeforeItEnds) {
  auto producer = Producer(0, 1);
  state::SystemClock system_clock;
  Kill();
  Open();
  pipeline_ = std::make_unique<Pipeline>(PipelineOptions{}, &system_clock, book_.get(), store_.get(), &board_, &mailbox_,
                                         std::vector<state::RecordSource*>{source_.get()});
  pipeline_->Start();
  producer->PublishSteps(0, 399);
  pipeline_->Stop(5'000'000'000);
  EXPECT_EQ(History().size(), 400u);
  pipeline_->Stop(0);
}

TEST_F(PipelineTest, ReadersSeeWholeSnapshotsWhileTheThreadRuns) {
  state::SystemClock system_clock;
  Kill();
  Open();
  pipeline_ = std::make_unique<Pipeline>(PipelineOptions{}, &system_clock, book_.get(), store_.get(), &board_, &mailbox_,
                                         std::vector<state::RecordSource*>{source_.get()});
  auto producer = Producer(0, 1);
  pipeline_->Start();
  std::thread reader([&] {
    std::uint64_t version = 0;
    for (int i = 0; i < 50; ++i) {
      const auto snapshot = board_.WaitNewer(version, 20'000'000);
      version = snapshot->version;
      for (const auto& run : snapshot->runs) {
        std::uint64_t last = 0;
        for (const auto& chunk : run->recent_steps) {
          for (const auto& step : *chunk) {
            EXPECT_GT(step->sequence, last);
            last = step->sequence;
          }
        }
      }
    }
  });
  for (int i = 0; i < 200; ++i) {
    producer->PublishStep(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  reader.join();
  pipeline_->Stop(5'000'000'000);
  EXPECT_EQ(History().size(), 200u);
}

}  // namespace
}  // namespace lossgauge::main
