// Who gets into a real lossgauged, asked with lossgaugectl's own code: TLS, mutual TLS, certificates replaced, tokens, listening wider.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "server/transport/httplib.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/session.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/transport/certificates.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge::main {
namespace {

using testing::CertificateFiles;
using testing::Certificates;
using testing::kLoopbackNames;
using ::testing::HasSubstr;

class AccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteTokenFile(directory_ / "tokens");
  }
  void StartDaemon(std::vector<std::string> flags, const std::string& listen = "127.0.0.1:0") {
    flags.insert(flags.begin(), {"sidecar", "--ring_dir=" + directory_.path(), "--state_dir=none", "--http_listen=" + listen, "--grpc_listen=" + listen});
    daemon_ = std::make_unique<testing::DaemonProcess>(flags, directory_ / "log");
    address_ = daemon_->Address("gRPC");
    http_ = daemon_->Address("HTTP");
    ASSERT_FALSE(http_.empty()) << daemon_->Log();
    const auto port = [](const std::string& address) { return address.substr(address.rfind(':')); };
    session_.environment = {{"LOSSGAUGE_ADDRESS", "127.0.0.1" + port(address_)}, {"USER", "ada"}};
    http_port_ = std::stoi(port(http_).substr(1));
  }
  int Runs(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"runs"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return session_.Run(arguments);
  }
  // Of a run that there is not: whoever gets through hears that.
  std::string Report(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"report", "none", "CONTINUE"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_NE(session_.Run(arguments), 0);
    return session_.err;
  }

  ScratchDirectory directory_;
  Certificates made_{directory_.path()};
  std::unique_ptr<testing::DaemonProcess> daemon_;
  ctl::Session session_;
  std::string address_;
  std::string http_;
  int http_port_ = 0;
};

TEST_F(AccessTest, TlsIsAskedForByFlagsOrEnvironment) {
  const CertificateFiles server = made_.Sign("server", kLoopbackNames);
  StartDaemon({"--tls_cert=" + server.cert, "--tls_key=" + server.key});
  EXPECT_EQ(Runs({"--tls-ca=" + made_.ca()}), 0) << session_.err;
  EXPECT_EQ(Runs({"--timeout=30s"}), 1);
  EXPECT_THAT(session_.err, HasSubstr("TLS on both sides or none"));
  EXPECT_EQ(Runs({"--tls-ca=" + made_.other_ca()}), 1);
  EXPECT_EQ(Runs({"--tls-ca=/nowhere"}), 2);
  EXPECT_THAT(session_.err, HasSubstr("--tls-ca: /nowhere cannot be opened"));
  session_.environment["LOSSGAUGE_TLS_CA"] = made_.ca();
  EXPECT_EQ(Runs(), 0) << session_.err;
}

TEST_F(AccessTest, MutualTlsAsksForACertificate) {
  const CertificateFiles server = made_.Sign("server", kLoopbackNames);
  const CertificateFiles client = made_.Sign("client", "DNS:client");
  StartDaemon({"--tls_cert=" + server.cert, "--tls_key=" + server.key, "--tls_client_ca=" + made_.ca()});
  EXPECT_EQ(Runs({"--tls-ca=" + made_.ca(), "--tls-cert=" + client.cert, "--tls-key=" + client.key}), 0) << session_.err;
  EXPECT_EQ(Runs({"--tls-ca=" + made_.ca()}), 1);
  EXPECT_EQ(Runs({"--tls-ca=" + made_.ca(), "--tls-cert=" + client.cert}), 2);
}

