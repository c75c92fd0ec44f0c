// Sidecars with rings and a daemon, as processes. The daemon, and then a sidecar, is killed while records flow: at the end the daemon's totals are
// the producers' own, nothing lost and nothing twice, and every step has all its ranks.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/clock.h"
#include "server/state/run_book.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/main/free_port.h"

namespace lossgauge {
namespace {

using testing::DaemonProcess;
using testing::FakeProducer;

class DaemonTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kNodes = 2, kRanksPerNode = 2, kWorld = kNodes * kRanksPerNode;

  DaemonTest() {
    for (std::uint32_t node = 0; node < kNodes; ++node) std::filesystem::create_directory(Rings(node));
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      testing::FakeProducerOptions options;
      options.directory = Rings(rank / kRanksPerNode);
      options.run = "job";
      options.rank = rank;
      options.world_size = kWorld;
      producers_.push_back(std::make_unique<FakeProducer>(options));
    }
  }
  std::string Rings(std::uint32_t node) const { return directory_ / ("rings" + std::to_string(node)); }
  std::string Address(int which = 0) const { return "127.0.0.1:" + std::to_string(ports_[which]); }
  std::string State(int which = 0) const { return directory_ / ("daemon" + std::to_string(which)); }

  std::unique_ptr<DaemonProcess> StartDaemon(int which = 0) {
    return std::make_unique<DaemonProcess>(
        std::vector<std::string>{"daemon", "--state_dir=" + State(which), "--http_listen=none", "--grpc_listen=" + Address(which)}, State(which) + ".log");
  }
  std::unique_ptr<DaemonProcess> StartSidecar(std::uint32_t node, const std::string& forward_to = "") {
    const std::string name = "sidecar" + std::to_string(node);
    return std::make_unique<DaemonProcess>(std::vector<std::string>{"sidecar", "--ring_dir=" + Rings(node), "--state_dir=" + directory_ / name,
                                                                    "--http_listen=none", "--grpc_listen=none", "--forward_to=" + (forward_to.empty() ? Address() : forward_to)},
                                           directory_ / (name + ".log"));
  }
  void PublishSteps(std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step <= last; ++step) {
      for (auto& producer : producers_) producer->PublishStep(step);
      if (step % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (step % 100 == 0) {
        for (auto& producer : producers_) producer->Beat();
      }
    }
  }
  void Close() {
    for (auto& producer : producers_) {
      producer->Close();
      producer->Die();
    }
  }
  std::unique_ptr<v1::LossGauge::Stub> Stub(int which = 0) const {
    return v1::LossGauge::NewStub(grpc::CreateChannel(Address(which), grpc::InsecureChannelCredentials()));
  }
  static std::optional<v1::Run> GetRun(v1::LossGauge::Stub* stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    context.set_wait_for_ready(true);
    v1::GetRunRequest request;
    request.set_run("job");
    v1::Run run;
    if (!stub->GetRun(&context, request, &run).ok()) return std::nullopt;
    return run;
  }
  // Until the daemon shows the run's end, a generous time.
  bool WaitForEnd(int which = 0) {
    const auto stub = Stub(which);
    for (int tries = 0; tries < 600; ++tries) {
      if (const auto run = GetRun(stub.get()); run && run->ended()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  // What the daemon's store holds is what the producers say of themselves.
  void ExpectExact(std::int64_t steps, int which = 0) {
    state::StoreOptions options;
    options.directory = State(which);
    auto store = state::Store::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->open_note(), "");
    testing::FakeJudges judges;
    state::SystemClock clock;
    state::RunBook book({}, &judges, store->get(), clock.NowNs());
    ASSERT_TRUE(book.Load(clock.NowNs()).ok());
    const auto run = state::FindRun(*book.BuildSnapshot(clock.NowNs(), {}), "job");
    ASSERT_NE(run, nullptr);
    ASSERT_EQ(run->ranks.size(), kWorld);
    std::uint64_t overruns = 0;
    for (const auto& rank : run->ranks) {
      const FakeProducer& producer = *producers_[rank.rank];
      EXPECT_EQ(rank.totals.steps, producer.last().total_steps) << "rank " << rank.rank;
      EXPECT_EQ(rank.totals.finite_tokens, producer.last().total_finite_tokens);
      EXPECT_EQ(lg_fixed128_compare(rank.totals.nll_sum, producer.last().total_nll_sum), 0);
      // A sidecar that is starved or dead for longer than its ring lasts loses records to overruns, and says so; nothing else may be lost.
      const std::uint64_t overrun = rank.totals.records_lost[static_cast<std::size_t>(state::LossReason::kOverrun)];
      EXPECT_EQ(rank.totals.records_read + overrun, producer.published() + producer.published_events());
      std::uint64_t lost = 0;
      for (const std::uint64_t records : rank.totals.records_lost) lost += records;
      EXPECT_EQ(lost, overrun) << "rank " << rank.rank;
      overruns += overrun;
      if (overrun > 0) std::printf("rank %u: %llu records lost to overruns\n", rank.rank, static_cast<unsigned long long>(overrun));
    }
    state::StepQuery query;
    query.run = "job";
    query.limit = 1'000'000;
    const auto history = (*store)->reader()->ReadSteps(query);
    ASSERT_TRUE(history.ok());
    std::uint64_t without = 0;  // records of ranks that are not in their steps
    std::int64_t last = -1;
    for (std::size_t i = 0; i < history->size(); ++i) {
      const state::StepSummary& step = (*history)[i];
      ASSERT_EQ(step.sequence, i + 1);
      ASSERT_GT(step.step, last);
      without += static_cast<std::uint64_t>(step.step - last - 1) * kWorld + kWorld - step.ranks;
      last = step.step;
      EXPECT_EQ(step.complete, step.ranks == kWorld) << "step " << last;
      if (step.complete) {
        EXPECT_EQ(step.finite_tokens, 4u * 100 + 0 + 1 + 2 + 3) << "step " << last;
      }
    }
    without += static_cast<std::uint64_t>(steps - 1 - last) * kWorld;
    EXPECT_EQ(without, overruns) << "every record that was not lost is in its step";
  }

  ScratchDirectory directory_;
  const int ports_[2] = {testing::FreePort(), testing::FreePort()};
  std::vector<std::unique_ptr<FakeProducer>> producers_;
};

TEST_F(DaemonTest, KilledAgainAndAgainItLosesAndDoublesNothing) {
  constexpr std::int64_t kSteps = 3000;
  auto first = StartSidecar(0), second = StartSidecar(1);
  std::atomic<bool> done{false};
  std::thread job([&] {
    PublishSteps(0, kSteps - 1);
    Close();
    done = true;
  });
  std::mt19937_64 random(20261130);
  for (int kill = 0; kill < 10 || !done; ++kill) {
    auto daemon = StartDaemon();
    // From "not even open" to "well under way".
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 900));
    daemon->Signal(SIGKILL);
    EXPECT_EQ(daemon->Wait(), 128 + SIGKILL) << daemon->Log();
  }
  job.join();
  auto daemon = StartDaemon();
  EXPECT_TRUE(WaitForEnd()) << daemon->Log() << first->Log();
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
  ExpectExact(kSteps);
  for (auto* sidecar : {first.get(), second.get()}) {
    sidecar->Signal(SIGTERM);
    EXPECT_EQ(sidecar->Wait(), 0) << sidecar->Log();
  }
}

