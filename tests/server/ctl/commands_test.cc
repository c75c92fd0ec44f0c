#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cmath>

#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CtlCommands : public ::testing::Test {
 protected:
  CtlCommands() { session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}, {"USER", "ada"}}; }

  FakeLossGauge fake;
  Session session;
};

TEST_F(CtlCommands, VerdictsExitCodeIsTheAction) {
  const std::pair<v1::Action, int> codes[] = {
      {v1::CONTINUE, 0}, {v1::WATCH, 10}, {v1::RESTART, 20}, {v1::HALT, 30}, {v1::UNKNOWN, 40}, {v1::ACTION_UNSPECIFIED, 40}};
  for (const auto& [action, code] : codes) {
    fake.runs["demo"] = MakeRun("demo", action, "because");
    EXPECT_EQ(session.Run({"verdict", "demo"}), code);
    EXPECT_EQ(session.Run({"verdict", "demo", "--json"}), code);
  }
}

TEST_F(CtlCommands, AnActionOfANewerServerIsUnknownToUs) {
  fake.runs["demo"] = MakeRun("demo", static_cast<v1::Action>(17), "new");
  EXPECT_EQ(session.Run({"verdict", "demo"}), 40);
  EXPECT_THAT(session.out, HasSubstr("UNKNOWN"));
}

TEST_F(CtlCommands, VerdictSaysWhereToResumeAndWhatToSkip) {
  v1::Run run = MakeRun("demo", v1::RESTART, "divergence since step 812");
  v1::Verdict& verdict = *run.mutable_verdict();
  verdict.add_reason_codes("divergence");
  verdict.mutable_resume_point()->set_step(700);
  verdict.mutable_resume_point()->set_path("/ckpt/700.pt");
  verdict.mutable_skip()->set_first(701);
  verdict.mutable_skip()->set_last(815);
  verdict.set_last_good_step(811);
  verdict.set_last_step(900);
  verdict.mutable_last_step_age()->set_seconds(3);
  verdict.mutable_evaluated_at()->set_seconds(1'000'000);
  verdict.mutable_valid_until()->set_seconds(1'000'060);
  v1::Evidence& evidence = *verdict.add_evidence();
  evidence.set_name("loss");
  evidence.set_value(7.25);
  evidence.set_unit("nats/token");
  fake.runs["demo"] = run;
  EXPECT_EQ(session.Run({"verdict", "demo"}), 20);
  EXPECT_THAT(session.out, HasSubstr("RESTART  demo"));
  for (const char* text : {"divergence since step 812", "step 700  /ckpt/700.pt", "701 to 815", "step 811", "900, 3.0 s old", "7.250 nats/token",
                           "60 s, until 1970-01-12 13:47:40 UTC", "policy default-1"}) {
    EXPECT_THAT(session.out, HasSubstr(text));
  }
  EXPECT_LE(LongestLine(session.out), 80u);
}

TEST_F(CtlCommands, JsonIsTheMessageItself) {
  fake.runs["demo"] = MakeRun("demo", v1::WATCH, "young");
  session.Run({"verdict", "demo", "--json"});
  v1::Verdict back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &back).ok()) << session.out;
  EXPECT_EQ(back.SerializeAsString(), fake.runs["demo"].verdict().SerializeAsString());
  EXPECT_THAT(session.out, HasSubstr("\"reasonCodes\""));
}

TEST_F(CtlCommands, RunsListTheWorstFirstAndTheEndedLast) {
  fake.runs["a-good"] = MakeRun("a-good", v1::CONTINUE, "fresh");
  fake.runs["b-ended"] = MakeRun("b-ended", v1::HALT, "ended");
  fake.runs["b-ended"].set_ended(true);
  fake.runs["c-watch"] = MakeRun("c-watch", v1::WATCH, "young");
  fake.runs["d-halt"] = MakeRun("d-halt", v1::HALT, "integrity");
  fake.runs["e-restart"] = MakeRun("e-restart", v1::RESTART, "divergence");
  fake.runs["f-unknown"] = MakeRun("f-unknown", v1::UNKNOWN, "stale");
  ASSERT_EQ(session.Run({"runs"}), 0);
  std::size_t at = 0;
  for (const char* name : {"d-halt", "e-restart", "c-watch", "f-unknown", "a-good", "b-ended"}) {
    const std::size_t found = session.out.find(name, at);
    ASSERT_NE(found, std::string::npos) << name << " in\n" << session.out;
    at = found;
  }
}

