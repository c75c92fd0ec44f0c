// What the API gives of the history: thinned steps, runs of the past, events, policies, comparisons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/api.h"
#include "server/api/convert_policy.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::api {
namespace {

using testing::FakeClock;
using testing::FakeHistory;
using testing::kNow;
using testing::kSecond;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeStep;
using ::testing::HasSubstr;

// Sequences `first` to `last` as one row; step = sequence - 1.
state::StepSummary MakeRow(std::uint64_t first, std::uint64_t last) {
  state::StepSummary row = MakeStep(last, static_cast<std::int64_t>(last) - 1, 3.0);
  auto span = std::make_shared<state::ThinnedSpan>();
  span->steps = last - first + 1;
  span->first_sequence = first;
  span->first_step = static_cast<std::int64_t>(first) - 1;
  span->first_receive_time_ns = kNow - 100 * kSecond;
  span->min[0] = 2.5;
  span->max[0] = 4.0;
  row.thinned = std::move(span);
  return row;
}

class HistoryApi : public ::testing::Test {
 protected:
  void Publish(std::vector<std::shared_ptr<const state::RunSnapshot>> runs) { board_.Publish(MakeSnapshot(++version_, std::move(runs))); }
  v1::ListStepsResponse Steps(const v1::ListStepsRequest& request) {
    const auto response = api_.ListSteps(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ListStepsResponse();
  }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  Api api_{board_, mailbox_, history_, clock_};
  std::uint64_t version_ = 0;
};

TEST_F(HistoryApi, ThinnedStepsComeWhenAskedForAndSaySo) {
  Publish({MakeRun("run", 9, 12)});
  history_->steps = {MakeRow(1, 4), MakeRow(5, 8)};
  v1::ListStepsRequest request;
  request.set_run("run");
  EXPECT_EQ(Steps(request).steps_size(), 4) << "who does not know of rows gets none";
  request.set_include_thinned(true);
  const auto all = Steps(request);
  ASSERT_EQ(all.steps_size(), 6);
  const v1::Thinned& thinned = all.steps(0).thinned();
  EXPECT_EQ(all.steps(0).step(), 3);
  EXPECT_EQ(thinned.steps(), 4u);
  EXPECT_EQ(thinned.first_step(), 0);
  EXPECT_EQ(thinned.first_receive_time().seconds(), kNow / kSecond - 100);
  ASSERT_EQ(thinned.ranges_size(), 1);
  EXPECT_EQ(thinned.ranges(0).name(), "loss_nats");
  EXPECT_EQ(thinned.ranges(0).max(), 4.0);
  EXPECT_FALSE(all.steps(2).has_thinned());
}

TEST_F(HistoryApi, ARowThatReachesIntoWhatTheSnapshotHoldsIsGivenOnceAndReplacesIt) {
  Publish({MakeRun("run", 9, 12)});
  history_->steps = {MakeRow(1, 5), MakeRow(6, 10)};
  v1::ListStepsRequest request;
  request.set_run("run");
  request.set_include_thinned(true);
  for (const int tail : {0, 6}) {
    request.set_tail(tail);
    const auto all = Steps(request);
    ASSERT_EQ(all.steps_size(), 4) << tail;
    EXPECT_EQ(all.steps(1).sequence(), 10u);
    EXPECT_EQ(all.steps(1).thinned().first_sequence(), 6u);
    EXPECT_EQ(all.steps(2).sequence(), 11u);
  }
}

TEST_F(HistoryApi, ARunThatIsOnlyInTheHistoryCanBeLookedAt) {
  Publish({MakeRun("live", 1, 4)});
  history_->runs = {{"live", kNow}, {"past", kNow - 86'400 * kSecond}};
  history_->steps = {MakeStep(1, 0, 2.0), MakeStep(2, 1, 2.0)};
  history_->incidents = {MakeIncident("1-1", state::Condition::kBlip, false)};
  history_->incidents[0].run = "past";
  history_->events.resize(1);
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = "past";
  history_->events[0].producer = producer;

  v1::ListRunsRequest list;
  EXPECT_EQ(api_.ListRuns(list)->past_runs_size(), 0);
  list.set_include_past(true);
  const auto runs = api_.ListRuns(list);
  ASSERT_EQ(runs->past_runs_size(), 1) << "a live one is no past one";
  EXPECT_EQ(runs->past_runs(0).run(), "past");

  v1::ListStepsRequest steps;
  steps.set_run("past");
  EXPECT_EQ(Steps(steps).steps_size(), 2);
  steps.set_tail(1);
  EXPECT_EQ(Steps(steps).steps_size(), 1);
  v1::ListIncidentsRequest incidents;
  incidents.set_run("past");
  EXPECT_EQ(api_.ListIncidents(incidents)->incidents_size(), 1);
  v1::ListVerdictsRequest verdicts;
  verdicts.set_run("past");
  EXPECT_TRUE(api_.ListVerdicts(verdicts).ok());
  v1::ListEventsRequest events;
  events.set_run("past");
  EXPECT_EQ(api_.ListEvents(events)->events_size(), 1);
  // What only a live run has is not made up.
  v1::GetVerdictRequest verdict;
  verdict.set_run("past");
  EXPECT_EQ(api_.GetVerdict(verdict).status().code(), absl::StatusCode::kNotFound);
  steps.set_run("never");
  EXPECT_EQ(api_.ListSteps(steps).status().code(), absl::StatusCode::kNotFound);
  history_->error = absl::UnavailableError("busy");
  EXPECT_EQ(api_.ListSteps(steps).status().code(), absl::StatusCode::kUnavailable) << "whether there is such a run is not known then";
}

TEST_F(HistoryApi, EventsComeInPagesWithTheirKinds) {
  Publish({MakeRun("run", 1, 4)});
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = "run";
  producer->attempt = "a1";
  producer->layout.rank = 3;
  history_->events = {
      {.producer = producer, .kind = LG_EVENT_CHECKPOINT, .step = 10, .text = "/c/10", .receive_time_ns = kNow},
      {.producer = producer, .kind = LG_EVENT_EVALUATION, .step = 11, .value = 2.5, .count = 7},
      {.producer = producer, .kind = LG_EVENT_PHASE_BEGIN, .step = -1, .phase = LG_PHASE_EVALUATION},
  };
  v1::ListEventsRequest request;
  request.set_run("run");
  request.set_page_size(2);
  auto page = api_.ListEvents(request);
  ASSERT_EQ(page->events_size(), 2);
  EXPECT_EQ(page->events(0).kind(), "checkpoint");
  EXPECT_EQ(page->events(0).text(), "/c/10");
  EXPECT_EQ(page->events(0).rank(), 3u);
  EXPECT_FALSE(page->events(0).has_value());
  EXPECT_EQ(page->events(1).value(), 2.5);
  request.set_page_token(page->next_page_token());
  page = api_.ListEvents(request);
  ASSERT_EQ(page->events_size(), 1);
  EXPECT_EQ(page->events(0).phase(), "evaluation");
  EXPECT_FALSE(page->events(0).has_step());
  EXPECT_EQ(page->next_page_token(), "");
}

TEST_F(HistoryApi, DamagedEventsAreCountedAndEndNoListEarly) {
  Publish({MakeRun("run", 1, 4)});
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = "run";
  for (int i = 0; i < 7; ++i) history_->events.push_back({.producer = i == 1 || i == 2 || i == 3 ? nullptr : producer, .step = i});
  v1::ListEventsRequest request;
  request.set_run("run");
  request.set_page_size(2);
  std::vector<std::int64_t> steps;
  std::uint64_t damaged = 0;
  int pages = 0;
  do {
    const auto page = api_.ListEvents(request);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const auto& event : page->events()) steps.push_back(event.step());
    damaged += page->damaged();
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && ++pages < 20);
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 4, 5, 6));
  EXPECT_EQ(damaged, 3u);
}

TEST_F(HistoryApi, DamagedVerdictsEndNoListEarlyAndRepeatNothing) {
  Publish({MakeRun("run", 1, 4)});
  for (int i = 0; i < 12; ++i) history_->verdicts.push_back(testing::MakeVerdict(state::Action::kWatch, "x", kNow - i * kSecond));
  for (const int i : {0, 2, 3, 6, 11}) history_->verdicts[static_cast<std::size_t>(i)].policy_version = "damaged";
  for (int size = 1; size <= 8; ++size) {
    v1::ListVerdictsRequest request;
    request.set_run("run");
    request.set_page_size(size);
    std::vector<std::int64_t> ages;
    for (int pages = 0; pages < 20; ++pages) {
      const auto page = api_.ListVerdicts(request);
      ASSERT_TRUE(page.ok()) << page.status();
      for (const auto& verdict : page->verdicts()) ages.push_back(kNow / kSecond - verdict.evaluated_at().seconds());
      request.set_page_token(page->next_page_token());
      if (request.page_token().empty()) break;
    }
    EXPECT_THAT(ages, ::testing::ElementsAre(1, 4, 5, 7, 8, 9, 10)) << "pages of " << size;
  }
}

TEST_F(HistoryApi, AComparisonEndsOnceNobodyWaitsForIt) {
  Publish({MakeRun("a", 5001, 5004), MakeRun("b", 5001, 5004)});
  for (std::uint64_t i = 1; i <= 5000; ++i) history_->steps.push_back(MakeStep(i, static_cast<std::int64_t>(i) - 1, 2.5));
  v1::CompareRunsRequest request;
  request.set_a("a");
  request.set_b("b");
  const auto ended = api_.CompareRuns(request, [this] { return history_->reads >= 3; });
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(history_->reads, 3) << "of 20 that it takes";
  EXPECT_EQ(api_.CompareRuns(request, [] { return false; })->compared(), 5004u);
}

TEST_F(HistoryApi, APolicyIsThatOfTheRunsJudge) {
  auto run = MakeRun("run", 1, 4);
  Publish({run});
  v1::GetPolicyRequest request;
  request.set_run("run");
  EXPECT_EQ(api_.GetPolicy(request).status().code(), absl::StatusCode::kUnavailable);
  run->policy = std::make_shared<state::PolicyView>(
      state::PolicyView{"my \"7\"\n", "shadow", {{"loss", "floor_nats", 0.12}, {"loss", "close_steps", 30}, {"time", "valid_seconds", 5}}});
  Publish({run});
  const auto policy = api_.GetPolicy(request);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->mode(), "shadow");
  EXPECT_EQ(policy->text(), "version: \"my \\\"7\\\"\\x0a\"\nmode: shadow\nloss:\n  floor_nats: 0.12\n  close_steps: 30\ntime:\n  valid_seconds: 5\n");
}