TEST_F(DaemonTest, ASidecarKilledAgainAndAgainSendsEachRecordOnceInEffect) {
  constexpr std::int64_t kSteps = 2000;
  auto daemon = StartDaemon();
  auto first = StartSidecar(0);
  std::atomic<bool> done{false};
  std::thread job([&] {
    // Slowly enough that the ring holds what comes while the sidecar is down.
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (auto& producer : producers_) producer->PublishStep(step);
      if (step % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(12));
    }
    Close();
    done = true;
  });
  std::mt19937_64 random(7);
  while (!done) {
    auto second = StartSidecar(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + random() % 700));
    second->Signal(SIGKILL);
    EXPECT_EQ(second->Wait(), 128 + SIGKILL) << second->Log();
  }
  job.join();
  auto second = StartSidecar(1);
  EXPECT_TRUE(WaitForEnd()) << daemon->Log() << second->Log();
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
  ExpectExact(kSteps);
}

// A pair: each has everything, also what went by while it was away.
TEST_F(DaemonTest, TwoDaemonsHaveTheSameAndOneMayBeAway) {
  constexpr std::int64_t kSteps = 1500;
  const std::string both = Address(0) + "," + Address(1);
  auto first = StartSidecar(0, both), second = StartSidecar(1, both);
  auto steady = StartDaemon(0), unsteady = StartDaemon(1);
  PublishSteps(0, 499);
  unsteady->Signal(SIGKILL);
  unsteady->Wait();
  PublishSteps(500, 999);
  unsteady = StartDaemon(1);
  PublishSteps(1000, kSteps - 1);
  Close();
  for (const int which : {0, 1}) {
    EXPECT_TRUE(WaitForEnd(which)) << which;
    const auto run = GetRun(Stub(which).get());
    ASSERT_TRUE(run);
    EXPECT_EQ(run->verdict().action(), v1::UNKNOWN);
    EXPECT_EQ(run->last_step().step(), kSteps - 1);
    DaemonProcess& daemon = which == 0 ? *steady : *unsteady;
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
    ExpectExact(kSteps, which);
  }
}

