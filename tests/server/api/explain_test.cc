#include "server/api/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/api/api.h"
#include "server/api/explain_rules.h"
#include "server/detect/policy_fields.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::api {
namespace {

using testing::FakeClock;
using testing::FakeHistory;
using testing::kNow;
using testing::kSecond;
using testing::MakeFullRun;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeVerdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const state::PolicyView& Policy() {
  static const state::PolicyView policy{"p-1", "advise", {{"loss", "deviations", 6}, {"loss", "floor_nats", 0.12}, {"loss", "close_steps", 30}}};
  return policy;
}

// Names of thresholds in a text.
std::vector<std::string> Named(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t open = text.find('{'); open != std::string_view::npos; open = text.find('{', open + 1)) {
    names.emplace_back(text.substr(open + 1, text.find('}', open) - open - 1));
  }
  return names;
}

std::string Lines(const v1::Explanation& story, const std::string& title) {
  std::string text;
  for (const auto& part : story.parts()) {
    if (part.title().rfind(title, 0) != 0) continue;
    for (const auto& line : part.lines()) text += line + "\n";
  }
  return text;
}

TEST(FillIn, ThresholdsAreNumbersWithTheirNames) {
  EXPECT_EQ(FillIn("after {loss.close_steps} steps or {loss.floor_nats}", &Policy()), "after 30 (loss.close_steps) steps or 0.12 (loss.floor_nats)");
  EXPECT_EQ(FillIn("after {loss.close_steps} steps", nullptr), "after loss.close_steps steps");
  EXPECT_EQ(FillIn("{no.such} {broken", &Policy()), "no.such {broken");
}

TEST(Rules, EachConditionHasAMeaningAndARule) {
  for (int i = 0; i < static_cast<int>(state::Condition::kCount); ++i) {
    const ExplainedRule& rule = RuleOf(static_cast<state::Condition>(i));
    EXPECT_FALSE(rule.meaning.empty() || rule.rule.empty()) << i;
  }
}

TEST(Rules, EachThresholdThatTheyNameIsOneOfThePolicy) {
  std::set<std::string> known;
  for (const auto& field : detect::PolicyFields()) known.insert(std::string(field.section) + "." + std::string(field.key));
  std::size_t named = 0;
  for (int i = 0; i < static_cast<int>(state::Condition::kCount); ++i) {
    const ExplainedRule& rule = RuleOf(static_cast<state::Condition>(i));
    for (const std::string_view text : {rule.meaning, rule.rule, rule.ends, rule.becomes}) {
      for (const std::string& name : Named(text)) {
        EXPECT_EQ(known.count(name), 1u) << name;
        ++named;
      }
    }
  }
  EXPECT_GT(named, 30u);
}

TEST(ExplainIncident, TellsWhatWasSeenSinceWhenWhyAndWhatWouldChangeIt) {
  state::Incident incident = MakeIncident("i-1", state::Condition::kLossSpike);
  incident.kind = "data";
  incident.rank = 2;
  incident.evidence = {{"loss_nats", 5.0975, "nats", ""}, {"worst_row", 0, "", "rank 1, target 31"}};
  ExplainedRun run;
  run.run = "run";
  run.policy = &Policy();
  run.now_ns = kNow;
  run.verdict = MakeVerdict(state::Action::kWatch, "loss_spike/data");
  run.verdict->escalates = "RESTART if the loss is not back 100 steps after step 40";
  const v1::Explanation story = ExplainIncident(run, incident);
  EXPECT_EQ(story.headline(), "something happened");
  EXPECT_EQ(story.policy_version(), "p-1");
  EXPECT_THAT(Lines(story, "What was seen"), HasSubstr("loss_spike/data, severity warning, steps 40 to 42, worst at 41, rank 2, attempt a1."));
  EXPECT_THAT(Lines(story, "Since when"), HasSubstr("Open since 2026-03-04 05:06:04 UTC, for 3.0 s."));
  EXPECT_EQ(Lines(story, "Evidence"), "loss nats: 5.0975 nats\nworst row: rank 1, target 31\n");
  EXPECT_THAT(Lines(story, "Rule"), HasSubstr("6 (loss.deviations) robust deviations and 0.12 (loss.floor_nats) nats above the trend"));
  EXPECT_THAT(Lines(story, "What it means"), HasSubstr("It is a reason of the present verdict, WATCH."));
  EXPECT_THAT(Lines(story, "What would change"), HasSubstr("after 30 (loss.close_steps) steps in a row"));
  EXPECT_THAT(Lines(story, "What would change"), HasSubstr("RESTART if the loss is not back 100 steps after step 40.\n"));
}

