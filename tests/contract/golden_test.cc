// One state, one set of golden files, two ways out: gRPC and HTTP must both give exactly these messages.
// LOSSGAUGE_UPDATE_GOLDEN=1 rewrites the files; a change of theirs is a change of the API and wants a word in CHANGELOG.md.
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/api/json.h"
#include "server/rpc/grpc_server.h"
#include "server/web/web_server.h"
#include "tests/server/web/web_fixture.h"

namespace lossgauge {
namespace {

using testing::FakeDrain;
using testing::HttpAnswer;
using testing::kSecond;
using testing::MakeFullRun;
using testing::MakeRun;
using testing::MakeVerdict;
using testing::RawConnection;

class GoldenTest : public testing::WebFixture {
 protected:
  GoldenTest() {
    rpc::GrpcOptions options;
    options.listen = "127.0.0.1:0";
    options.tick_ns = 5'000'000;
    grpc_ = std::make_unique<rpc::GrpcServer>(options, api_);
    EXPECT_TRUE(grpc_->Start().ok());
    StartServer();
    full_ = MakeFullRun("llama \"8b\"/🔥");
    Publish({full_, MakeRun("young", 1, 0)});
    history_->incidents = {full_->incidents[1], full_->incidents[0]};
    history_->verdicts = {full_->verdict, MakeVerdict(state::Action::kWatch, "loss_spike/logit_blowup", testing::kNow - 20 * kSecond)};
    client_ = v1::LossGauge::NewStub(grpc::CreateChannel(grpc_->address(), grpc::InsecureChannelCredentials()));
  }

