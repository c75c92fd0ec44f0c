#include "server/rpc/health.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/server/rpc/rpc_fixture.h"

namespace lossgauge::rpc {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using state::Action;
using testing::kNow;
using testing::kSecond;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeVerdict;

constexpr auto kServing = HealthCheckResponse::SERVING;
constexpr auto kNotServing = HealthCheckResponse::NOT_SERVING;
constexpr auto kServiceUnknown = HealthCheckResponse::SERVICE_UNKNOWN;

class HealthTest : public ::testing::Test {
 protected:
  ServingStatus Of(const std::string& service, state::TimeNs now = kNow) { return HealthOf(service, *MakeSnapshot(1, runs_), now, true); }
  void Given(const std::string& name, Action action, const std::string& mode = "advise") {
    auto run = MakeRun(name, 1, 4);
    run->verdict = MakeVerdict(action, "x");
    run->mode = mode;
    run->verdict.mode = mode;
    runs_.push_back(run);
  }
  std::vector<std::shared_ptr<const state::RunSnapshot>> runs_;
};

TEST_F(HealthTest, ALivenessProbeFailsOnRestartAndOnNothingElse) {
  Given("continue", Action::kContinue);
  Given("watch", Action::kWatch);
  Given("restart", Action::kRestart);
  Given("halt", Action::kHalt);
  Given("unknown", Action::kUnknown);
  EXPECT_EQ(Of("run/continue/restart"), kServing);
  EXPECT_EQ(Of("run/watch/restart"), kServing);
  EXPECT_EQ(Of("run/restart/restart"), kNotServing);
  EXPECT_EQ(Of("run/halt/restart"), kServing);  // a HALT must not make a kubelet restart anything
  EXPECT_EQ(Of("run/unknown/restart"), kServing);
  EXPECT_EQ(Of("run/not-seen-yet/restart"), kServing);
}

TEST_F(HealthTest, ForPeopleHaltIsBadToo) {
  Given("continue", Action::kContinue);
  Given("watch", Action::kWatch);
  Given("again", Action::kRestart);
  Given("halt", Action::kHalt);
  EXPECT_EQ(Of("run/continue"), kServing);
  EXPECT_EQ(Of("run/watch"), kServing);
  EXPECT_EQ(Of("run/again"), kNotServing);
  EXPECT_EQ(Of("run/halt"), kNotServing);
  EXPECT_EQ(Of("run/not-seen-yet"), kServiceUnknown);
}

TEST_F(HealthTest, ARestartThatNobodyRenewedKillsNothing) {
  Given("run", Action::kRestart);
  EXPECT_EQ(Of("run/run/restart", kNow + 29 * kSecond), kNotServing);
  EXPECT_EQ(Of("run/run/restart", kNow + 30 * kSecond), kServing);
  EXPECT_EQ(Of("run/run", kNow + 30 * kSecond), kServing);
}

TEST_F(HealthTest, InShadowModeHealthStaysCalm) {
  Given("run", Action::kRestart, "shadow");
  EXPECT_EQ(Of("run/run/restart"), kServing);
  EXPECT_EQ(Of("run/run"), kServing);
}

TEST_F(HealthTest, NamesAreTakenAsTheyAre) {
  Given("team/a \"b\" 🔥", Action::kRestart);
  EXPECT_EQ(Of("run/team/a \"b\" 🔥/restart"), kNotServing);
  EXPECT_EQ(Of("run/team/a \"b\" 🔥"), kNotServing);
  EXPECT_EQ(Of("run/"), kServiceUnknown);
  EXPECT_EQ(Of("run//restart"), kServing);
  EXPECT_EQ(Of("lossgauge.v1.LossGauge"), kServiceUnknown);
}

TEST_F(HealthTest, TheServerItselfServesWhileItIsReadyAndRunsDoNotDependOnThat) {
  Given("run", Action::kWatch);
  EXPECT_EQ(HealthOf("", *MakeSnapshot(1, runs_), kNow, true), kServing);
  EXPECT_EQ(HealthOf("", *MakeSnapshot(1, runs_), kNow, false), kNotServing);
  EXPECT_EQ(HealthOf("run/run/restart", *MakeSnapshot(1, runs_), kNow, false), kServing) << "that lossgauged stands still is no reason to end a trainer";
  EXPECT_EQ(HealthOf("run/run", *MakeSnapshot(1, runs_), kNow, false), kServing);
}

class HealthServiceTest : public testing::RpcFixture {};

TEST_F(HealthServiceTest, CheckAnswersAndAnUnknownNameIsNotFound) {
  StartServer();
  auto run = MakeRun("run", 1, 4);
  run->verdict = MakeVerdict(Action::kRestart, "divergence");
  Publish({run});
  const auto health = grpc::health::v1::Health::NewStub(Connect());
  const auto check = [&](const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return health->Check(&context, request, response);
  };
  HealthCheckResponse response;
  EXPECT_TRUE(check("", &response).ok());
  EXPECT_EQ(response.status(), kServing);
  EXPECT_TRUE(check("run/run/restart", &response).ok());
  EXPECT_EQ(response.status(), kNotServing);
  EXPECT_EQ(check("run/other", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

// With no snapshot in between: who stands still publishes none.
TEST_F(HealthServiceTest, TheServerIsNotServingWhileItIsNotReady) {
  std::atomic<bool> ready{true};
  rpc::GrpcOptions options = Options();
  options.ready = [&ready] { return ready ? absl::OkStatus() : absl::UnavailableError("it stands still"); };
  StartServer(options);
  Publish({});
  const auto health = grpc::health::v1::Health::NewStub(Connect());
  grpc::ClientContext watching;
  const auto stream = health->Watch(&watching, HealthCheckRequest());
  HealthCheckResponse response;
  for (const bool now : {true, false, true}) {
    ready = now;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.status(), now ? kServing : kNotServing);
    grpc::ClientContext context;
    ASSERT_TRUE(health->Check(&context, HealthCheckRequest(), &response).ok());
    EXPECT_EQ(response.status(), now ? kServing : kNotServing);
  }
}

TEST_F(HealthServiceTest, WatchGivesTheStatusFirstThenItsChanges) {
  StartServer();
  Publish({});
  const auto health = grpc::health::v1::Health::NewStub(Connect());
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("run/run");
  const auto stream = health->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), kServiceUnknown);
  auto run = MakeRun("run", 1, 4);
  Publish({run});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), kServing);
  run = MakeRun("run", 1, 4);
  run->verdict = MakeVerdict(Action::kHalt, "integrity/mass");
  Publish({run});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), kNotServing);
  clock_.Advance(31 * kSecond);  // nobody renews it
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), kServing);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace lossgauge::rpc
