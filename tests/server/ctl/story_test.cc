// Commands about what was: comparisons, explanations, thinned steps, runs of the past.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CtlStory : public ::testing::Test {
 protected:
  CtlStory() {
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
    fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "fresh");
    fake.runs["other"] = MakeRun("other", v1::CONTINUE, "fresh");
    v1::Comparison& c = fake.comparison;
    c.set_comparable(true);
    c.set_matched_by("target_fingerprint");
    c.set_compared(640);
    c.set_differing(3);
    c.set_first_step(10);
    c.set_last_step(700);
    c.set_first_differing_step(41);
    c.set_first_difference("other targets: 9 tokens in the loss in a, 8 in b");
    SetDifference(c.mutable_loss(), 2.5, 2.49, -0.012, -0.008);
    SetDifference(c.mutable_perplexity(), 12.2, 12.1, -0.14, -0.1);
  }
  static void SetDifference(v1::Difference* difference, double a, double b, double low, double high) {
    difference->set_a(a);
    difference->set_b(b);
    difference->set_difference(b - a);
    difference->set_low(low);
    difference->set_high(high);
  }
  FakeLossGauge fake;
  Session session;
};

TEST_F(CtlStory, CompareSaysWhichIsLowerAndHowSureThatIs) {
  ASSERT_EQ(session.Run({"compare", "demo", "other", "--from=10", "--attempt-b=2"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("-0.010000 nats  (a 2.500000, b 2.490000), 95 % band -0.012000 to"));
  EXPECT_THAT(session.out, HasSubstr("b has the lower loss: 0 lies outside of the band"));
  EXPECT_THAT(session.out, HasSubstr("640 compared, from 10 to 700; 3 with other targets left out"));
  EXPECT_THAT(session.out, HasSubstr("step 41, other targets: 9 tokens"));
  EXPECT_THAT(session.out, Not(HasSubstr("careful")));
  EXPECT_EQ(fake.last_comparison.first_step(), 10);
  EXPECT_FALSE(fake.last_comparison.has_last_step());
  EXPECT_EQ(fake.last_comparison.attempt_b(), "2");
  EXPECT_LE(LongestLine(session.out), 80u);
}

TEST_F(CtlStory, CompareNeverCallsNoiseADifference) {
  fake.comparison.mutable_loss()->set_high(0.001);
  fake.comparison.set_correlated(true);
  session.Run({"compare", "demo", "other"});
  EXPECT_THAT(session.out, HasSubstr("no difference that stands out of the noise"));
  EXPECT_THAT(session.out, HasSubstr("careful       neighbouring stretches still depend on each other"));
  fake.comparison.mutable_loss()->clear_low();
  session.Run({"compare", "demo", "other"});
  EXPECT_THAT(session.out, HasSubstr("too few steps to say how sure that is"));
}

TEST_F(CtlStory, CompareFailsWithTheReasonWhereNothingIsComparable) {
  fake.comparison.set_comparable(false);
  fake.comparison.set_reason("not comparable: the targets differ in every step");
  EXPECT_EQ(session.Run({"compare", "demo", "other"}), 1);
  EXPECT_THAT(session.out, HasSubstr("not comparable: the targets differ in every step"));
  EXPECT_EQ(session.Run({"compare", "demo", "other", "--json"}), 1);
  v1::Comparison back;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &back).ok());
  EXPECT_EQ(session.Run({"compare", "demo", "nope"}), 1);
  EXPECT_THAT(session.err, HasSubstr("no run named \"nope\""));
  EXPECT_EQ(session.Run({"compare", "demo"}), 2) << "two are compared";
}

TEST_F(CtlStory, ExplainPrintsTheStoryOfARunOrOfOneIncident) {
  fake.explanation.set_headline("RESTART: the loss \x1b[31mdiverged");
  fake.explanation.set_policy_version("default-1");
  v1::ExplanationPart& part = *fake.explanation.add_parts();
  part.set_title("Rule");
  part.add_lines("A loss is too high from 6 (loss.deviations) robust deviations and 0.12 (loss.floor_nats) nats above the trend.");
  ASSERT_EQ(session.Run({"explain", "demo"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("RESTART: the loss \\x1b[31mdiverged\n\nRule\n  A loss is too high from 6 (loss.deviations)"));
  EXPECT_THAT(session.out, HasSubstr("Judged by policy default-1."));
  EXPECT_LE(LongestLine(session.out), 80u);
  ASSERT_EQ(session.Run({"explain", "demo", "i-7", "--json"}), 0);
  EXPECT_THAT(session.out, HasSubstr("\"incident\": \"i-7\""));
  EXPECT_EQ(session.Run({"explain"}), 2);
  EXPECT_EQ(session.Run({"explain", "demo", "i-7", "more"}), 2);
}

TEST_F(CtlStory, StepsShowWhatARowOfThinnedOnesStandsFor) {
  v1::Step row = MakeStep(64, 63, 2.5);
  row.mutable_thinned()->set_steps(64);
  fake.steps["demo"] = {row, MakeStep(65, 64, 2.25)};
  ASSERT_EQ(session.Run({"steps", "demo"}), 0);
  EXPECT_TRUE(fake.last_steps_request.include_thinned());
  EXPECT_THAT(session.out, HasSubstr("0..63"));
  EXPECT_THAT(session.out, HasSubstr("A..B: means over steps that the history has thinned"));
  fake.steps["demo"].erase(fake.steps["demo"].begin());
  session.Run({"steps", "demo"});
  EXPECT_THAT(session.out, Not(HasSubstr("A..B")));
}

TEST_F(CtlStory, RunsOfThePastAreListedWhenAskedFor) {
  v1::PastRun& past = fake.past_runs.emplace_back();
  past.set_run("last week's");
  past.mutable_last_write_time()->set_seconds(1'772'600'767);
  session.Run({"runs"});
  EXPECT_THAT(session.out, Not(HasSubstr("last week's")));
  session.Run({"runs", "--past"});
  EXPECT_THAT(session.out, HasSubstr("last week's  2026-03-04 05:06:07 UTC"));
}

}  // namespace
}  // namespace lossgauge::ctl