TEST_F(CtlCommands, RunsFitEightyColumnsAndOddNamesAreHarmless) {
  fake.runs["🚀 \"q\""] = MakeRun("🚀 \"q\"", v1::WATCH, std::string(300, 'x'));
  fake.runs["evil\x1b[2J"] = MakeRun("evil\x1b[2J", v1::WATCH, "line\nbreak");
  ASSERT_EQ(session.Run({"runs"}), 0);
  EXPECT_LE(LongestLine(session.out), 80u);
  EXPECT_THAT(session.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(session.out, HasSubstr("🚀 \"q\""));
  EXPECT_EQ(std::count(session.out.begin(), session.out.end(), '\n'), 3);
}

TEST_F(CtlCommands, ALongRunNameLeavesRoomForTheReasonAndIsWholeInJson) {
  const std::string name = "first-" + std::string(240, 'x') + "-last";
  fake.runs[name] = MakeRun(name, v1::WATCH, "the loss has risen for 20 steps");
  fake.runs["short"] = MakeRun("short", v1::WATCH, "the loss has risen for 20 steps");
  ASSERT_EQ(session.Run({"runs"}), 0);
  EXPECT_LE(LongestLine(session.out), 80u);
  EXPECT_THAT(session.out, HasSubstr("the loss has risen"));
  EXPECT_THAT(session.out, HasSubstr("first-xxxx…xxxxxx-last  WATCH"));
  session.width = 200;
  ASSERT_EQ(session.Run({"runs"}), 0);
  EXPECT_THAT(session.out, HasSubstr("short" + std::string(35, ' ') + "  WATCH"));
  EXPECT_THAT(session.out, HasSubstr("the loss has risen for 20 steps\n"));
  ASSERT_EQ(session.Run({"runs", "--json"}), 0);
  EXPECT_THAT(session.out, HasSubstr(name));
}

TEST_F(CtlCommands, RunsAreColouredOnlyIfTheTerminalWantsIt) {
  fake.runs["demo"] = MakeRun("demo", v1::HALT, "integrity");
  session.Run({"runs"});
  EXPECT_THAT(session.out, Not(HasSubstr("\x1b")));
  session.colour = true;
  session.Run({"runs"});
  EXPECT_THAT(session.out, HasSubstr("\x1b[1;35mHALT"));
}

TEST_F(CtlCommands, NoRunsIsSaidAndIsNoError) {
  EXPECT_EQ(session.Run({"runs"}), 0);
  EXPECT_THAT(session.out, HasSubstr("No runs"));
}

TEST_F(CtlCommands, StepsAreCollectedOverPages) {
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  for (int i = 0; i < 25; ++i) fake.steps["demo"].push_back(MakeStep(static_cast<std::uint64_t>(i) + 1, i, 2.0));
  fake.page = 10;
  ASSERT_EQ(session.Run({"steps", "demo", "--first=0", "--last=24", "--json"}), 0);
  v1::ListStepsResponse back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &back).ok());
  EXPECT_EQ(back.steps_size(), 25);
  EXPECT_EQ(fake.last_steps_request.first_step(), 0);
  EXPECT_TRUE(fake.last_steps_request.has_first_step());
  EXPECT_EQ(fake.last_steps_request.last_step(), 24);
  EXPECT_EQ(fake.last_steps_request.tail(), 0);
}

