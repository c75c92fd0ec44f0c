// What a scheduler's script sees of `lossgaugectl verdict`: exit codes of its own choice, and waiting through all that may happen meanwhile.
#include "server/ctl/verdict_wait.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;
using Writer = grpc::ServerWriter<v1::Verdict>;

v1::Verdict Say(v1::Action action, const std::string& code = "x") {
  v1::Verdict verdict = MakeRun("demo", action, "because").verdict();
  verdict.add_reason_codes(code);
  return verdict;
}

void UntilCancelled(grpc::ServerContext* context) {
  while (!context->IsCancelled()) gpr_sleep_until(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(5, GPR_TIMESPAN)));
}

// A lossgauged that answers as the test says. `get` counts from 0.
class Scripted final : public v1::LossGauge::Service {
 public:
  Scripted() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Scripted() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::function<grpc::Status(int get, v1::Verdict* verdict)> on_get = [](int, v1::Verdict* verdict) {
    *verdict = Say(v1::CONTINUE);
    return grpc::Status::OK;
  };
  std::function<grpc::Status(grpc::ServerContext* context, Writer* writer)> on_watch = [](grpc::ServerContext* context, Writer*) {
    UntilCancelled(context);
    return grpc::Status::OK;
  };
  std::atomic<int> gets{0};

