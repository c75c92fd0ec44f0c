#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/server/rpc/rpc_fixture.h"

namespace lossgauge::rpc {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::MakeRun;
using testing::MakeStep;

class GrpcShutdownTest : public testing::RpcFixture {};

// Case D3: 50 idle streams, a client that never reads, a call in progress.
TEST_F(GrpcShutdownTest, EndsWithOpenStreamsASilentClientAndACallInProgress) {
  StartServer();
  auto run = MakeRun("run", 1, 0);
  auto chunk = std::make_shared<state::StepChunk>();
  for (std::uint64_t s = 1; s <= 64; ++s) {
    state::StepSummary step = MakeStep(s, static_cast<std::int64_t>(s), 2);
    step.missing_ranks.assign(50'000, 1u << 20);
    chunk->push_back(std::make_shared<const state::StepSummary>(step));
  }
  run->recent_steps = {chunk};
  run->next_sequence = 65;
  Publish({run});

  struct Open {
    std::unique_ptr<v1::LossGauge::Stub> client;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::Verdict>> verdicts;
  };
  std::vector<std::unique_ptr<Open>> streams;
  for (int i = 0; i < 50; ++i) {
    auto open = std::make_unique<Open>();
    open->client = Client();
    v1::WatchVerdictRequest request;
    request.set_run("run");
    open->verdicts = open->client->WatchVerdict(&open->context, request);
    v1::Verdict verdict;
    ASSERT_TRUE(open->verdicts->Read(&verdict));
    streams.push_back(std::move(open));
  }
  const auto health = grpc::health::v1::Health::NewStub(Connect());
  grpc::ClientContext health_context;
  const auto health_stream = health->Watch(&health_context, HealthCheckRequest());
  HealthCheckResponse health_response;
  ASSERT_TRUE(health_stream->Read(&health_response));
  EXPECT_EQ(health_response.status(), HealthCheckResponse::SERVING);

  const auto silent = Client();
  v1::WatchStepsRequest all;
  all.set_run("run");
  all.set_after_sequence(0);
  grpc::ClientContext silent_context;
  const auto silent_stream = silent->WatchSteps(&silent_context, all);  // many times what its window takes; never read

  const auto caller = Client();
  grpc::Status in_progress;
  std::thread call([&] {
    v1::AcknowledgeIncidentRequest request;
    request.set_id("i-1");
    request.set_by("anna");
    v1::Incident incident;
    grpc::ClientContext context;
    in_progress = caller->AcknowledgeIncident(&context, request, &incident);  // nobody drains the mailbox
  });
  while (server_->open_streams() < 53) std::this_thread::sleep_for(std::chrono::milliseconds(1));

  server_->Shutdown(500'000'000);  // returns at all: everything that could hold it is open

  call.join();
  EXPECT_EQ(in_progress.error_code(), grpc::StatusCode::UNAVAILABLE);
  for (const auto& open : streams) {
    v1::Verdict verdict;
    EXPECT_FALSE(open->verdicts->Read(&verdict));
    EXPECT_EQ(open->verdicts->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  bool said_not_serving = false;
  while (health_stream->Read(&health_response)) said_not_serving |= health_response.status() == HealthCheckResponse::NOT_SERVING;
  EXPECT_TRUE(said_not_serving);
  EXPECT_EQ(health_stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->open_streams(), 0u);
  EXPECT_EQ(server_->port(), 0);
}

TEST_F(GrpcShutdownTest, TheBoardMayCloseFirst) {
  StartServer();
  Publish({MakeRun("run", 1, 4)});
  board_.Close();
  v1::WatchVerdictRequest request;
  request.set_run("run");
  grpc::ClientContext context;
  const auto client = Client();
  const auto stream = client->WatchVerdict(&context, request);
  v1::Verdict verdict;
  ASSERT_TRUE(stream->Read(&verdict));
  server_->Shutdown();
  EXPECT_FALSE(stream->Read(&verdict));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcShutdownTest, TwiceIsFineAndStartWorksAgain) {
  StartServer();
  server_->Shutdown();
  server_->Shutdown();
  EXPECT_TRUE(server_->Start().ok());
  EXPECT_NE(server_->port(), 0);
}

}  // namespace
}  // namespace lossgauge::rpc