TEST_F(HistoryApi, TwoRunsAreComparedFromWhereverTheirStepsAre) {
  Publish({MakeRun("b", 3, 4), MakeRun("a", 1, 4)});
  history_->steps = {MakeStep(1, 0, 2.5), MakeStep(2, 1, 2.5)};
  v1::CompareRunsRequest request;
  request.set_a("a");
  request.set_b("b");
  const auto all = api_.CompareRuns(request);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->a(), "a");
  EXPECT_EQ(all->compared(), 4u);
  EXPECT_EQ(all->matched_by(), "unmasked_tokens");
  EXPECT_EQ(all->batches(0).loss_a_nats(), 2.001);
  EXPECT_EQ(all->batches(0).loss_b_nats(), 2.5);
  request.set_first_step(2);
  request.set_last_step(2);
  EXPECT_EQ(api_.CompareRuns(request)->compared(), 1u);
}

TEST_F(HistoryApi, AComparisonThatCannotBeIsRefusedWithTheFieldThatIsWrong) {
  Publish({MakeRun("a", 1, 4)});
  const auto refused = [&](const char* a, const char* b) {
    v1::CompareRunsRequest request;
    request.set_a(a);
    request.set_b(b);
    return std::string(api_.CompareRuns(request).status().message());
  };
  EXPECT_THAT(refused("a", "x"), HasSubstr("b: run: no run \"x\""));
  EXPECT_THAT(refused("", "a"), HasSubstr("a: run: missing"));
  EXPECT_THAT(refused("a", "a"), HasSubstr("b: the same as a"));
  v1::CompareRunsRequest request;
  request.set_a("a");
  request.set_b("a");
  request.set_attempt_a("a1");
  request.set_attempt_b("a2");
  EXPECT_THAT(api_.CompareRuns(request)->reason(), HasSubstr("of b: none")) << "attempts of one run are two things to compare";
  request.set_first_step(5);
  request.set_last_step(4);
  EXPECT_THAT(std::string(api_.CompareRuns(request).status().message()), HasSubstr("first_step: 5 is beyond last_step 4"));
}

}  // namespace
}  // namespace lossgauge::api
