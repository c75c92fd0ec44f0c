#include "server/api/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "server/api/text.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::api {
namespace {

using testing::FakeClock;
using testing::FakeDrain;
using testing::FakeHistory;
using testing::kNow;
using testing::kSecond;
using testing::MakeFullRun;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeStep;
using testing::MakeVerdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ApiTest : public ::testing::Test {
 protected:
  void Publish(std::shared_ptr<const state::RunSnapshot> run) { board_.Publish(MakeSnapshot(++version_, {std::move(run)})); }
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  Api api_{board_, mailbox_, history_, clock_};
  std::uint64_t version_ = 0;
};

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

class ListStepsTest : public ApiTest {
 protected:
  // Reads all pages; the sequences in order.
  std::vector<std::uint64_t> ReadAll(v1::ListStepsRequest request, int* pages = nullptr) {
    std::vector<std::uint64_t> sequences;
    for (int page = 1; page < 1000; ++page) {
      const auto answer = api_.ListSteps(request);
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (!answer.ok()) break;
      for (const v1::Step& step : answer->steps()) sequences.push_back(step.sequence());
      if (pages != nullptr) *pages = page;
      if (answer->next_page_token().empty()) break;
      request.set_page_token(answer->next_page_token());
    }
    return sequences;
  }
  static v1::ListStepsRequest Request() {
    v1::ListStepsRequest request;
    request.set_run("run");
    return request;
  }
};

TEST_F(ListStepsTest, PagesHoldEveryStepOnceWhereverItIsKept) {
  Publish(MakeRun("run", 1401, 1500));
  for (std::uint64_t s = 1; s <= 1450; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  for (const int size : {7, 499, 500, 501, 1000, 1499, 1500, 1501, 10'000}) {
    v1::ListStepsRequest request = Request();
    request.set_page_size(size);
    int pages = 0;
    const std::vector<std::uint64_t> sequences = ReadAll(request, &pages);
    ASSERT_EQ(sequences.size(), 1500u) << size;
    for (std::size_t i = 0; i < sequences.size(); ++i) EXPECT_EQ(sequences[i], i + 1);
    EXPECT_EQ(pages, (1500 + size - 1) / size);
  }
}

TEST_F(ListStepsTest, ARangeOfStepsOfAnAttempt) {
  Publish(MakeRun("run", 1, 40));
  v1::ListStepsRequest request = Request();
  request.set_first_step(10);
  request.set_last_step(12);
  EXPECT_THAT(ReadAll(request), ElementsAre(11, 12, 13));
  request.set_page_size(1);
  EXPECT_THAT(ReadAll(request), ElementsAre(11, 12, 13));
  request.set_attempt("another");
  EXPECT_THAT(ReadAll(request), ElementsAre());
}

TEST_F(ListStepsTest, TheTailIsTheNewestInOrder) {
  Publish(MakeRun("run", 37, 40));
  for (std::uint64_t s = 1; s <= 38; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  v1::ListStepsRequest request = Request();
  request.set_tail(3);
  EXPECT_THAT(ReadAll(request), ElementsAre(38, 39, 40));
  EXPECT_EQ(history_->reads, 0);
  request.set_tail(6);
  EXPECT_THAT(ReadAll(request), ElementsAre(35, 36, 37, 38, 39, 40));
}

TEST_F(ListStepsTest, RanksComeOnlyWhenAskedFor) {
  Publish(MakeFullRun("run"));
  v1::ListStepsRequest request = Request();
  request.set_tail(1);
  EXPECT_EQ(api_.ListSteps(request)->steps(0).rank_steps_size(), 0);
  request.set_include_ranks(true);
  ASSERT_EQ(api_.ListSteps(request)->steps(0).rank_steps_size(), 2);
  EXPECT_EQ(api_.ListSteps(request)->steps(0).rank_steps(0).lost_before(), 7u);
  EXPECT_FALSE(api_.ListSteps(request)->steps(0).rank_steps(1).has_loss_nats());
}

TEST_F(ListStepsTest, APageIsNeverLargerThanAClientTakes) {
  auto run = MakeRun("run", 1, 0);
  auto chunk = std::make_shared<state::StepChunk>();
  for (std::uint64_t s = 1; s <= 20; ++s) {
    state::StepSummary step = MakeStep(s, static_cast<std::int64_t>(s), 2);
    for (std::uint32_t rank = 0; rank < 16'384; ++rank) step.rank_steps.push_back({rank, 2.0, 1.0, 3.0, 1000, 0, 0});
    chunk->push_back(std::make_shared<const state::StepSummary>(step));
  }
  run->recent_steps = {chunk};
  run->next_sequence = 21;
  Publish(run);
  v1::ListStepsRequest request = Request();
  request.set_include_ranks(true);
  std::uint64_t steps = 0;
  do {
    const auto answer = api_.ListSteps(request);
    ASSERT_TRUE(answer.ok());
    EXPECT_LT(answer->ByteSizeLong(), std::size_t{4} << 20);
    ASSERT_GT(answer->steps_size(), 0);
    steps += static_cast<std::uint64_t>(answer->steps_size());
    request.set_page_token(answer->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(steps, 20u);
}

TEST_F(ListStepsTest, EachFieldThatIsWrongIsNamedWithARemedy) {
  Publish(MakeRun("run", 1, 4));
  const auto refusal = [&](const std::function<void(v1::ListStepsRequest&)>& change) {
    v1::ListStepsRequest request = Request();
    change(request);
    const auto answer = api_.ListSteps(request);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(answer.status());
  };
  EXPECT_THAT(refusal([](auto& r) { r.set_page_size(-1); }), HasSubstr("page_size: -1 is out of range; give 1 to 10000"));
  EXPECT_THAT(refusal([](auto& r) { r.set_page_size(10'001); }), HasSubstr("page_size: 10001"));
  EXPECT_THAT(refusal([](auto& r) { r.set_tail(-5); }), HasSubstr("tail: -5"));
  EXPECT_THAT(refusal([](auto& r) { r.set_tail(10'001); }), HasSubstr("tail: 10001"));
  EXPECT_THAT(refusal([](auto& r) { r.set_first_step(9), r.set_last_step(3); }), HasSubstr("first_step: 9 is beyond last_step 3"));
  EXPECT_THAT(refusal([](auto& r) { r.set_page_token("x"); }), HasSubstr("page_token:"));
  EXPECT_THAT(refusal([](auto& r) { r.set_attempt(std::string(5000, 'a')); }), HasSubstr("attempt: 5000 bytes"));
}

TEST_F(ListStepsTest, ATokenHoldsOnlyForItsOwnQuery) {
  Publish(MakeRun("run", 1, 40));
  v1::ListStepsRequest request = Request();
  request.set_page_size(5);
  const std::string token = api_.ListSteps(request)->next_page_token();
  ASSERT_FALSE(token.empty());
  request.set_page_token(token);
  request.set_page_size(6);  // another size is fine
  EXPECT_TRUE(api_.ListSteps(request).ok());
  request.set_first_step(3);
  EXPECT_EQ(api_.ListSteps(request).status().code(), absl::StatusCode::kInvalidArgument);
}

class ListVerdictsTest : public ApiTest {
 protected:
  ListVerdictsTest() {
    Publish(MakeRun("run", 1, 4));
    for (int i = 0; i < 10; ++i) Add(i);
  }
  void Add(int i) { history_->verdicts.insert(history_->verdicts.begin(), MakeVerdict(state::Action::kWatch, std::to_string(i), kNow + i)); }
  std::vector<std::string> Codes(const v1::ListVerdictsResponse& answer) {
    std::vector<std::string> codes;
    for (const v1::Verdict& verdict : answer.verdicts()) codes.push_back(verdict.reason_codes(0));
    return codes;
  }
};

TEST_F(ListVerdictsTest, NewestFirstInPages) {
  v1::ListVerdictsRequest request;
  request.set_run("run");
  request.set_page_size(4);
  auto answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("9", "8", "7", "6"));
  request.set_page_token(answer->next_page_token());
  answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("5", "4", "3", "2"));
  request.set_page_token(answer->next_page_token());
  answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("1", "0"));
  EXPECT_EQ(answer->next_page_token(), "");
}

TEST_F(ListVerdictsTest, WhatComesInBetweenTwoPagesNeitherRepeatsNorHidesOne) {
  for (const int arrivals : {1, 3, 4, 5, 6, 7, 20}) {
    history_->verdicts.clear();
    for (int i = 0; i < 10; ++i) Add(i);
    v1::ListVerdictsRequest request;
    request.set_run("run");
    request.set_page_size(4);
    auto answer = api_.ListVerdicts(request);
    for (int i = 0; i < arrivals; ++i) Add(10 + i);
    request.set_page_token(answer->next_page_token());
    answer = api_.ListVerdicts(request);
    EXPECT_THAT(Codes(*answer), ElementsAre("5", "4", "3", "2")) << arrivals;
    request.set_page_token(answer->next_page_token());
    EXPECT_THAT(Codes(*api_.ListVerdicts(request)), ElementsAre("1", "0")) << arrivals;
  }
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
