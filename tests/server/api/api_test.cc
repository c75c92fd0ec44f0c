// What is asked of a run, and what is told: incidents, acknowledgements, actions, modes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "server/api/text.h"
#include "tests/server/api/api_fixture.h"

namespace lossgauge::api {
namespace {

using testing::FakeDrain;
using testing::kNow;
using testing::kSecond;
using testing::MakeFullRun;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeSnapshot;
using ::testing::HasSubstr;

TEST_F(ApiTest, EveryAnswerNamesTheInstance) {
  Publish(MakeRun("run", 1, 4));
  EXPECT_EQ(api_.ListRuns({})->instance(), "instance-1");
  EXPECT_EQ(api_.ListRuns({})->runs(0).instance(), "instance-1");
  v1::GetVerdictRequest request;
  request.set_run("run");
  EXPECT_EQ(api_.GetVerdict(request)->instance(), "instance-1");
}

TEST_F(ApiTest, AMissingRunIsAnErrorThatNamesThoseThereAre) {
  v1::GetRunRequest request;
  EXPECT_EQ(api_.GetRun(request).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(api_.GetRun(request).status()), HasSubstr("no run has been seen yet"));
  Publish(MakeRun("gpt", 1, 4));
  request.set_run("gtp");
  EXPECT_EQ(api_.GetRun(request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(api_.GetRun(request).status()), HasSubstr(R"(no run "gtp"; known: "gpt")"));
}

// Case B4 in gRPC fields: odd names are found and given back, and nothing that leaves is invalid UTF-8.
TEST_F(ApiTest, OddRunNamesWorkAndInvalidBytesNeverLeave) {
  for (const std::string name : {"a\"b", "a\\b", "line\nbreak", "\r", "", "🔥/日本", "{", "end\\"}) {
    Publish(MakeRun(name, 1, 4));
    v1::GetVerdictRequest request;
    request.set_run(name);
    ASSERT_TRUE(api_.GetVerdict(request).ok()) << Quoted(name);
    EXPECT_EQ(api_.GetVerdict(request)->run(), name);
  }
  auto run = MakeFullRun("run");
  const std::string bad = "bad\xff\xc3";
  run->phase = bad;
  run->mode = bad;
  run->attempts.back().attempt = bad;
  run->attempts.back().state = bad;
  run->last_checkpoint->path = bad;
  run->verdict.reason = bad;
  run->verdict.reason_codes = {bad};
  run->verdict.evidence = {{bad, 1, bad, bad}};
  run->verdict.resume_point->path = bad;
  run->verdict.escalates = bad;
  run->incidents.back().summary = bad;
  run->incidents.back().acknowledged->comment = bad;
  auto snapshot = MakeSnapshot(++version_, {run});
  snapshot->instance = bad;
  board_.Publish(snapshot);
  v1::GetRunRequest request;
  request.set_run("run");
  const auto answer = api_.GetRun(request);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(IsValidUtf8(answer->DebugString()));
  v1::Run copy;
  EXPECT_TRUE(copy.ParseFromString(answer->SerializeAsString()));  // refuses invalid UTF-8
  EXPECT_EQ(answer->verdict().reason(), "bad\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_F(ApiTest, AbsentValuesStayAbsent) {
  auto run = MakeRun("run");
  auto step = std::make_shared<state::StepSummary>();
  step->sequence = 1;
  run->last_step = step;
  Publish(run);
  v1::GetRunRequest request;
  request.set_run("run");
  const auto answer = api_.GetRun(request);
  EXPECT_FALSE(answer->last_step().has_loss_nats());
  EXPECT_FALSE(answer->last_step().has_worst_row());
  EXPECT_FALSE(answer->has_evaluation_loss_nats());
  EXPECT_FALSE(answer->has_ended_time());
  EXPECT_FALSE(answer->has_last_checkpoint_step());
}

TEST_F(ApiTest, IncidentsAreThoseOfHistoryWithWhatIsNewerInTheSnapshot) {
  auto run = MakeRun("run", 1, 4);
  run->incidents = {MakeIncident("i-1", state::Condition::kBlip, false), MakeIncident("i-2", state::Condition::kLossSpike),
                    MakeIncident("i-3", state::Condition::kDivergence)};
  Publish(run);
  history_->incidents = {MakeIncident("i-3", state::Condition::kDivergence), MakeIncident("i-2", state::Condition::kLossSpike),
                         MakeIncident("i-1", state::Condition::kBlip), MakeIncident("i-0", state::Condition::kNonfinite, false)};
  v1::ListIncidentsRequest request;
  request.set_run("run");
  request.set_page_size(3);
  auto answer = api_.ListIncidents(request);
  ASSERT_EQ(answer->incidents_size(), 3);
  EXPECT_EQ(answer->incidents(0).id(), "i-3");
  EXPECT_EQ(answer->incidents(2).id(), "i-1");
  EXPECT_FALSE(answer->incidents(2).open());  // written as open, resolved since
  request.set_page_token(answer->next_page_token());
  answer = api_.ListIncidents(request);
  ASSERT_EQ(answer->incidents_size(), 1);
  EXPECT_EQ(answer->incidents(0).id(), "i-0");
  EXPECT_EQ(answer->next_page_token(), "");

  request.clear_page_token();
  request.set_page_size(1);
  request.set_open_only(true);
  answer = api_.ListIncidents(request);
  ASSERT_EQ(answer->incidents_size(), 1);
  EXPECT_EQ(answer->incidents(0).id(), "i-3");
  request.set_page_token(answer->next_page_token());
  answer = api_.ListIncidents(request);
  EXPECT_EQ(answer->incidents(0).id(), "i-2");
  EXPECT_EQ(answer->next_page_token(), "");
}

TEST_F(ApiTest, AnAcknowledgementComesBackWithTheIncident) {
  FakeDrain drain(mailbox_);
  drain.incidents = {MakeIncident("i-1", state::Condition::kLossSpike)};
  const auto ask = [&](const v1::AcknowledgeIncidentRequest& request) {
    std::promise<absl::StatusOr<v1::Incident>> promise;
    api_.AcknowledgeIncident(request, [&](absl::StatusOr<v1::Incident> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  };
  v1::AcknowledgeIncidentRequest request;
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("id: missing"));
  request.set_id("i-1");
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("by: missing"));
  request.set_by("anna");
  request.set_comment("known document");
  const auto answer = ask(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->acknowledged());
  EXPECT_EQ(answer->acknowledged_by(), "anna");
  EXPECT_EQ(answer->acknowledged_time().seconds(), kNow / kSecond);
  request.set_id("i-2");
  EXPECT_EQ(ask(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ApiTest, AReportedActionReachesTheLedger) {
  FakeDrain drain(mailbox_);
  Publish(MakeRun("run", 1, 4));
  const auto ask = [&](const v1::ReportActionRequest& request) {
    std::promise<absl::StatusOr<v1::ReportActionResponse>> promise;
    api_.ReportAction(request, [&](absl::StatusOr<v1::ReportActionResponse> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  };
  v1::ReportActionRequest request;
  request.set_run("run");
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("action:"));
  request.set_action(v1::UNKNOWN);
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("action:"));
  request.set_action(static_cast<v1::Action>(77));
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("action: 77"));
  request.set_action(v1::RESTART);
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("actor: missing"));
  request.set_actor("slurm");
  request.set_comment(std::string(4097, 'x'));
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("comment: 4097 bytes are too long"));
  request.clear_comment();
  EXPECT_EQ(ask(request)->ledger_entries(), 1u);
  EXPECT_EQ(drain.ledger.at(0).entry.action, state::Action::kRestart);
  EXPECT_EQ(drain.ledger.at(0).entry.time_ns, kNow);
}

TEST_F(ApiTest, AModeReachesTheRunAndAWrongOneIsNamed) {
  FakeDrain drain(mailbox_);
  Publish(MakeRun("run", 1, 4));
  const auto ask = [&](const v1::SetModeRequest& request) {
    std::promise<absl::StatusOr<v1::SetModeResponse>> promise;
    api_.SetMode(request, [&](absl::StatusOr<v1::SetModeResponse> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  };
  v1::SetModeRequest request;
  request.set_run("none");
  EXPECT_EQ(ask(request).status().code(), absl::StatusCode::kNotFound);
  request.set_run("run");
  request.set_mode("quiet");
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("mode: \"quiet\" is none; give advise, shadow or policy"));
  request.set_mode("shadow");
  EXPECT_THAT(Message(ask(request).status()), HasSubstr("by: missing"));
  request.set_by("anna");
  EXPECT_EQ(ask(request)->mode(), "shadow");
  EXPECT_EQ(drain.modes.at(0).mode, "shadow");
  EXPECT_EQ(drain.modes.at(0).run, "run");
}

TEST_F(ApiTest, AFullMailboxIsAnErrorAtOnce) {
  Publish(MakeRun("run", 1, 4));
  v1::ReportActionRequest request;
  request.set_run("run");
  request.set_action(v1::RESTART);
  request.set_actor("slurm");
  int refused = 0;
  for (int i = 0; i < 1025; ++i) {  // nobody drains
    api_.ReportAction(request, [&](const absl::StatusOr<v1::ReportActionResponse>& result) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
      ++refused;
    });
  }
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace lossgauge::api