  grpc::Status GetVerdict(grpc::ServerContext*, const v1::GetVerdictRequest*, v1::Verdict* verdict) override { return on_get(gets++, verdict); }
  grpc::Status WatchVerdict(grpc::ServerContext* context, const v1::WatchVerdictRequest*, Writer* writer) override { return on_watch(context, writer); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class VerdictWait : public ::testing::Test {
 protected:
  VerdictWait() { session.environment = {{"LOSSGAUGE_ADDRESS", lossgauge.address()}}; }

  int Wait(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"verdict", "demo", "--wait"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return session.Run(arguments);
  }
  void Answer(const v1::Verdict& verdict) {
    lossgauge.on_get = [verdict](int, v1::Verdict* answer) {
      *answer = verdict;
      return grpc::Status::OK;
    };
  }
  void Stream(std::vector<v1::Verdict> verdicts) {
    lossgauge.on_watch = [verdicts](grpc::ServerContext* context, Writer* writer) {
      for (const v1::Verdict& verdict : verdicts) writer->Write(verdict);
      UntilCancelled(context);
      return grpc::Status::OK;
    };
  }

  Scripted lossgauge;
  Session session;
};

TEST_F(VerdictWait, EndsWithTheFirstVerdictThatIsActedUpon) {
  Stream({Say(v1::CONTINUE), Say(v1::WATCH), Say(v1::RESTART), Say(v1::HALT)});
  EXPECT_EQ(Wait(), 20);
  EXPECT_THAT(session.out, HasSubstr("RESTART  demo"));
  EXPECT_EQ(Wait({"--exit_codes=restart=93,halt=94"}), 93);
  EXPECT_EQ(Wait({"--exit-codes=restart=93,halt=94", "--for=halt"}), 94);
  EXPECT_EQ(Wait({"--for=watch,halt"}), 10);
  EXPECT_EQ(Wait({"--for=continue"}), 0);  // the very first answer
}

TEST_F(VerdictWait, TheVerdictOnTheAttemptBeforeEndsNoWaitForThisOne) {
  v1::Verdict before = Say(v1::RESTART), now = Say(v1::HALT);
  before.set_attempt("7.0");
  now.set_attempt("7.1");
  Stream({before, now});
  EXPECT_EQ(Wait({"--attempt=7.1"}), 30);
  EXPECT_EQ(Wait({"--attempt=7.0"}), 20);
  EXPECT_EQ(Wait({"--attempt=7", "--wait-timeout=100ms"}), 50);
}

TEST_F(VerdictWait, ACleanEndEndsItAndOtherUnknownsDoNot) {
  Stream({Say(v1::UNKNOWN, "stale"), Say(v1::UNKNOWN, "ended")});
  EXPECT_EQ(Wait(), 40);
  EXPECT_THAT(session.out, HasSubstr("ended"));
  EXPECT_EQ(Wait({"--exit-codes=ended=0,unknown=41"}), 0);
  Stream({Say(v1::UNKNOWN, "stale")});
  EXPECT_EQ(Wait({"--wait-timeout=100ms"}), 50);
}

TEST_F(VerdictWait, WhenTheTimeIsUpTheLastVerdictIsShown) {
  EXPECT_EQ(Wait({"--wait-timeout=100ms"}), 50);
  EXPECT_THAT(session.out, HasSubstr("CONTINUE"));
  EXPECT_THAT(session.err, HasSubstr("(restart,halt,ended) within 100ms"));
  EXPECT_EQ(Wait({"--wait-timeout=100ms", "--exit-codes=timeout=0"}), 0);
}

TEST_F(VerdictWait, ALossgaugedThatGoesAwayAndComesBackIsWaitedFor) {
  lossgauge.on_get = [](int get, v1::Verdict* verdict) {
    if (get == 1 || get == 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
    *verdict = Say(get < 3 ? v1::CONTINUE : v1::HALT);
    return grpc::Status::OK;
  };
  lossgauge.on_watch = [](grpc::ServerContext*, Writer*) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down"); };
  EXPECT_EQ(Wait(), 30);
  EXPECT_EQ(lossgauge.gets, 4);
}

TEST_F(VerdictWait, OutOfReachHasACodeOfItsOwn) {
  for (const std::string address : {"127.0.0.1:1", "[::1]:1"}) {
    EXPECT_EQ(Wait({"--address=" + address, "--patience=50ms"}), 60);
    EXPECT_THAT(session.err, HasSubstr("cannot reach lossgauged at " + address));
    EXPECT_EQ(Wait({"--address=" + address, "--wait-timeout=50ms", "--exit-codes=unreachable=75"}), 75);
    EXPECT_EQ(session.Run({"verdict", "demo", "--address=" + address}), 60);
  }
  EXPECT_EQ(session.out, "");
}

TEST_F(VerdictWait, AStoppedLossgaugedIsOutOfReachToo) {
  lossgauge.on_get = [](int, v1::Verdict*) {
    gpr_sleep_until(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(200, GPR_TIMESPAN)));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Wait({"--timeout=20ms", "--patience=100ms"}), 60);
  EXPECT_THAT(session.err, HasSubstr("no answer from"));
}

TEST_F(VerdictWait, ARunThatIsNotKnownYetIsWaitedForButNotForEver) {
  const grpc::Status none(grpc::StatusCode::NOT_FOUND, "no run named \"demo\"");
  lossgauge.on_get = [&](int get, v1::Verdict* verdict) {
    *verdict = Say(v1::RESTART);
    return get < 2 ? none : grpc::Status::OK;
  };
  EXPECT_EQ(Wait(), 20);
  lossgauge.on_get = [&](int, v1::Verdict*) { return none; };
  EXPECT_EQ(Wait({"--patience=50ms"}), 1);
  EXPECT_THAT(session.err, HasSubstr("no run named"));
}

TEST_F(VerdictWait, WhatNoWaitingMendsEndsItAtOnce) {
  lossgauge.on_get = [](int, v1::Verdict*) { return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "who are you"); };
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(lossgauge.gets, 1);
}

TEST_F(VerdictWait, NobodyIsAskedInATightLoop) {
  lossgauge.on_watch = [](grpc::ServerContext*, Writer*) { return grpc::Status::OK; };
  EXPECT_EQ(Wait({"--wait-timeout=700ms"}), 50);
  EXPECT_LE(lossgauge.gets, 6);  // pauses of 100, 200, 400 ms and the end
}

TEST_F(VerdictWait, AQuietStreamIsNotTrustedForEver) {
  lossgauge.on_get = [](int get, v1::Verdict* verdict) {
    *verdict = Say(get == 0 ? v1::CONTINUE : v1::RESTART);
    return grpc::Status::OK;
  };
  std::ostringstream out, err;
  Io io{out, err};
  const auto options = ParseOptions(VerdictCommand(), {"demo", "--address=" + lossgauge.address()});
  ASSERT_TRUE(options.ok());
  Connection connection(*options, io);
  WaitOptions wait;
  wait.wanted = {Outcome::kRestart};
  wait.stream_life = absl::Milliseconds(50);
  EXPECT_EQ(WaitForVerdict(connection, "demo", wait).outcome, Outcome::kRestart);
}

TEST_F(VerdictWait, NobodyActsOnShadowMode) {
  for (const v1::Action action : {v1::RESTART, v1::HALT}) {
    v1::Verdict verdict = Say(action);
    verdict.set_mode("shadow");
    Answer(verdict);
    EXPECT_EQ(session.Run({"verdict", "demo"}), 10);
    EXPECT_THAT(session.out, HasSubstr(v1::Action_Name(action)));
    EXPECT_EQ(Wait({"--wait-timeout=50ms"}), 50);
  }
}

TEST_F(VerdictWait, AnAnswerAboutAnotherRunIsNone) {
  v1::Verdict verdict = Say(v1::CONTINUE);
  verdict.set_run("other");
  Answer(verdict);
  EXPECT_EQ(session.Run({"verdict", "demo"}), 1);
  EXPECT_THAT(session.err, HasSubstr("about run \"other\", not \"demo\""));
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(session.out, "");
}

TEST_F(VerdictWait, AVerdictThatHadRunOutWhenItWasGivenIsUnknown) {
  v1::Verdict verdict = Say(v1::CONTINUE);
  verdict.mutable_evaluated_at()->set_seconds(100);
  verdict.mutable_valid_until()->set_seconds(100);
  Answer(verdict);
  EXPECT_EQ(session.Run({"verdict", "demo"}), 40);
  verdict.mutable_valid_until()->set_seconds(101);
  Answer(verdict);
  EXPECT_EQ(session.Run({"verdict", "demo"}), 0);
}

TEST_F(VerdictWait, WrongUseIsNamedAndNobodyIsAsked) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--exit-codes=retsart=93"}, "not \"retsart=93\""},      {{"--exit-codes=restart"}, "not \"restart\""},
      {{"--exit-codes=restart=1"}, "0 or from 3 to 255"},       {{"--exit-codes=restart=256"}, "0 or from 3 to 255"},
      {{"--exit-codes=restart=-1"}, "0 or from 3 to 255"},      {{"--exit-codes=restart=9x"}, "0 or from 3 to 255"},
      {{"--exit-codes=restart=93,"}, "not \"\""},               {{"--exit-codes=halt=93,halt=94"}, "halt twice"},
      {{"--for=restart"}, "--for goes with --wait"},            {{"--attempt=1"}, "--attempt goes with --wait"},          {{"--patience=1s"}, "--patience goes with --wait"},
      {{"--wait", "--for=timeout"}, "not \"timeout\""},         {{"--wait", "--for="}, "not \"\""},
      {{"--wait", "--wait-timeout=5"}, "a time with its unit"}, {{"--wait=yes"}, "takes no value"}};
  for (const auto& [flags, text] : wrong) {
    std::vector<std::string> arguments = {"verdict", "demo"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(session.Run(arguments), 2) << flags.back();
    EXPECT_THAT(session.err, HasSubstr(text));
  }
  EXPECT_EQ(lossgauge.gets, 0);
}

TEST(ExitCodes, EqualCodesAreAllowedAndTheRestKeepsItsDefault) {
  const auto codes = ExitCodes::Parse("restart=93,halt=93,unreachable=0");
  ASSERT_TRUE(codes.ok());
  EXPECT_EQ(codes->Of(Outcome::kRestart), 93);
  EXPECT_EQ(codes->Of(Outcome::kHalt), 93);
  EXPECT_EQ(codes->Of(Outcome::kUnreachable), 0);
  EXPECT_EQ(codes->Of(Outcome::kWatch), 10);
  EXPECT_EQ(codes->Of(Outcome::kTimeout), 50);
}

}  // namespace
}  // namespace lossgauge::ctl
