#include "server/rpc/grpc_server.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "server/api/listen_address.h"
#include "tests/server/rpc/rpc_fixture.h"

namespace lossgauge::rpc {
namespace {

using testing::FakeDrain;
using testing::MakeFullRun;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeStep;
using testing::MakeVerdict;
using ::testing::HasSubstr;

class GrpcServerTest : public testing::RpcFixture {};

TEST_F(GrpcServerTest, EveryCallAnswers) {
  StartServer();
  auto run = MakeFullRun("run");
  Publish({run});
  history_->incidents = run->incidents;
  history_->verdicts = {MakeVerdict(state::Action::kRestart, "divergence")};
  FakeDrain drain(mailbox_);
  drain.incidents = run->incidents;
  const auto client = Client();

  v1::ListRunsResponse runs;
  grpc::ClientContext c1;
  ASSERT_TRUE(client->ListRuns(&c1, {}, &runs).ok());
  ASSERT_EQ(runs.runs_size(), 1);
  EXPECT_EQ(runs.runs(0).producers_size(), 0);

  v1::GetRunRequest get_run;
  get_run.set_run("run");
  v1::Run one;
  grpc::ClientContext c2;
  ASSERT_TRUE(client->GetRun(&c2, get_run, &one).ok());
  EXPECT_EQ(one.producers_size(), 1);
  EXPECT_EQ(one.open_incidents_size(), 1);
  EXPECT_DOUBLE_EQ(one.totals().nll_nats(), 114751.25);

  v1::GetVerdictRequest get_verdict;
  get_verdict.set_run("run");
  v1::Verdict verdict;
  grpc::ClientContext c3;
  ASSERT_TRUE(client->GetVerdict(&c3, get_verdict, &verdict).ok());
  EXPECT_EQ(verdict.action(), v1::RESTART);
  EXPECT_EQ(verdict.resume_point().step(), 30);

  v1::ListVerdictsRequest list_verdicts;
  list_verdicts.set_run("run");
  v1::ListVerdictsResponse verdicts;
  grpc::ClientContext c4;
  ASSERT_TRUE(client->ListVerdicts(&c4, list_verdicts, &verdicts).ok());
  EXPECT_EQ(verdicts.verdicts_size(), 1);

  v1::ListStepsRequest list_steps;
  list_steps.set_run("run");
  v1::ListStepsResponse steps;
  grpc::ClientContext c5;
  ASSERT_TRUE(client->ListSteps(&c5, list_steps, &steps).ok());
  ASSERT_EQ(steps.steps_size(), 1);
  EXPECT_EQ(steps.steps(0).sequence(), 42u);

  v1::ListIncidentsRequest list_incidents;
  list_incidents.set_run("run");
  v1::ListIncidentsResponse incidents;
  grpc::ClientContext c6;
  ASSERT_TRUE(client->ListIncidents(&c6, list_incidents, &incidents).ok());
  EXPECT_EQ(incidents.incidents_size(), 2);

  v1::AcknowledgeIncidentRequest acknowledge;
  acknowledge.set_id("00000000deadbeef-5");
  acknowledge.set_by("anna");
  v1::Incident incident;
  grpc::ClientContext c7;
  ASSERT_TRUE(client->AcknowledgeIncident(&c7, acknowledge, &incident).ok());
  EXPECT_TRUE(incident.acknowledged());

  v1::ReportActionRequest report;
  report.set_run("run");
  report.set_action(v1::RESTART);
  report.set_actor("slurm");
  v1::ReportActionResponse reported;
  grpc::ClientContext c8;
  ASSERT_TRUE(client->ReportAction(&c8, report, &reported).ok());
  EXPECT_EQ(reported.ledger_entries(), 1u);

  v1::WatchVerdictRequest watch_verdict;
  watch_verdict.set_run("run");
  grpc::ClientContext c9;
  const auto verdict_stream = client->WatchVerdict(&c9, watch_verdict);
  ASSERT_TRUE(verdict_stream->Read(&verdict));
  EXPECT_EQ(verdict.action(), v1::RESTART);
  c9.TryCancel();

  v1::WatchStepsRequest watch_steps;
  watch_steps.set_run("run");
  watch_steps.set_after_sequence(0);
  grpc::ClientContext c10;
  const auto step_stream = client->WatchSteps(&c10, watch_steps);
  v1::WatchStepsResponse watched;
  ASSERT_TRUE(step_stream->Read(&watched));
  EXPECT_EQ(watched.steps(0).sequence(), 42u);
  c10.TryCancel();
}

TEST_F(GrpcServerTest, AnErrorNamesFieldAndRemedyOnTheWireToo) {
  StartServer();
  Publish({MakeRun("run", 1, 4)});
  v1::ListStepsRequest request;
  request.set_run("run");
  request.set_page_size(-3);
  v1::ListStepsResponse response;
  grpc::ClientContext context;
  const grpc::Status status = Client()->ListSteps(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("page_size: -3 is out of range; give 1 to 10000"));
}

TEST_F(GrpcServerTest, AnErrorOfHistoryReachesTheCaller) {
  StartServer();
  Publish({MakeRun("run", 5, 8)});
  history_->error = absl::UnavailableError("history cannot be read: disk full");
  v1::ListStepsRequest request;
  request.set_run("run");
  v1::ListStepsResponse response;
  grpc::ClientContext context;
  const grpc::Status status = Client()->ListSteps(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("disk full"));
}

// Case D2: the second server on a port fails at start, instead of answering every other client about another job.
TEST_F(GrpcServerTest, APortThatIsTakenIsAnErrorWithAddressAndErrno) {
  StartServer();
  GrpcOptions options = Options();
  options.listen = server_->address();
  GrpcServer second(options, api_);
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_->address()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("errno " + std::to_string(EADDRINUSE)));
  EXPECT_EQ(second.port(), 0);
  server_->Shutdown();
  EXPECT_TRUE(second.Start().ok());  // with back-off it comes up once the port is free
}

TEST_F(GrpcServerTest, AnotherProcessWithReusePortGetsNoShareEither) {
  StartServer();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  close(fd);
}

TEST_F(GrpcServerTest, AnAddressThatMakesNoSenseIsRefused) {
  GrpcOptions options = Options();
  options.listen = "9789";
  GrpcServer server(options, api_);
  EXPECT_EQ(server.Start().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.Start().message()), HasSubstr("--grpc_listen"));
}