TEST_F(CtlCommands, StepsShowTheNewestTwentyUnlessToldOtherwise) {
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  for (int i = 0; i < 25; ++i) fake.steps["demo"].push_back(MakeStep(static_cast<std::uint64_t>(i) + 1, i, 2.0));
  ASSERT_EQ(session.Run({"steps", "demo"}), 0);
  EXPECT_EQ(std::count(session.out.begin(), session.out.end(), '\n'), 21);
  ASSERT_EQ(session.Run({"steps", "demo", "--tail", "3", "--attempt=1"}), 0);
  EXPECT_EQ(std::count(session.out.begin(), session.out.end(), '\n'), 4);
  EXPECT_EQ(fake.last_steps_request.attempt(), "1");
  EXPECT_LE(LongestLine(session.out), 80u);
}

TEST_F(CtlCommands, StepsTellNotMeasuredFromZeroAndFromNaN) {
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  v1::Step step = MakeStep(1, 5, std::nan(""));
  step.set_nonfinite_rows(3);
  step.set_grad_norm(0);
  step.set_complete(false);
  fake.steps["demo"] = {step};
  ASSERT_EQ(session.Run({"steps", "demo"}), 0);
  EXPECT_THAT(session.out, HasSubstr("NaN    -       -      -     0    4096    3     2*"));
  EXPECT_THAT(session.out, HasSubstr("* ranks are missing"));
}

TEST_F(CtlCommands, StepsOfSeveralAttemptsNameThem) {
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  fake.steps["demo"] = {MakeStep(1, 5, 2), MakeStep(2, 3, 2)};
  fake.steps["demo"][1].set_attempt("2");
  ASSERT_EQ(session.Run({"steps", "demo"}), 0);
  EXPECT_THAT(session.out, HasSubstr("ATTEMPT"));
}

v1::Incident MakeIncident(const std::string& id, bool open) {
  v1::Incident incident;
  incident.set_id(id);
  incident.set_run("demo");
  incident.set_condition("loss_spike");
  incident.set_kind("logit_blowup");
  incident.set_severity(v1::WARNING);
  incident.set_open(open);
  incident.set_onset_step(300);
  incident.set_peak_step(302);
  incident.set_last_step(327);
  incident.set_summary("Loss rose by 2.4 nats.");
  incident.set_rank(2);
  return incident;
}

TEST_F(CtlCommands, IncidentsAreExplained) {
  fake.runs["demo"] = MakeRun("demo", v1::WATCH, "");
  fake.incidents["demo"] = {MakeIncident("i-1", false), MakeIncident("i-2", true)};
  ASSERT_EQ(session.Run({"incidents", "demo"}), 0);
  EXPECT_THAT(session.out, HasSubstr("i-1  warning  loss_spike/logit_blowup  resolved"));
  EXPECT_THAT(session.out, HasSubstr("i-2  warning  loss_spike/logit_blowup  open"));
  EXPECT_THAT(session.out, HasSubstr("300 to 327, peak at 302, rank 2"));
  ASSERT_EQ(session.Run({"incidents", "demo", "--open"}), 0);
  EXPECT_THAT(session.out, Not(HasSubstr("i-1")));
  fake.incidents.clear();
  ASSERT_EQ(session.Run({"incidents", "demo", "--open"}), 0);
  EXPECT_EQ(session.out, "No open incidents.\n");
}

TEST_F(CtlCommands, AcknowledgingSaysWho) {
  fake.incidents["demo"] = {MakeIncident("i-1", true)};
  ASSERT_EQ(session.Run({"ack", "i-1", "--comment=a bad document"}), 0);
  EXPECT_EQ(fake.last_acknowledgement.by(), "ada");
  EXPECT_EQ(fake.last_acknowledgement.comment(), "a bad document");
  EXPECT_THAT(session.out, HasSubstr("i-1 (loss_spike/logit_blowup of demo) acknowledged by ada"));
  EXPECT_EQ(session.Run({"ack", "i-9"}), 1);
  EXPECT_THAT(session.err, HasSubstr("no incident \"i-9\""));
}

