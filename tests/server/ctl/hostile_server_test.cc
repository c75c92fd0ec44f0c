// lossgaugectl beside something that is no lossgauged, is dead or slow, or lies: it ends, says what is wrong, and what it prints is what it claims to be.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::vector<std::string>>& AskingCommands() {
  static const auto& commands = *new std::vector<std::vector<std::string>>{{"runs"}, {"verdict", "demo"}, {"steps", "demo"}, {"incidents", "demo"},
      {"explain", "demo"}, {"compare", "demo", "demo"}, {"ack", "1"}, {"report", "demo", "HALT"}, {"mode", "demo", "shadow"}};
  return commands;
}

// Takes connections, sends `words` to each and then reads until the other end is gone; says nothing if `words` is empty.
class Stranger {
 public:
  explicit Stranger(std::string words, bool hang_up = false) : words_(std::move(words)), hang_up_(hang_up) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~Stranger() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const std::string& address() const { return address_; }

 private:
  void Serve() {
    std::vector<std::thread> conversations;
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
      conversations.emplace_back([this, fd] {
        if (!words_.empty()) (void)!send(fd, words_.data(), words_.size(), MSG_NOSIGNAL);
        char buffer[4096];
        while (!hang_up_ && read(fd, buffer, sizeof buffer) > 0) {
        }
        close(fd);
      });
    }
    for (std::thread& thread : conversations) thread.join();
  }

  const std::string words_;
  const bool hang_up_;
  int listener_ = -1;
  std::string address_;
  std::thread thread_;
};