TEST_F(GrpcServerTest, ARequestTooLargeIsRefused) {
  StartServer();
  v1::GetVerdictRequest request;
  request.set_run(std::string(100 << 10, 'x'));
  v1::Verdict response;
  grpc::ClientContext context;
  EXPECT_EQ(Client()->GetVerdict(&context, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServerTest, StreamsAreBounded) {
  GrpcOptions options = Options();
  options.max_streams = 2;
  StartServer(options);
  Publish({MakeRun("run", 1, 4)});
  const auto client = Client();
  v1::WatchVerdictRequest request;
  request.set_run("run");
  v1::Verdict verdict;
  grpc::ClientContext a, b, c;
  const auto first = client->WatchVerdict(&a, request);
  ASSERT_TRUE(first->Read(&verdict));
  const auto second = client->WatchVerdict(&b, request);
  ASSERT_TRUE(second->Read(&verdict));
  const auto third = client->WatchVerdict(&c, request);
  EXPECT_FALSE(third->Read(&verdict));
  const grpc::Status status = third->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("all 2 streams"));
  a.TryCancel();
  b.TryCancel();
}

TEST_F(GrpcServerTest, AnAnswerThatNeverComesEndsTheCall) {
  StartServer();
  v1::AcknowledgeIncidentRequest request;
  request.set_id("i-1");
  request.set_by("anna");
  v1::Incident response;
  grpc::ClientContext context;
  grpc::Status status;
  const auto client = Client();
  std::thread caller([&] { status = client->AcknowledgeIncident(&context, request, &response); });
  while (server_->open_streams() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  clock_.Advance(6'000'000'000);  // nobody drains the mailbox
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->open_streams(), 0u);
  FakeDrain late(mailbox_);  // its answer finds nobody
}

// One history thread, and a gate that holds back all reads of steps.
class GrpcHistoryTest : public testing::RpcFixture {
 protected:
  void SetUp() override {
    GrpcOptions options = Options();
    options.history_threads = 1;
    StartServer(options);
    history_->on_read_steps = [this] {
      if (history_->reads == 1) has_begun_.set_value();
      gate_.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a comparison of a second, if nothing ends it
    };
  }
  // Once the only thread has come to it, all before it is over.
  void AwaitIdle() {
    v1::ListEventsRequest events;
    events.set_run("a");
    v1::ListEventsResponse none;
    grpc::ClientContext context;
    EXPECT_TRUE(Client()->ListEvents(&context, events, &none).ok());
  }
  std::promise<void> has_begun_, open_;
  const std::shared_future<void> gate_ = open_.get_future().share();
};

TEST_F(GrpcHistoryTest, AComparisonEndsWhenItsCallerLeaves) {
  Publish({MakeRun("a", 50'001, 50'004), MakeRun("b", 50'001, 50'004)});
  for (std::uint64_t i = 1; i <= 50'000; ++i) history_->steps.push_back(MakeStep(i, static_cast<std::int64_t>(i) - 1, 2.5));
  v1::CompareRunsRequest request;
  request.set_a("a");
  request.set_b("b");
  v1::Comparison response;
  grpc::ClientContext context;
  grpc::Status status;
  const auto client = Client();
  std::thread caller([&] { status = client->CompareRuns(&context, request, &response); });
  has_begun_.get_future().wait();
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  open_.set_value();
  AwaitIdle();
  EXPECT_LT(history_->reads, 100) << "of 200";
}

TEST_F(GrpcHistoryTest, NothingIsReadForACallWhoseDeadlinePassedInTheQueue) {
  Publish({MakeRun("a", 5, 8)});
  v1::ListStepsRequest request;
  request.set_run("a");
  v1::ListStepsResponse first_response, response;
  grpc::ClientContext first_context, context;
  const auto client = Client();
  std::thread first([&] { EXPECT_TRUE(client->ListSteps(&first_context, request, &first_response).ok()); });
  has_begun_.get_future().wait();
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  EXPECT_EQ(client->ListSteps(&context, request, &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the server's own clock may be a little later
  open_.set_value();
  first.join();
  AwaitIdle();
  EXPECT_EQ(history_->reads, 1);
}

int OpenDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

long ResidentKib() {
  std::ifstream status("/proc/self/statm");
  long pages = 0, resident = 0;
  status >> pages >> resident;
  return resident * 4;
}

// Case B10, scaled: short calls, streams broken off and connections come and go; what they cost is given back.
TEST_F(GrpcServerTest, ShortCallsAndBrokenStreamsLeaveNothingBehind) {
  StartServer();
  Publish({MakeRun("run", 1, 400)});
  const auto storm = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      const auto client = Client();
      for (int call = 0; call < 10; ++call) {
        grpc::ClientContext context;
        v1::GetVerdictRequest request;
        request.set_run(call % 2 == 0 ? "run" : "none");
        v1::Verdict verdict;
        EXPECT_EQ(client->GetVerdict(&context, request, &verdict).ok(), call % 2 == 0);
      }
      grpc::ClientContext context;
      v1::WatchStepsRequest request;
      request.set_run("run");
      request.set_after_sequence(0);
      const auto stream = client->WatchSteps(&context, request);
      v1::WatchStepsResponse response;
      if (i % 2 == 0) {
        EXPECT_TRUE(stream->Read(&response));
      }
      context.TryCancel();
      stream->Finish();
    }
    for (int i = 0; i < 5000 && server_->open_streams() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(server_->open_streams(), 0u);
  };
  storm(100);  // warm-up: arenas, pools, lazily started threads
  const int descriptors = OpenDescriptors();
  const long resident = ResidentKib();
  storm(300);
  EXPECT_LE(std::abs(OpenDescriptors() - descriptors), 10);
#if !defined(__SANITIZE_ADDRESS__)  // which keeps freed memory on purpose
  EXPECT_LE(ResidentKib() - resident, 4096);
#endif
  std::printf("descriptors %d -> %d, resident %ld -> %ld KiB\n", descriptors, OpenDescriptors(), resident, ResidentKib());
}

}  // namespace
}  // namespace lossgauge::rpc
