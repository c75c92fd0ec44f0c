// What one client may take, and what it cannot take from others.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/rpc/rpc_fixture.h"

namespace lossgauge::rpc {
namespace {

using ::testing::HasSubstr;

class GrpcLimitsTest : public testing::RpcFixture {
 protected:
  void TearDown() override { server_.reset(); }  // before what it uses
  void StartLimited(double calls, std::size_t streams) {
    transport::ClientLimits limits;
    limits.calls_per_second = calls;
    limits.max_streams = streams;
    limits.monotonic_ns = [] { return std::int64_t{1}; };  // nobody gets a call back
    limiter_ = std::make_unique<transport::ClientLimiter>(limits);
    GrpcOptions options = Options();
    options.limiter = limiter_.get();
    options.counters = &counters_;
    StartServer(options);
    Publish({testing::MakeRun("r")});
  }
  grpc::Status ListRuns(v1::LossGauge::Stub& stub) {
    grpc::ClientContext context;
    v1::ListRunsResponse response;
    return stub.ListRuns(&context, {}, &response);
  }
  std::uint64_t Refused(state::Refusal refusal) const { return counters_.Refused(state::Protocol::kGrpc, refusal); }

  state::ServiceCounters counters_;
  std::unique_ptr<transport::ClientLimiter> limiter_;
};

TEST_F(GrpcLimitsTest, AFloodIsRefusedAndCounted) {
  StartLimited(5, 0);
  const auto stub = Client();
  int taken = 0;
  for (int i = 0; i < 50; ++i) taken += ListRuns(*stub).ok() ? 1 : 0;
  EXPECT_EQ(taken, 10);
  EXPECT_EQ(Refused(state::Refusal::kRate), 40u);
  // Not by another connection either.
  const grpc::Status status = ListRuns(*Client());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max_calls_per_client"));
}

TEST_F(GrpcLimitsTest, StreamsOfOneClientAreBoundedAndComeBackWhenTheyEnd) {
  StartLimited(0, 3);
  const auto stub = Client();
  v1::WatchVerdictRequest request;
  request.set_run("r");
  const auto open = [&](grpc::ClientContext* context) {
    auto stream = stub->WatchVerdict(context, request);
    v1::Verdict verdict;
    const bool ok = stream->Read(&verdict);
    return std::make_pair(std::move(stream), ok);
  };
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Verdict>>> streams;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    auto [stream, ok] = open(contexts.back().get());
    EXPECT_TRUE(ok);
    streams.push_back(std::move(stream));
  }
  grpc::ClientContext fourth;
  auto [refused, ok] = open(&fourth);
  EXPECT_FALSE(ok);
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Refused(state::Refusal::kStreams), 1u);

  contexts[0]->TryCancel();
  streams[0]->Finish();
  for (int i = 0; i < 500; ++i) {  // the server hears of it a little later
    grpc::ClientContext again;
    auto [stream, taken] = open(&again);
    again.TryCancel();
    stream->Finish();
    if (taken) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "a stream that has ended is still counted";
}

TEST_F(GrpcLimitsTest, OneThatNeverReadsHoldsAMessageAndNobodyElse) {
  StartLimited(0, 8);
  const auto stub = Client();
  v1::WatchStepsRequest request;
  request.set_run("r");
  grpc::ClientContext context;
  const auto silent = stub->WatchSteps(&context, request);  // never read
  const auto other = Client();
  for (int i = 0; i < 200; ++i) {
    Publish({testing::MakeRun("r")});
    ASSERT_TRUE(ListRuns(*other).ok());
  }
  context.TryCancel();
  silent->Finish();
}

// Bytes that are no message, to every kind of call; then a message beyond the limit, which gRPC ends before any code of ours hears of it.
TEST_F(GrpcLimitsTest, MalformedMessagesAreCountedAndOversizeOnesEndAndNeitherHarmsAnybody) {
  StartLimited(0, 0);
  grpc::GenericStub generic(Connect());
  const auto send = [&](const std::string& method, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::Status status;
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    generic.UnaryCall(&context, method, grpc::StubOptions(), &request, &response, [&](grpc::Status said) {
      const std::lock_guard lock(mutex);
      status = std::move(said);
      done = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
    return status;
  };
  const std::string malformed("\x0a\xff\xff\xff\xff\x7f", 6);  // a text that is longer than everything
  int sent = 0;
  for (const char* method : {"GetVerdict", "ListSteps", "ReportAction", "WatchSteps", "WatchVerdict"}) {
    EXPECT_FALSE(send(std::string("/lossgauge.v1.LossGauge/") + method, malformed).ok()) << method;
    ++sent;
  }
  EXPECT_EQ(Refused(state::Refusal::kMalformed), static_cast<std::uint64_t>(sent));
  EXPECT_EQ(send("/lossgauge.v1.LossGauge/GetVerdict", std::string(100 << 10, '\0')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(ListRuns(*Client()).ok());
}

}  // namespace
}  // namespace lossgauge::rpc