TEST(HostileServer, WhoeverIsNotLossgaugedIsGivenUpAndNamed) {
  const std::pair<std::string, bool> strangers[] = {{"", false}, {"", true}, {"HTTP/1.1 400 Bad Request\r\n\r\n", false},
                                                    {"HTTP/1.1 400 Bad Request\r\n\r\n", true}, {std::string(100'000, '\xff'), false},
                                                    {std::string("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 9), false}};  // HTTP/2, and then nothing
  for (const auto& [words, hang_up] : strangers) {
    Stranger stranger(words, hang_up);
    for (const std::vector<std::string>& command : AskingCommands()) {
      Session session;
      session.environment = {{"LOSSGAUGE_ADDRESS", stranger.address()}, {"USER", "ada"}};
      std::vector<std::string> arguments = command;
      arguments.push_back("--timeout=100ms");
      EXPECT_EQ(session.Run(arguments), command[0] == "verdict" ? 60 : 1) << command[0] << " " << session.err;
      EXPECT_THAT(session.err, HasSubstr(stranger.address()));
      EXPECT_EQ(session.out, "");
    }
  }
}

class LyingServer : public ::testing::Test {
 protected:
  LyingServer() {
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}, {"USER", "ada"}};
    v1::Run run = MakeRun("demo", v1::WATCH, "young");
    fake.runs["demo"] = run;
    fake.comparison.set_comparable(true);
  }
  v1::Verdict& verdict() { return *fake.runs["demo"].mutable_verdict(); }

  FakeLossGauge fake;
  Session session;
};

TEST_F(LyingServer, TimesThatAreNoneStillGiveJson) {
  for (const std::int64_t seconds : {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), std::int64_t{300'000'000'000}}) {
    for (const std::int32_t nanos : {-5, 0, 2'000'000'000}) {
      verdict().mutable_evaluated_at()->set_seconds(seconds);
      verdict().mutable_evaluated_at()->set_nanos(nanos);
      verdict().mutable_last_step_age()->set_seconds(seconds);
      verdict().mutable_last_step_age()->set_nanos(nanos);
      v1::Incident incident;
      incident.set_id("1");
      *incident.mutable_onset_time() = verdict().evaluated_at();
      fake.incidents["demo"] = {incident};
      v1::Step step = MakeStep(1, 1, 2);
      *step.mutable_receive_time() = verdict().evaluated_at();
      fake.steps["demo"] = {step};
      for (const std::vector<std::string>& command : AskingCommands()) {
        const int code = session.Run(command);
        EXPECT_THAT(code, AnyOf(0, 10)) << command[0];
        std::vector<std::string> arguments = command;
        arguments.push_back("--json");
        EXPECT_EQ(session.Run(arguments), code);
        google::protobuf::util::JsonParseOptions options;
        v1::Verdict back;
        if (command[0] == "verdict") {
          ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &back).ok()) << session.out;
          EXPECT_EQ(back.reason(), "young");
          EXPECT_FALSE(back.has_evaluated_at());
        } else if (command[0] == "steps") {
          v1::ListStepsResponse steps;
          ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &steps).ok()) << session.out;
          EXPECT_EQ(steps.steps(0).loss_nats(), 2);
        }
      }
    }
  }
}

TEST_F(LyingServer, NumbersOfAnySizeAreShown) {
  const double odd[] = {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e308, -0.0, 5e-324};
  for (std::size_t i = 0; i < std::size(odd); ++i) {
    v1::Step step = MakeStep(i, std::numeric_limits<std::int64_t>::min() + static_cast<std::int64_t>(i), odd[i]);
    step.set_max_abs_logit(odd[i]);
    step.set_unmasked_tokens(std::numeric_limits<std::uint64_t>::max());
    step.mutable_thinned()->set_first_step(std::numeric_limits<std::int64_t>::max());
    fake.steps["demo"].push_back(step);
  }
  verdict().set_last_step(std::numeric_limits<std::int64_t>::min());
  verdict().set_rank_at_fault(std::numeric_limits<std::uint32_t>::max());
  verdict().mutable_skip()->set_first(std::numeric_limits<std::int64_t>::max());
  v1::Evidence& evidence = *verdict().add_evidence();
  evidence.set_value(std::nan(""));
  EXPECT_EQ(session.Run({"steps", "demo"}), 0);
  EXPECT_THAT(session.out, HasSubstr("NaN"));
  EXPECT_EQ(session.Run({"steps", "demo", "--json"}), 0);
  EXPECT_EQ(session.Run({"verdict", "demo"}), 10);
}

TEST_F(LyingServer, TextsMoveNoCursor) {
  const std::string evil = "\x1b[2J\x1b]0;owned\x07\r\nok";
  verdict().set_reason(evil);
  verdict().add_reason_codes(evil);
  verdict().set_attempt(evil);
  verdict().set_mode(evil);
  verdict().set_escalates(evil);
  verdict().set_instance(evil);
  verdict().mutable_resume_point()->set_path(evil);
  v1::Evidence& evidence = *verdict().add_evidence();
  evidence.set_name(evil);
  evidence.set_text(evil);
  evidence.set_unit(evil);
  fake.runs["demo"].set_attempt(evil);
  fake.runs["demo"].set_phase(evil);
  v1::Incident incident;
  incident.set_id(evil);
  incident.set_condition(evil);
  incident.set_kind(evil);
  incident.set_summary(evil);
  *incident.add_evidence() = evidence;
  fake.incidents["demo"] = {incident};
  fake.explanation.set_headline(evil);
  v1::ExplanationPart& part = *fake.explanation.add_parts();
  part.set_title(evil);
  part.add_lines(evil);
  fake.comparison.set_reason(evil);
  for (const std::vector<std::string>& command : AskingCommands()) {
    session.Run(command);
    EXPECT_THAT(session.out + session.err, Not(HasSubstr("\x1b"))) << command[0];
    EXPECT_THAT(session.out + session.err, Not(HasSubstr("\x07"))) << command[0];
    EXPECT_THAT(session.out + session.err, Not(HasSubstr("\r"))) << command[0];
  }
}

TEST_F(LyingServer, ActionsAndSeveritiesThatAreNoneAreUnknown) {
  verdict().set_action(static_cast<v1::Action>(-7));
  v1::Incident incident;
  incident.set_id("1");
  incident.set_severity(static_cast<v1::Severity>(99));
  fake.incidents["demo"] = {incident};
  EXPECT_EQ(session.Run({"verdict", "demo"}), 40);
  EXPECT_EQ(session.Run({"runs"}), 0);
  EXPECT_EQ(session.Run({"incidents", "demo"}), 0);
  EXPECT_EQ(session.Run({"verdict", "demo", "--json"}), 40);
}

// Gives pages for ever, in one of two ways.
class PagesForEver final : public v1::LossGauge::Service {
 public:
  explicit PagesForEver(bool in_a_circle) : in_a_circle_(in_a_circle) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PagesForEver() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  grpc::Status ListIncidents(grpc::ServerContext*, const v1::ListIncidentsRequest*, v1::ListIncidentsResponse* answer) override {
    const int page = pages_++;
    if (in_a_circle_) answer->add_incidents()->set_id(std::to_string(page % 3));
    answer->set_next_page_token(std::to_string(in_a_circle_ ? page % 3 : page));
    return grpc::Status::OK;
  }

 private:
  const bool in_a_circle_;
  std::atomic<int> pages_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(HostileServer, PagesForEverAreGivenUp) {
  for (const bool in_a_circle : {true, false}) {
    PagesForEver fake(in_a_circle);
    Session session;
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
    EXPECT_EQ(session.Run({"incidents", "demo"}), 1);
    EXPECT_THAT(session.err, HasSubstr(in_a_circle ? "the same page twice" : "empty pages"));
  }
}

TEST_F(LyingServer, AMessageThatIsTooLargeIsRefusedWithTheAddress) {
  verdict().set_reason(std::string(70 << 20, 'x'));
  EXPECT_EQ(session.Run({"verdict", "demo", "--timeout=30s"}), 1);
  EXPECT_THAT(session.err, HasSubstr(fake.address()));
  EXPECT_LE(session.err.size(), 2000u);
}

TEST_F(LyingServer, StepsThatGoBackInSequenceAreNotShownTwice) {
  v1::WatchStepsResponse first, second;
  for (const std::uint64_t sequence : {5, 4, 5, 6}) *first.add_steps() = MakeStep(sequence, static_cast<std::int64_t>(sequence), 2);
  fake.step_streams = {{first}};
  EXPECT_EQ(session.Run({"watch", "demo", "--count=2"}), 0);
  EXPECT_THAT(session.out, HasSubstr("step 5"));
  EXPECT_THAT(session.out, HasSubstr("step 6"));
  EXPECT_THAT(session.out, Not(HasSubstr("step 4")));
}

}  // namespace
}  // namespace lossgauge::ctl