TEST(ExplainIncident, SaysWhenTheNumbersAreThoseOfAnotherPolicy) {
  ExplainedRun run;
  run.now_ns = kNow;
  run.policy = &Policy();
  const state::Incident incident = MakeIncident("i-1", state::Condition::kLossSpike);
  const auto rule = [&](std::vector<std::string> judged_by) {
    run.judged_by = std::move(judged_by);
    return Lines(ExplainIncident(run, incident), "Rule");
  };
  EXPECT_THAT(rule({"p-1"}), Not(HasSubstr("judged by")));
  EXPECT_THAT(rule({}), Not(HasSubstr("judged by"))) << "nothing is known";
  EXPECT_THAT(rule({"p-0"}), HasSubstr("Numbers are those of policy p-1, which is loaded now; it was judged by policy p-0,"));
  EXPECT_THAT(rule({"p-1", "p-0"}), HasSubstr("judged by policy p-1, p-0; numbers are those of p-1, the last of them."));
  run.policy = nullptr;
  EXPECT_THAT(rule({"p-0"}), HasSubstr("It was judged by policy p-0, whose numbers are not known any more."));
}

TEST(ExplainIncident, AVerdictIsOfItsTimeWhileItWasInForce) {
  state::Incident incident = MakeIncident("i-1", state::Condition::kLossSpike, false);
  incident.onset_time_ns = 100;
  incident.resolved_time_ns = 200;
  state::Verdict verdict;
  const auto is_of = [&](state::TimeNs from, state::TimeNs until) {
    verdict.evaluated_at_ns = from;
    return IsOfItsTime(verdict, until, incident);
  };
  EXPECT_FALSE(is_of(10, 100));
  EXPECT_TRUE(is_of(10, 101));
  EXPECT_TRUE(is_of(200, 300));
  EXPECT_FALSE(is_of(201, 300));
  incident.open = true;
  EXPECT_TRUE(is_of(201, 300));
}

TEST(ExplainIncident, ASymptomAndAnotherReasonAreNamedAndAResolvedOneChangesNothing) {
  ExplainedRun run;
  run.now_ns = kNow;
  run.verdict = MakeVerdict(state::Action::kRestart, "producer_lost");
  state::Incident incident = MakeIncident("i-1", state::Condition::kStall);
  EXPECT_THAT(Lines(ExplainIncident(run, incident), "What it means"), HasSubstr("The present verdict, RESTART, has another reason: Because of producer_lost."));
  incident.hidden_by = "i-0";
  EXPECT_THAT(Lines(ExplainIncident(run, incident), "What it means"), HasSubstr("a symptom of incident i-0"));
  state::Incident old = MakeIncident("i-2", state::Condition::kLossSpike, false);
  old.steps_to_recover = 28;
  old.acknowledged = state::Acknowledgement{"ada", "known", kNow};
  const v1::Explanation story = ExplainIncident(run, old);
  EXPECT_EQ(Lines(story, "What it means"), "Nothing any more: it is resolved.\n");
  EXPECT_EQ(Lines(story, "What would change"), "");
  EXPECT_THAT(Lines(story, "Since when"), HasSubstr("3.0 s; recovered after 28 steps."));
  EXPECT_THAT(Lines(story, "Since when"), HasSubstr("Acknowledged by ada: known"));
}

