// What lossgauged says to a wrong command line, a busy port, a bad directory, and to signals.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <regex>

#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"

namespace lossgauge {
namespace {

class CommandLineTest : public ::testing::Test {
 protected:
  std::string log() const { return directory_.path() + "/log"; }
  std::string rings() const { return directory_.path() + "/rings"; }
  std::string state() const { return directory_.path() + "/state"; }
  // Exit code of a command line that is expected to end by itself.
  int Run(std::vector<std::string> arguments) {
    std::filesystem::remove(log());
    testing::DaemonProcess process(std::move(arguments), log());
    const int code = process.WaitFor(std::chrono::seconds(60));
    said_ = process.Log();
    return code;
  }
  std::vector<std::string> Sidecar(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"sidecar", "--ring_dir=" + rings(), "--state_dir=" + state(), "--http_listen=127.0.0.1:0",
                                          "--grpc_listen=127.0.0.1:0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  bool Said(const std::string& text) const { return said_.find(text) != std::string::npos; }

  ScratchDirectory directory_;
  std::string said_;
};

TEST_F(CommandLineTest, HelpNamesEveryFlagWithItsDefault) {
  EXPECT_EQ(Run({"--help"}), 0);
  for (const char* flag : {"ring_dir", "state_dir", "http_listen", "grpc_listen", "log_format", "log_level", "policy", "mode", "join_timeout",
                           "linger", "lost_linger", "frozen_after", "max_runs", "max_ranks", "max_steps", "reclaim", "history_mebibytes",
                           "history_age"}) {
    EXPECT_TRUE(Said(std::string("  --") + flag + " (default: ")) << flag << "\n" << said_;
  }
}

TEST_F(CommandLineTest, VersionIsPrinted) {
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_TRUE(std::regex_search(said_, std::regex("^lossgauged [0-9]+\\.[0-9]+\\.[0-9]+\n$"))) << said_;
}

TEST_F(CommandLineTest, WhatIsWrongIsNamedAndEndsWithTwo) {
  const struct {
    std::vector<std::string> arguments;
    const char* named;
  } cases[] = {
      {{}, "sidecar"},
      {{"bogus"}, "bogus"},
      {{"daemon", "--ring_dir=/tmp"}, "ring_dir"},
      {{"daemon", "--forward_to=127.0.0.1:1"}, "forward_to"},
      {{"daemon", "--grpc_listen=none"}, "grpc_listen"},
      {{"sidecar", "--forward_to=a:1,b:1,c:1"}, "forward_to"},
      {{"sidecar", "--forward_spool_mebibytes=1"}, "forward_spool_mebibytes"},
      {{"sidecar", "extra"}, "extra"},
      {{"sidecar", "--no_such_flag=1"}, "no_such_flag"},
      {{"sidecar", "--join_timeout=fast"}, "join_timeout"},
      {{"sidecar", "--join_timeout=1ms"}, "join_timeout"},
      {{"sidecar", "--max_runs=many"}, "max_runs"},
      {{"sidecar", "--max_runs=0"}, "max_runs"},
      {{"sidecar", "--log_format=xml"}, "log_format"},
      {{"sidecar", "--log_level=loud"}, "log_level"},
      {{"sidecar", "--mode=maybe"}, "mode"},
      {{"sidecar", "--ring_dir="}, "ring_dir"},
      {{"sidecar", "--ring_dir"}, "ring_dir"},
      {{"sidecar", "--ring_dir=,,"}, "ring_dir"},
      {{"sidecar", "--reclaim", "--no_such_flag"}, "no_such_flag"},
      {{"sidecar", "--history_mebibytes=1"}, "history_mebibytes"},
      {{"sidecar", "--ringdir=/tmp"}, "unknown flag --ringdir, did you mean --ring_dir?"},
      {{"sidecar", "--join_timeout=5"}, "--join_timeout takes a time with its unit, such as 300ms, 5s or 2h, not \"5\""},
      {{"sidecar", "--max_runs=1e3"}, "--max_runs takes a whole number, not \"1e3\""},
      {{"sidecar", "--reclaim=perhaps"}, "--reclaim takes true or false, not \"perhaps\""},
      {{"sidecar", "--policy"}, "--policy needs a value"},
      {{"sidecar", "--flagfile=/no/such/file"}, "cannot read /no/such/file: No such file"},
      {{"sidecar", "--flagfile=/"}, "cannot read /: Is a directory"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Run(c.arguments), 2) << c.named << "\n" << said_;
    EXPECT_TRUE(Said(c.named)) << c.named << "\n" << said_;
    EXPECT_TRUE(Said("lossgauged --help")) << c.named << "\n" << said_;
  }
}

TEST_F(CommandLineTest, AFlagFileHoldsWhatACommandLineHolds) {
  const std::string file = directory_ / "flags", nested = directory_ / "nested";
  std::ofstream(nested) << "--ring-dir=" << rings() << "3\n";
  std::ofstream(file) << "# a comment\r\n\n  --reclaim\r\n--exit_after_end=false\n--nolog_nothing\n";
  EXPECT_EQ(Run({"sidecar", "--flagfile=" + file}), 2);
  EXPECT_TRUE(Said(file + ", line 5: unknown flag --nolog_nothing")) << said_;
  std::ofstream(file) << "# a comment\r\n\n  --reclaim\r\n--noexit_after_end\n--ring_dir=" << rings() << "2\n--flagfile=" << nested << "\n--max_runs=5";
  testing::DaemonProcess process(Sidecar({"--flagfile", file}), log());
  ASSERT_TRUE(process.WaitForLog("HTTP on ")) << process.Log();
  for (const std::string& name : {rings(), rings() + "2", rings() + "3"}) {
    EXPECT_NE(process.Log().find("watching rings in " + name + "\n"), std::string::npos) << process.Log();
  }
}

TEST_F(CommandLineTest, AFileThatIsNoFlagFileIsNamedButNotRepeated) {
  const std::string file = directory_ / "token";
  std::ofstream(file) << "top-secret\n";
  EXPECT_EQ(Run({"sidecar", "--flagfile=" + file}), 2);
  EXPECT_TRUE(Said(file + ", line 1: no flag")) << said_;
  EXPECT_FALSE(Said("top-secret")) << said_;
  std::ofstream(file) << "--flagfile=" << file << "\n";
  EXPECT_EQ(Run({"sidecar", "--flagfile=" + file}), 2);
  EXPECT_TRUE(Said("within one another")) << said_;
}

TEST_F(CommandLineTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::vector<std::string> arguments = Sidecar();
  arguments[2] = "--state_dir=/proc/nowhere";
  EXPECT_EQ(Run(arguments), 1);
  EXPECT_TRUE(Said("/proc/nowhere")) << said_;
}

TEST_F(CommandLineTest, APolicyThatCannotBeReadIsNamed) {
  EXPECT_EQ(Run(Sidecar({"--policy=/no/such/policy.yaml"})), 1);
  EXPECT_TRUE(Said("/no/such/policy.yaml")) << said_;
}

TEST_F(CommandLineTest, AnAddressThatMakesNoSenseIsNamed) {
  std::vector<std::string> arguments = Sidecar();
  arguments[4] = "--grpc_listen=nonsense";
  EXPECT_EQ(Run(arguments), 1);
  EXPECT_TRUE(Said("nonsense")) << said_;
}

// observer D1: a busy port is an error with address and reason; the job is not touched, and what was drained is kept.
TEST_F(CommandLineTest, ABusyPortIsNamedAfterSomeTries) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(socket_fd, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string busy = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  for (const std::size_t flag : {std::size_t{3}, std::size_t{4}}) {
    std::vector<std::string> arguments = Sidecar();
    arguments[flag] = (flag == 3 ? "--http_listen=" : "--grpc_listen=") + busy;
    EXPECT_EQ(Run(arguments), 1) << said_;
    EXPECT_TRUE(Said(busy)) << said_;
    EXPECT_TRUE(Said("in use")) << said_;
  }
  close(socket_fd);
}

TEST_F(CommandLineTest, ASecondSidecarOnOneStateDirectoryIsRefused) {
  testing::DaemonProcess first(Sidecar(), directory_.path() + "/first.log");
  ASSERT_TRUE(first.WaitForLog("HTTP on ")) << first.Log();
  EXPECT_EQ(Run(Sidecar()), 1);
  EXPECT_TRUE(Said("another lossgauged")) << said_;
}

TEST_F(CommandLineTest, SignalsEndItInOrder) {
  for (const int signal : {SIGTERM, SIGINT}) {
    testing::DaemonProcess process(Sidecar(), directory_.path() + "/log" + std::to_string(signal));
    ASSERT_TRUE(process.WaitForLog("HTTP on ")) << process.Log();
    process.Signal(signal);
    EXPECT_EQ(process.WaitFor(std::chrono::seconds(60)), 0) << process.Log();
  }
}

TEST_F(CommandLineTest, HangupWithoutAPolicySaysSoAndGoesOn) {
  testing::DaemonProcess process(Sidecar(), log());
  ASSERT_TRUE(process.WaitForLog("HTTP on "));
  process.Signal(SIGHUP);
  EXPECT_TRUE(process.WaitForLog("no --policy file"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.WaitFor(std::chrono::seconds(60)), 0);
}

TEST_F(CommandLineTest, HangupReadsThePolicyAgainAndKeepsTheOldOneIfItIsBad) {
  const std::string policy = directory_.path() + "/policy.yaml";
  std::ofstream(policy) << "version: one\n";
  testing::DaemonProcess process(Sidecar({"--policy=" + policy}), log());
  ASSERT_TRUE(process.WaitForLog("HTTP on ")) << process.Log();
  std::ofstream(policy) << "version: two\n";
  process.Signal(SIGHUP);
  EXPECT_TRUE(process.WaitForLog("policy read again")) << process.Log();
  std::ofstream(policy) << "no_such_key: 1\n";
  process.Signal(SIGHUP);
  EXPECT_TRUE(process.WaitForLog("the policy stays as it is")) << process.Log();
  EXPECT_TRUE(process.WaitForLog("no_such_key")) << process.Log();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.WaitFor(std::chrono::seconds(60)), 0);
}

TEST_F(CommandLineTest, LogsAreJsonOnDemandAndOneLineWhateverARunIsCalled) {
  std::filesystem::create_directory(rings());
  testing::FakeProducerOptions options;
  options.directory = rings();
  options.run = "a\"b\nc\\";
  testing::FakeProducer producer(options);
  testing::DaemonProcess process(Sidecar({"--log_format=json"}), log());
  ASSERT_TRUE(process.WaitForLog("attached")) << process.Log();
  process.Signal(SIGTERM);
  process.Wait();
  std::istringstream lines(process.Log());
  int attached = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.front(), '{') << line;
    EXPECT_EQ(line.back(), '}') << line;
    if (line.find("attached") != std::string::npos) {
      ++attached;
      EXPECT_NE(line.find("\\\"a\\\"b\\u000ac\\\\"), std::string::npos) << line;
    }
  }
  EXPECT_EQ(attached, 1);
}

TEST_F(CommandLineTest, ARingDirectoryMayComeFromTheEnvironment) {
  setenv("FLAGS_ring_dir", (rings() + "4").c_str(), 1);
  testing::DaemonProcess process(Sidecar({"--fromenv=ring_dir"}), log());
  unsetenv("FLAGS_ring_dir");
  ASSERT_TRUE(process.WaitForLog("HTTP on ")) << process.Log();
  EXPECT_NE(process.Log().find("watching rings in " + rings() + "4\n"), std::string::npos) << process.Log();
}

TEST_F(CommandLineTest, AFileSizeLimitIsAStateThatCannotBeWrittenAndNoDeath) {
  std::filesystem::create_directory(rings());
  testing::FakeProducerOptions options;
  options.directory = rings();
  testing::FakeProducer producer(options);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {60'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  testing::DaemonProcess process(Sidecar(), log());
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(process.WaitForLog("state")) << process.Log();
  process.Signal(SIGTERM);
  const int code = process.WaitFor(std::chrono::seconds(60));
  EXPECT_TRUE(code == 0 || code == 1) << code << "\n" << process.Log();
}

TEST_F(CommandLineTest, SeveralRingDirectoriesAddUp) {
  std::vector<std::string> arguments = Sidecar({"--ring_dir", rings() + "2," + rings() + "3"});
  testing::DaemonProcess process(arguments, log());
  ASSERT_TRUE(process.WaitForLog("HTTP on "));
  for (const std::string& name : {rings(), rings() + "2", rings() + "3"}) {
    EXPECT_NE(process.Log().find("watching rings in " + name + "\n"), std::string::npos) << process.Log();
  }
}

}  // namespace
}  // namespace lossgauge
