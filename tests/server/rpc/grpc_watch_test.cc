#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/server/rpc/rpc_fixture.h"

namespace lossgauge::rpc {
namespace {

using testing::kSecond;
using testing::MakeRun;
using testing::MakeStep;
using testing::MakeVerdict;

class GrpcWatchTest : public testing::RpcFixture {};

TEST_F(GrpcWatchTest, EachPublishedStepArrivesOnceAndInOrder) {
  StartServer();
  Publish({MakeRun("run", 1, 3)});
  v1::WatchStepsRequest request;
  request.set_run("run");
  request.set_after_sequence(0);
  grpc::ClientContext context;
  const auto client = Client();
  const auto stream = client->WatchSteps(&context, request);
  std::thread publisher([&] {
    for (std::uint64_t last = 4; last <= 300; ++last) Publish({MakeRun("run", last > 100 ? last - 99 : 1, last)});
  });
  std::uint64_t expected = 0;
  v1::WatchStepsResponse response;
  while (expected <= 300 && stream->Read(&response)) {
    // The publisher may outrun what snapshots hold; history is empty here. What lies before the first message was never promised, so it is not skipped.
    if (expected == 0) expected = response.steps(0).sequence();
    expected += response.skipped();
    for (const v1::Step& step : response.steps()) EXPECT_EQ(step.sequence(), expected++);
  }
  EXPECT_EQ(expected, 301u);
  publisher.join();
  context.TryCancel();
}

TEST_F(GrpcWatchTest, AResumedStreamGoesOnBehindItsToken) {
  StartServer();
  Publish({MakeRun("run", 91, 100)});
  for (std::uint64_t s = 1; s <= 100; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  v1::WatchStepsRequest request;
  request.set_run("run");
  const auto client = Client();
  std::vector<std::uint64_t> sequences;
  for (std::uint64_t after : {0u, 40u, 95u}) {
    request.set_after_sequence(after);
    grpc::ClientContext context;
    const auto stream = client->WatchSteps(&context, request);
    v1::WatchStepsResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.steps(0).sequence(), after + 1);
    EXPECT_EQ(response.skipped(), 0u);
    context.TryCancel();
  }
}

TEST_F(GrpcWatchTest, AClientThatDoesNotReadIsToldWhatItMissed) {
  StartServer();
  Publish({MakeRun("run", 1, 1)});
  v1::WatchStepsRequest request;
  request.set_run("run");
  grpc::ClientContext context;
  const auto client = Client();
  const auto stream = client->WatchSteps(&context, request);
  while (server_->open_streams() == 0) std::this_thread::yield();
  // Large steps fill the flow-control window of a stream that is not read (64 KiB), then the snapshots move on.
  std::uint64_t last = 1;
  auto big = [&] {
    auto run = MakeRun("run", 1, 0);
    auto chunk = std::make_shared<state::StepChunk>();
    for (int i = 0; i < 8; ++i) {
      ++last;
      state::StepSummary step = MakeStep(last, static_cast<std::int64_t>(last), 2);
      step.missing_ranks.assign(20'000, 1u << 20);
      chunk->push_back(std::make_shared<const state::StepSummary>(step));
    }
    run->recent_steps = {chunk};
    run->next_sequence = last + 1;
    return run;
  };
  for (int i = 0; i < 200; ++i) {
    Publish({big()});
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  v1::WatchStepsResponse response;
  std::uint64_t expected = 2;
  std::uint64_t skipped = 0;
  while (expected <= last && stream->Read(&response)) {
    skipped += response.skipped();
    expected += response.skipped();
    for (const v1::Step& step : response.steps()) ASSERT_EQ(step.sequence(), expected++);
  }
  EXPECT_EQ(expected, last + 1);
  EXPECT_GT(skipped, 0u);
  context.TryCancel();
}

TEST_F(GrpcWatchTest, AVerdictStreamGivesStateThenChangesThenTheEndOfItsTerm) {
  StartServer();
  Publish({MakeRun("run", 1, 4)});
  v1::WatchVerdictRequest request;
  request.set_run("run");
  grpc::ClientContext context;
  const auto client = Client();
  const auto stream = client->WatchVerdict(&context, request);
  v1::Verdict verdict;
  ASSERT_TRUE(stream->Read(&verdict));
  EXPECT_EQ(verdict.action(), v1::CONTINUE);
  auto run = MakeRun("run", 1, 4);
  run->verdict = MakeVerdict(state::Action::kWatch, "loss_spike/logit_blowup");
  Publish({run});
  ASSERT_TRUE(stream->Read(&verdict));
  EXPECT_EQ(verdict.action(), v1::WATCH);
  clock_.Advance(31 * kSecond);  // lossgauged stops judging: no snapshot comes any more
  ASSERT_TRUE(stream->Read(&verdict));
  EXPECT_EQ(verdict.action(), v1::UNKNOWN);
  EXPECT_EQ(verdict.reason_codes(0), "stale");
  Publish({});
  EXPECT_FALSE(stream->Read(&verdict));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcWatchTest, AWatchOfNoRunEndsAtOnce) {
  StartServer();
  v1::WatchStepsRequest request;
  request.set_run("none");
  grpc::ClientContext context;
  const auto client = Client();
  const auto stream = client->WatchSteps(&context, request);
  v1::WatchStepsResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  for (int i = 0; i < 5000 && server_->open_streams() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server_->open_streams(), 0u);
}

}  // namespace
}  // namespace lossgauge::rpc