TEST(ExplainRun, TellsTheVerdictItsAdviceAndWhatIsOpen) {
  const auto snapshot = MakeFullRun("run");
  ExplainedRun run;
  run.run = "run";
  run.now_ns = kNow;
  run.verdict = snapshot->verdict;
  run.verdict_since_ns = kNow - 600 * kSecond;
  run.open = {MakeIncident("i-1", state::Condition::kDivergence), MakeIncident("i-2", state::Condition::kStall)};
  run.open[1].hidden_by = "i-1";
  const v1::Explanation story = ExplainRun(run);
  EXPECT_EQ(story.headline(), "RESTART: because of divergence");
  EXPECT_THAT(Lines(story, "Since when"), HasSubstr("RESTART for this reason since 2026-03-04 04:56:07 UTC, for 10 min."));
  EXPECT_THAT(Lines(story, "What to do"), HasSubstr("Resume from the checkpoint of step 30: /checkpoints/step_30"));
  EXPECT_THAT(Lines(story, "What to do"), HasSubstr("data of steps 34 to 41"));
  EXPECT_THAT(Lines(story, "What would change it"), HasSubstr("To HALT if it happens again at the same step."));
  EXPECT_THAT(Lines(story, "Open: divergence since step 40 (i-1)"), HasSubstr("the model is most likely damaged"));
  EXPECT_EQ(Lines(story, "Open: stall"), "") << "symptoms are not told one by one";
}

TEST(ExplainRun, AVerdictWithoutAnIncidentSaysWhatWouldChangeIt) {
  ExplainedRun run;
  run.now_ns = kNow;
  const std::pair<const char*, const char*> cases[] = {
      {"ended", "Only a new attempt"}, {"warming", "steps that can be judged"}, {"stale", "A fresh step"}, {"no_data", "A fresh step"}};
  for (const auto& [code, text] : cases) {
    run.verdict = MakeVerdict(state::Action::kUnknown, code);
    EXPECT_THAT(Lines(ExplainRun(run), "What would change it"), HasSubstr(text)) << code;
  }
  run.verdict = MakeVerdict(state::Action::kContinue, "fresh");
  run.verdict->mode = "shadow";
  EXPECT_THAT(Lines(ExplainRun(run), "What would change it"), HasSubstr("An incident above information makes it WATCH"));
  EXPECT_THAT(Lines(ExplainRun(run), "What to do"), HasSubstr("shadow mode"));
  run.verdict.reset();
  EXPECT_EQ(ExplainRun(run).headline(), "No verdict of this run was kept.");
}

class ExplainApi : public ::testing::Test {
 protected:
  v1::Explanation Ask(const std::string& run, const std::string& incident = "") {
    v1::ExplainRequest request;
    request.set_run(run);
    request.set_incident(incident);
    const auto story = api_.Explain(request);
    EXPECT_TRUE(story.ok()) << story.status();
    return story.ok() ? *story : v1::Explanation();
  }
  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  Api api_{board_, mailbox_, history_, clock_};
};

TEST_F(ExplainApi, AVerdictStandsSinceItsSubstanceChanged) {
  auto run = MakeRun("run", 1, 4);
  board_.Publish(MakeSnapshot(1, {run}));
  history_->verdicts = {run->verdict};
  history_->verdicts[0].evaluated_at_ns = kNow - 7200 * kSecond;
  EXPECT_THAT(Lines(Ask("run"), "Since when"), HasSubstr("CONTINUE for this reason since 2026-03-04 03:06:07 UTC, for 2.0 h."));
  history_->verdicts[0].action = state::Action::kWatch;
  EXPECT_THAT(Lines(Ask("run"), "Since when"), Not(HasSubstr("for this reason"))) << "the change is not written yet";
}

TEST_F(ExplainApi, IncidentsOfTheHistoryAndRunsOfThePastHaveTheirStory) {
  board_.Publish(MakeSnapshot(1, {MakeRun("run", 1, 4)}));
  history_->incidents = {MakeIncident("i-9", state::Condition::kLossSpike, false)};
  EXPECT_EQ(Ask("run", "i-9").incident(), "i-9");
  history_->runs = {{"past", kNow}};
  history_->verdicts = {MakeVerdict(state::Action::kHalt, "no_progress", kNow - 86'400 * kSecond)};
  const v1::Explanation story = Ask("past");
  EXPECT_EQ(story.headline(), "HALT: because of no_progress");
  EXPECT_THAT(Lines(story, "Since when"), HasSubstr("only in the history; this was its last verdict, of 2026-03-03 05:06:07 UTC"));
  v1::ExplainRequest request;
  request.set_run("run");
  request.set_incident("nope");
  EXPECT_EQ(api_.Explain(request).status().code(), absl::StatusCode::kNotFound);
  request.set_run("nobody");
  EXPECT_EQ(api_.Explain(request).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lossgauge::api