// A scheduler asks one address, and hears that a whole job is judged; while a node is silent it never hears CONTINUE.
TEST_F(DaemonTest, WhileANodeIsMissingTheVerdictIsNeverContinue) {
  auto daemon = StartDaemon();
  auto first = StartSidecar(0), second = StartSidecar(1);
  std::atomic<bool> stop{false};
  std::thread job([&] {
    for (std::int64_t step = 0; !stop; ++step) {
      for (auto& producer : producers_) {
        producer->PublishStep(step);
        producer->Beat();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the ring holds what comes while its sidecar is stopped
    }
  });
  const auto stub = Stub();
  const auto action = [&] {
    const auto run = GetRun(stub.get());
    if (run) {
      EXPECT_EQ(run->verdict().scope(), "job");
    }
    return run ? run->verdict().action() : v1::UNKNOWN;
  };
  const auto wait_for = [&](auto&& is_so) {
    for (int tries = 0; tries < 600; ++tries) {
      if (is_so(action())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  };
  EXPECT_TRUE(wait_for([](v1::Action a) { return a == v1::CONTINUE; })) << daemon->Log();
  second->Signal(SIGSTOP);  // cut off: its connection stands, but says nothing
  EXPECT_TRUE(wait_for([](v1::Action a) { return a == v1::WATCH || a == v1::UNKNOWN; })) << daemon->Log();
  for (int look = 0; look < 20; ++look) {
    const v1::Action now = action();
    EXPECT_TRUE(now == v1::WATCH || now == v1::UNKNOWN) << v1::Action_Name(now);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto run = GetRun(stub.get());
  ASSERT_TRUE(run);
  EXPECT_EQ(run->layout().world_size(), kWorld);
  second->Signal(SIGCONT);
  EXPECT_TRUE(wait_for([](v1::Action a) { return a == v1::CONTINUE; })) << daemon->Log();
  stop = true;
  job.join();
}

// observer D3: open streams of sidecars do not hold a daemon up.
TEST_F(DaemonTest, EndsInOrderWithSendersConnected) {
  auto daemon = StartDaemon();
  auto first = StartSidecar(0), second = StartSidecar(1);
  PublishSteps(0, 99);
  EXPECT_TRUE(daemon->WaitForLog("2 senders")) << daemon->Log();
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->WaitFor(std::chrono::seconds(20)), 0) << daemon->Log();
  first->Signal(SIGTERM);
  EXPECT_EQ(first->WaitFor(std::chrono::seconds(20)), 0) << first->Log();
}

}  // namespace
}  // namespace lossgauge