  static void ExpectGolden(const std::string& name, const std::string& json) {
    const std::string path = std::string(LOSSGAUGE_GOLDEN_DIR) + "/" + name + ".json";
    if (std::getenv("LOSSGAUGE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << json;
    std::ifstream file(path);
    ASSERT_TRUE(file.good()) << path << " is missing";
    std::stringstream content;
    content << file.rdbuf();
    EXPECT_EQ(json, content.str()) << name;
  }
  // What came over gRPC, and what came over HTTP, against one file.
  template <typename Message>
  void Check(const std::string& name, const Message& over_grpc, const std::string& over_http) {
    ExpectGolden(name, *api::ToJson(over_grpc, true));
    Message parsed;
    const auto status = google::protobuf::util::JsonStringToMessage(over_http, &parsed);
    ASSERT_TRUE(status.ok()) << status.ToString() << over_http;
    ExpectGolden(name, *api::ToJson(parsed, true));
  }

  static constexpr const char* kRun = "llama \"8b\"/🔥";
  static constexpr const char* kQuery = "?run=llama%20%228b%22%2F%F0%9F%94%A5";
  std::shared_ptr<state::RunSnapshot> full_;
  std::unique_ptr<rpc::GrpcServer> grpc_;
  std::unique_ptr<v1::LossGauge::Stub> client_;
  grpc::ClientContext context_;
};

TEST_F(GoldenTest, ListRuns) {
  v1::ListRunsResponse response;
  ASSERT_TRUE(client_->ListRuns(&context_, {}, &response).ok());
  Check("list_runs", response, Get("/api/v1/runs").body);
}

TEST_F(GoldenTest, GetRun) {
  v1::GetRunRequest request;
  request.set_run(kRun);
  v1::Run response;
  ASSERT_TRUE(client_->GetRun(&context_, request, &response).ok());
  Check("get_run", response, Get(std::string("/api/v1/run") + kQuery).body);
}

TEST_F(GoldenTest, GetVerdict) {
  v1::GetVerdictRequest request;
  request.set_run(kRun);
  v1::Verdict response;
  ASSERT_TRUE(client_->GetVerdict(&context_, request, &response).ok());
  Check("get_verdict_restart", response, Get(std::string("/api/v1/verdict") + kQuery).body);
}

TEST_F(GoldenTest, GetVerdictAnHourAfterTheLast) {
  clock_.Advance(3600 * kSecond);
  v1::GetVerdictRequest request;
  request.set_run(kRun);
  v1::Verdict response;
  ASSERT_TRUE(client_->GetVerdict(&context_, request, &response).ok());
  Check("get_verdict_stale", response, Get(std::string("/api/v1/verdict") + kQuery).body);
}

TEST_F(GoldenTest, ListVerdicts) {
  v1::ListVerdictsRequest request;
  request.set_run(kRun);
  request.set_page_size(1);
  v1::ListVerdictsResponse response;
  ASSERT_TRUE(client_->ListVerdicts(&context_, request, &response).ok());
  Check("list_verdicts", response, Get(std::string("/api/v1/verdicts") + kQuery + "&page_size=1").body);
}

TEST_F(GoldenTest, ListSteps) {
  v1::ListStepsRequest request;
  request.set_run(kRun);
  request.set_include_ranks(true);
  v1::ListStepsResponse response;
  ASSERT_TRUE(client_->ListSteps(&context_, request, &response).ok());
  Check("list_steps", response, Get(std::string("/api/v1/steps") + kQuery + "&include_ranks=true").body);
}

TEST_F(GoldenTest, ListIncidents) {
  v1::ListIncidentsRequest request;
  request.set_run(kRun);
  v1::ListIncidentsResponse response;
  ASSERT_TRUE(client_->ListIncidents(&context_, request, &response).ok());
  Check("list_incidents", response, Get(std::string("/api/v1/incidents") + kQuery).body);
}

TEST_F(GoldenTest, ListEvents) {
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = kRun;
  producer->attempt = "a2";
  producer->layout.rank = 1;
  history_->events = {
      {.producer = producer, .kind = LG_EVENT_CHECKPOINT, .step = 30, .text = "/checkpoints/step_30", .producer_wall_ns = testing::kNow - 2 * kSecond,
       .receive_time_ns = testing::kNow - kSecond},
      {.producer = producer, .kind = LG_EVENT_EVALUATION, .step = 32, .value = 2.5, .count = 4096, .receive_time_ns = testing::kNow}};
  v1::ListEventsRequest request;
  request.set_run(kRun);
  v1::ListEventsResponse response;
  ASSERT_TRUE(client_->ListEvents(&context_, request, &response).ok());
  Check("list_events", response, Get(std::string("/api/v1/events") + kQuery).body);
}

TEST_F(GoldenTest, CompareRuns) {
  Publish({full_, MakeRun("sibling", 41, 43)});
  v1::CompareRunsRequest request;
  request.set_a(kRun);
  request.set_b("sibling");
  v1::Comparison response;
  ASSERT_TRUE(client_->CompareRuns(&context_, request, &response).ok());
  Check("compare_runs", response, Get("/api/v1/compare?a=llama%20%228b%22%2F%F0%9F%94%A5&b=sibling").body);
}

TEST_F(GoldenTest, ExplainARun) {
  v1::ExplainRequest request;
  request.set_run(kRun);
  v1::Explanation response;
  ASSERT_TRUE(client_->Explain(&context_, request, &response).ok());
  Check("explain_run", response, Get(std::string("/api/v1/explain") + kQuery).body);
}

TEST_F(GoldenTest, ExplainAnIncident) {
  v1::ExplainRequest request;
  request.set_run(kRun);
  request.set_incident("00000000deadbeef-7");
  v1::Explanation response;
  ASSERT_TRUE(client_->Explain(&context_, request, &response).ok());
  Check("explain_incident", response, Get(std::string("/api/v1/explain") + kQuery + "&incident=00000000deadbeef-7").body);
}

TEST_F(GoldenTest, GetPolicy) {
  v1::GetPolicyRequest request;
  request.set_run(kRun);
  v1::Policy response;
  ASSERT_TRUE(client_->GetPolicy(&context_, request, &response).ok());
  Check("get_policy", response, Get(std::string("/api/v1/policy") + kQuery).body);
}

TEST_F(GoldenTest, WatchSteps) {
  v1::WatchStepsRequest request;
  request.set_run(kRun);
  request.set_after_sequence(11);
  v1::WatchStepsResponse response;
  const auto stream = client_->WatchSteps(&context_, request);
  ASSERT_TRUE(stream->Read(&response));
  context_.TryCancel();
  RawConnection connection(server_->port());
  connection.Send(std::string("GET /api/v1/steps/watch") + kQuery + "&after_sequence=11 HTTP/1.1\r\n" + HostLine() + "\r\n");
  connection.ReadUntil("data: ");
  Check("watch_steps", response, connection.ReadUntil("\n\n"));
}

TEST_F(GoldenTest, WatchVerdict) {
  v1::WatchVerdictRequest request;
  request.set_run(kRun);
  v1::Verdict response;
  const auto stream = client_->WatchVerdict(&context_, request);
  ASSERT_TRUE(stream->Read(&response));
  context_.TryCancel();
  RawConnection connection(server_->port());
  connection.Send(std::string("GET /api/v1/verdict/watch") + kQuery + " HTTP/1.1\r\n" + HostLine() + "\r\n");
  connection.ReadUntil("data: ");
  Check("get_verdict_restart", response, connection.ReadUntil("\n\n"));
}

TEST_F(GoldenTest, AcknowledgeIncident) {
  FakeDrain drain(mailbox_);
  drain.incidents = full_->incidents;
  v1::AcknowledgeIncidentRequest request;
  request.set_id("00000000deadbeef-5");
  request.set_by("anna");
  request.set_comment("a known document");
  v1::Incident response;
  ASSERT_TRUE(client_->AcknowledgeIncident(&context_, request, &response).ok());
  Check("acknowledge_incident", response,
        Post("/api/v1/incidents/acknowledge", R"({"id": "00000000deadbeef-5", "by": "anna", "comment": "a known document"})").body);
}

TEST_F(GoldenTest, ReportAction) {
  FakeDrain drain(mailbox_);
  v1::ReportActionRequest request;
  request.set_run(kRun);
  request.set_action(v1::RESTART);
  request.set_actor("slurm");
  v1::ReportActionResponse response;
  ASSERT_TRUE(client_->ReportAction(&context_, request, &response).ok());
  {
    std::lock_guard lock(drain.mutex);
    drain.ledger.clear();
  }
  Check("report_action", response, Post("/api/v1/actions", *api::ToJson(request)).body);
}

TEST_F(GoldenTest, AnError) {
  v1::GetVerdictRequest request;
  request.set_run("none");
  v1::Verdict response;
  const grpc::Status status = client_->GetVerdict(&context_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  const std::string over_grpc = api::ErrorJson(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message())) + "\n";
  ExpectGolden("error_not_found", over_grpc);
  ExpectGolden("error_not_found", Get("/api/v1/verdict?run=none").body);
}

}  // namespace
}  // namespace lossgauge