TEST_F(CtlCommands, ReportingReachesTheLedger) {
  fake.runs["demo"] = MakeRun("demo", v1::RESTART, "");
  ASSERT_EQ(session.Run({"report", "demo", "restart", "--actor=slurm", "--attempt=3"}), 0);
  EXPECT_EQ(fake.last_report.action(), v1::RESTART);
  EXPECT_EQ(fake.last_report.actor(), "slurm");
  EXPECT_EQ(fake.last_report.attempt(), "3");
  EXPECT_THAT(session.out, HasSubstr("RESTART of demo by slurm is in the ledger, entry 7"));
}

TEST_F(CtlCommands, AModeIsSetAndSaid) {
  fake.runs["demo"] = MakeRun("demo", v1::RESTART, "");
  ASSERT_EQ(session.Run({"mode", "demo", "shadow", "--by=anna"}), 0);
  EXPECT_EQ(fake.last_mode.run(), "demo");
  EXPECT_EQ(fake.last_mode.by(), "anna");
  EXPECT_THAT(session.out, HasSubstr("demo is in mode shadow"));
  EXPECT_NE(session.Run({"mode", "none", "shadow", "--by=anna"}), 0);
}

TEST_F(CtlCommands, ARunNameMayLookLikeAFlagAfterTheDashes) {
  fake.runs["--odd"] = MakeRun("--odd", v1::CONTINUE, "");
  EXPECT_EQ(session.Run({"verdict", "--", "--odd"}), 0);
}

TEST_F(CtlCommands, AnUnknownRunIsAnErrorAndNoVerdict) {
  for (const char* command : {"verdict", "steps", "incidents", "watch"}) {
    EXPECT_EQ(session.Run({command, "nope"}), 1) << command;
    EXPECT_THAT(session.err, HasSubstr("no run named \"nope\""));
    EXPECT_THAT(session.err, HasSubstr(fake.address()));
    EXPECT_EQ(session.out, "");
  }
}

TEST_F(CtlCommands, WithoutADaemonTheAddressAndTheRemedyAreNamed) {
  fake.Stop();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"runs"}, {"verdict", "a"}, {"steps", "a"}, {"incidents", "a"}, {"watch", "a"}, {"ack", "a"}, {"report", "a", "HALT"}}) {
    EXPECT_EQ(session.Run(arguments), arguments[0] == "verdict" ? 60 : 1) << arguments[0];
    EXPECT_THAT(session.err, HasSubstr("cannot reach lossgauged at " + fake.address()));
    EXPECT_THAT(session.err, HasSubstr("Is lossgauged running?"));
    EXPECT_EQ(session.out, "");
  }
}

TEST_F(CtlCommands, AnAddressThatIsNoneIsNotAsked) {
  EXPECT_EQ(session.Run({"runs", "--address=http://127.0.0.1:9789"}), 2);
  EXPECT_THAT(session.err, HasSubstr("is a URL; write HOST:PORT"));
  session.environment["LOSSGAUGE_ADDRESS"] = "localhost";
  EXPECT_EQ(session.Run({"verdict", "demo"}), 2);
  EXPECT_THAT(session.err, HasSubstr("address localhost: no port; write HOST:PORT"));
}

TEST_F(CtlCommands, TheFlagBeatsTheEnvironment) {
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  session.environment["LOSSGAUGE_ADDRESS"] = "127.0.0.1:1";
  EXPECT_EQ(session.Run({"verdict", "demo"}), 60);
  EXPECT_THAT(session.err, HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(session.Run({"verdict", "demo", "--address=" + fake.address()}), 0);
}

TEST_F(CtlCommands, AProxyOfTheEnvironmentIsNotAsked) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "");
  EXPECT_EQ(session.Run({"verdict", "demo"}), 0);
  unsetenv("http_proxy");
}

TEST_F(CtlCommands, ASilentDaemonIsGivenUpAfterTheTimeout) {
  fake.delay = std::chrono::hours(1);
  EXPECT_EQ(session.Run({"runs", "--timeout=50ms"}), 1);
  EXPECT_THAT(session.err, HasSubstr("no answer from " + fake.address() + " within 50ms"));
}

}  // namespace
}  // namespace lossgauge::ctl
