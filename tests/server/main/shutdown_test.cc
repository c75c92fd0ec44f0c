// observer D3: SIGTERM while streams are open, one of them never read.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/state/store.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"

namespace lossgauge {
namespace {

TEST(Sidecar, EndsWithOpenStreamsAndWithEverythingDrained) {
  ScratchDirectory directory;
  const std::string rings = directory.path() + "/rings", state_dir = directory.path() + "/state";
  std::filesystem::create_directory(rings);
  testing::FakeProducerOptions options;
  options.directory = rings;
  options.run = "run";
  testing::FakeProducer producer(options);
  producer.PublishSteps(0, 99);
  testing::DaemonProcess sidecar({"sidecar", "--ring_dir=" + rings, "--state_dir=" + state_dir, "--http_listen=127.0.0.1:0",
                                  "--grpc_listen=127.0.0.1:0"},
                                 directory.path() + "/log");
  const std::string address = sidecar.Address("gRPC");
  ASSERT_FALSE(address.empty()) << sidecar.Log();

  constexpr int kStreams = 50;
  std::vector<std::unique_ptr<v1::LossGauge::Stub>> stubs;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Verdict>>> watches;
  for (int i = 0; i < kStreams; ++i) {
    // Connections of their own: ten a client.
    if (i % 10 == 0) {
      grpc::ChannelArguments arguments;
      arguments.SetInt("test.connection", i);
      stubs.push_back(v1::LossGauge::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
    }
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    v1::WatchVerdictRequest request;
    request.set_run("run");
    watches.push_back(stubs.back()->WatchVerdict(contexts.back().get(), request));
    v1::Verdict first;
    ASSERT_TRUE(watches.back()->Read(&first)) << watches.back()->Finish().error_message();
  }
  grpc::ClientContext never_read_context;
  v1::WatchStepsRequest never_read_request;
  never_read_request.set_run("run");
  never_read_request.set_after_sequence(0);
  auto never_read = stubs[0]->WatchSteps(&never_read_context, never_read_request);

  producer.PublishSteps(100, 399);  // the last words of the job
  sidecar.Signal(SIGTERM);
  std::vector<std::thread> readers;
  std::atomic<int> unavailable{0};
  for (auto& watch : watches) {
    readers.emplace_back([&watch, &unavailable] {
      v1::Verdict verdict;
      while (watch->Read(&verdict)) {
      }
      if (watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE) ++unavailable;
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(sidecar.WaitFor(std::chrono::seconds(30)), 0) << sidecar.Log();
  std::printf("ended after %.2f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(unavailable, kStreams);
  never_read_context.TryCancel();

  state::StoreOptions store_options;
  store_options.directory = state_dir;
  auto store = state::Store::Open(store_options);
  ASSERT_TRUE(store.ok());
  state::StepQuery query;
  query.run = "run";
  query.limit = 10'000;
  EXPECT_EQ((*store)->reader()->ReadSteps(query)->size(), 400u) << "the final drain comes first";
}

TEST(Sidecar, EndsAfterItsProducersIfAsked) {
  ScratchDirectory directory;
  const std::string rings = directory.path() + "/rings", state_dir = directory.path() + "/state";
  std::filesystem::create_directory(rings);
  testing::DaemonProcess sidecar({"sidecar", "--exit_after_end", "--ring_dir=" + rings, "--state_dir=" + state_dir, "--http_listen=none", "--grpc_listen=none"},
                                 directory.path() + "/log");
  ASSERT_TRUE(sidecar.WaitForLog("watching rings")) << sidecar.Log();
  EXPECT_EQ(sidecar.WaitFor(std::chrono::seconds(3)), -1) << "nobody has come yet: " << sidecar.Log();
  testing::FakeProducerOptions options;
  options.directory = rings;
  options.run = "run";
  options.world_size = 2;
  auto first = std::make_unique<testing::FakeProducer>(options);
  options.rank = 1;
  auto second = std::make_unique<testing::FakeProducer>(options);
  first->PublishSteps(0, 199);
  second->PublishSteps(0, 198);
  first->Close();
  EXPECT_EQ(sidecar.WaitFor(std::chrono::seconds(3)), -1) << "rank 1 goes on: " << sidecar.Log();
  second->PublishStep(199);
  second->Close();
  EXPECT_EQ(sidecar.WaitFor(std::chrono::seconds(30)), 0) << sidecar.Log();

  state::StoreOptions store_options;
  store_options.directory = state_dir;
  auto store = state::Store::Open(store_options);
  ASSERT_TRUE(store.ok());
  state::StepQuery query;
  query.run = "run";
  query.limit = 10'000;
  EXPECT_EQ((*store)->reader()->ReadSteps(query)->size(), 200u);
}

}  // namespace
}  // namespace lossgauge