TEST_F(AccessTest, ACertificateIsReplacedWithoutARestart) {
  const CertificateFiles live = made_.Sign("live", kLoopbackNames);
  StartDaemon({"--tls_cert=" + live.cert, "--tls_key=" + live.key});
  ASSERT_EQ(Runs({"--tls-ca=" + made_.ca()}), 0) << session_.err;
  const CertificateFiles next = made_.Sign("next", kLoopbackNames, "other_ca");
  Certificates::Replace(live.cert, next.cert);
  Certificates::Replace(live.key, next.key);
  int code = 1;
  for (int i = 0; i < 100 && code != 0; ++i) {
    code = Runs({"--tls-ca=" + made_.other_ca()});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(code, 0) << session_.err;
  EXPECT_EQ(Runs({"--tls-ca=" + made_.ca()}), 1);
}

TEST_F(AccessTest, WhatWritesNeedsAToken) {
  StartDaemon({"--token_file=" + (directory_ / "tokens")});
  EXPECT_EQ(Runs(), 0);
  EXPECT_THAT(Report(), HasSubstr("--token-file or LOSSGAUGE_TOKEN_FILE"));
  EXPECT_THAT(Report({"--token-file=" + (directory_ / "tokens")}), HasSubstr("none"));
  EXPECT_THAT(session_.err, ::testing::Not(HasSubstr("token")));
}

TEST_F(AccessTest, ListeningWiderInTheClearIsReadOnlyAndSaysSo) {
  StartDaemon({}, "0.0.0.0:0");
  EXPECT_THAT(daemon_->Log(), HasSubstr("gRPC listens on 0.0.0.0"));
  EXPECT_THAT(daemon_->Log(), HasSubstr("without TLS"));
  EXPECT_EQ(Runs(), 0) << session_.err;
  EXPECT_THAT(Report(), HasSubstr("read-only"));
  httplib::Client client("127.0.0.1", http_port_);
  const auto page = client.Get("/metrics");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("lossgauge_listening_without_tls{protocol=\"grpc\"} 1\n"));
  EXPECT_THAT(page->body, HasSubstr("lossgauge_listening_without_tls{protocol=\"http\"} 1\n"));
  EXPECT_THAT(page->body, HasSubstr("lossgauge_requests_refused_total{protocol=\"grpc\",cause=\"read_only\"} 1\n"));
}

TEST_F(AccessTest, ADaemonThatTakesNoRecordsSaysSoAndSidecarsSayWhy) {
  const auto end_to_end = [&](const std::vector<std::string>& of_daemon, const std::vector<std::string>& of_sidecar, const std::string& name) {
    std::vector<std::string> flags = {"daemon", "--state_dir=none", "--http_listen=none"};
    flags.insert(flags.end(), of_daemon.begin(), of_daemon.end());
    testing::DaemonProcess daemon(flags, directory_ / (name + "-daemon"));
    const std::string address = daemon.Address("gRPC");
    flags = {"sidecar", "--ring_dir=" + directory_.path(), "--state_dir=none", "--http_listen=none", "--grpc_listen=none",
             "--forward_to=127.0.0.1" + address.substr(address.rfind(':'))};
    flags.insert(flags.end(), of_sidecar.begin(), of_sidecar.end());
    testing::DaemonProcess sidecar(flags, directory_ / (name + "-sidecar"));
    EXPECT_TRUE(sidecar.WaitForLog("trying again")) << sidecar.Log();
    return std::pair(daemon.Log(), sidecar.Log());
  };
  auto [daemon, sidecar] = end_to_end({"--grpc_listen=0.0.0.0:0"}, {}, "open");
  EXPECT_THAT(daemon, HasSubstr("this daemon takes no records"));
  EXPECT_THAT(sidecar, HasSubstr("this lossgauged is read-only"));
  std::tie(daemon, sidecar) = end_to_end({"--grpc_listen=127.0.0.1:0", "--token_file=" + (directory_ / "tokens")}, {}, "token");
  EXPECT_THAT(daemon, ::testing::Not(HasSubstr("takes no records")));
  EXPECT_THAT(sidecar, HasSubstr("this call writes and needs a token"));
}

TEST_F(AccessTest, FlagsThatMakeNoSenseEndWithTwo) {
  const auto refused = [&](const std::string& flag, const std::string& said) {
    testing::DaemonProcess daemon({"sidecar", "--state_dir=none", flag}, directory_ / "refused");
    const int code = daemon.Wait();
    EXPECT_THAT(daemon.Log(), HasSubstr(said));
    return code;
  };
  EXPECT_EQ(refused("--tls_cert=/x", "--tls_cert and --tls_key belong together"), 2);
  EXPECT_EQ(refused("--tls_client_ca=/x", "--tls_client_ca needs"), 2);
  EXPECT_EQ(refused("--remote_write_url=ftp://x/y", "--remote_write_url: the URL begins neither"), 2);
  EXPECT_EQ(refused("--otlp_endpoint=x", "--otlp_endpoint=x is not HOST:PORT"), 2);
  EXPECT_EQ(refused("--sink_labels=run=x", "--sink_labels: the label run"), 2);
  EXPECT_EQ(refused("--sink_max_age=1s", "out of range"), 2);
  EXPECT_EQ(refused("--max_calls_per_client=-1", "out of range"), 2);
  EXPECT_EQ(refused("--token_file=/nowhere", "--token_file: /nowhere cannot be opened"), 1);
}

}  // namespace
}  // namespace lossgauge::main
