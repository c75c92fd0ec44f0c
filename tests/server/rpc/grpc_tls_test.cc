// Who gets through to gRPC: TLS, mutual TLS, certificates replaced while it runs, tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "server/transport/grpc_credentials.h"
#include "tests/scratch_directory.h"
#include "tests/server/rpc/rpc_fixture.h"
#include "tests/server/transport/certificates.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge::rpc {
namespace {

using testing::CertificateFiles;
using testing::Certificates;
using testing::kLoopbackNames;
using testing::kToken;
using ::testing::HasSubstr;

int ConnectTo(const std::string& address) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

class GrpcTlsTest : public testing::RpcFixture {
 protected:
  void TearDown() override { server_.reset(); }  // before what it uses
  void StartWithTls(const CertificateFiles& files, const std::string& client_ca = "") {
    auto tls = transport::ServerTls::Load({files.cert, files.key, client_ca}, &counters_, std::chrono::milliseconds(0));
    ASSERT_TRUE(tls.ok()) << tls.status();
    tls_ = *std::move(tls);
    GrpcOptions options = Options();
    options.tls = tls_.get();
    options.counters = &counters_;
    StartServer(options);
    Publish({testing::MakeRun("r")});
  }
  // The outcome of one call over a connection of its own, which is tried only once.
  grpc::Status Ask(const transport::ClientTlsFiles& files) {
    const auto credentials = transport::MakeChannelCredentials("--tls_", files);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt("test.connection", ++connections_);
    const auto stub = v1::LossGauge::NewStub(grpc::CreateCustomChannel(server_->address(), *credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::ListRunsResponse response;
    return stub->ListRuns(&context, {}, &response);
  }
  ScratchDirectory directory_;
  Certificates made_{directory_.path()};
  state::ServiceCounters counters_;
  std::unique_ptr<transport::ServerTls> tls_;
};

TEST_F(GrpcTlsTest, AClientThatTrustsTheAuthorityGetsThrough) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  EXPECT_TRUE(Ask({made_.ca(), "", ""}).ok());
}

TEST_F(GrpcTlsTest, AClientThatTrustsAnotherOrTalksInTheClearDoesNot) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  EXPECT_EQ(Ask({made_.other_ca(), "", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask({}).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcTlsTest, HandshakesThatComeToNothingAreCountedAndOpenedConnectionsAreNot) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  const auto refused = [&] { return counters_.Refused(state::Protocol::kGrpc, state::Refusal::kTls); };
  EXPECT_TRUE(Ask({made_.ca(), "", ""}).ok());
  EXPECT_EQ(refused(), 0u);
  const auto rise_after = [&](const std::function<void()>& act) {
    const std::uint64_t before = refused();
    act();
    for (int tries = 0; tries < 500 && refused() == before; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return refused() - before;
  };
  EXPECT_GE(rise_after([&] { (void)Ask({}); }), 1u);  // it tries again by itself
  const std::uint64_t before = refused();
  for (int i = 0; i < 10; ++i) {
    const int fd = ConnectTo(server_->address());
    close(fd);
  }
  EXPECT_TRUE(Ask({made_.ca(), "", ""}).ok());
  EXPECT_EQ(rise_after([&] {
              const int fd = ConnectTo(server_->address());
              EXPECT_EQ(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
              char answer;
              while (read(fd, &answer, 1) > 0) {
              }
              close(fd);
            }),
            1u);
  EXPECT_EQ(refused(), before + 1);
}

TEST_F(GrpcTlsTest, AClientRefusesACertificateThatIsExpiredOrSelfSignedOrOfAnotherName) {
  StartWithTls(made_.Sign("old", kLoopbackNames, "ca", -1));
  EXPECT_EQ(Ask({made_.ca(), "", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_.reset();
  StartWithTls(made_.SelfSigned("self", kLoopbackNames));
  EXPECT_EQ(Ask({made_.ca(), "", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_.reset();
  StartWithTls(made_.Sign("elsewhere", "DNS:elsewhere.example"));
  EXPECT_EQ(Ask({made_.ca(), "", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcTlsTest, MutualTlsTakesClientsOfTheAuthorityOnly) {
  StartWithTls(made_.Sign("server", kLoopbackNames), made_.ca());
  const CertificateFiles known = made_.Sign("client", "DNS:client");
  const CertificateFiles stranger = made_.Sign("stranger", "DNS:client", "other_ca");
  const CertificateFiles old = made_.Sign("oldclient", "DNS:client", "ca", -1);
  const CertificateFiles self = made_.SelfSigned("selfclient", "DNS:client");
  EXPECT_TRUE(Ask({made_.ca(), known.cert, known.key}).ok());
  EXPECT_FALSE(Ask({made_.ca(), "", ""}).ok());
  EXPECT_FALSE(Ask({made_.ca(), stranger.cert, stranger.key}).ok());
  EXPECT_FALSE(Ask({made_.ca(), old.cert, old.key}).ok());
  EXPECT_FALSE(Ask({made_.ca(), self.cert, self.key}).ok());
}

TEST_F(GrpcTlsTest, AReplacedCertificateIsShownToTheNextClientWhileStreamsGoOn) {
  const CertificateFiles live = made_.Sign("live", kLoopbackNames);
  StartWithTls(live);
  const auto credentials = transport::MakeChannelCredentials("--tls_", {made_.ca(), "", ""});
  ASSERT_TRUE(credentials.ok());
  const auto stub = v1::LossGauge::NewStub(grpc::CreateChannel(server_->address(), *credentials));
  grpc::ClientContext context;
  v1::WatchVerdictRequest request;
  request.set_run("r");
  const auto stream = stub->WatchVerdict(&context, request);
  v1::Verdict verdict;
  ASSERT_TRUE(stream->Read(&verdict));

  const CertificateFiles next = made_.Sign("next", kLoopbackNames, "other_ca");
  Certificates::Replace(live.cert, next.cert);
  Certificates::Replace(live.key, next.key);
  EXPECT_FALSE(Ask({made_.ca(), "", ""}).ok());
  EXPECT_TRUE(Ask({made_.other_ca(), "", ""}).ok());

  auto run = testing::MakeRun("r");
  run->verdict.action = state::Action::kHalt;
  run->verdict.reason = "changed";
  Publish({run});
  EXPECT_TRUE(stream->Read(&verdict));
  context.TryCancel();
  stream->Finish();
}

TEST_F(GrpcTlsTest, WhatWritesNeedsATokenAndWhatReadsDoesNot) {
  testing::WriteTokenFile(directory_ / "tokens");
  const auto tokens = transport::TokenFile::Load("--token_file", directory_ / "tokens");
  ASSERT_TRUE(tokens.ok());
  const transport::WriteGuard guard(state::Protocol::kGrpc, tokens->get(), true, &counters_);
  GrpcOptions options = Options();
  options.guard = &guard;
  options.reply_timeout_ns = 0;  // nobody drains the mailbox here: what gets through ends with UNAVAILABLE
  StartServer(options);
  Publish({testing::MakeRun("r")});
  const auto stub = Client();
  const auto write = [&](const std::string& authorization, const auto& call) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    return call(&context).error_code();
  };
  v1::ReportActionRequest report;
  report.set_run("r");
  report.set_action(v1::CONTINUE);
  report.set_actor("me");
  v1::AcknowledgeIncidentRequest acknowledge;
  acknowledge.set_id("i");
  acknowledge.set_by("me");
  v1::SetModeRequest mode;
  mode.set_run("r");
  mode.set_mode("shadow");
  mode.set_by("me");
  const std::function<grpc::Status(grpc::ClientContext*)> calls[] = {
      [&](grpc::ClientContext* context) {
        v1::ReportActionResponse response;
        return stub->ReportAction(context, report, &response);
      },
      [&](grpc::ClientContext* context) {
        v1::Incident response;
        return stub->AcknowledgeIncident(context, acknowledge, &response);
      },
      [&](grpc::ClientContext* context) {
        v1::SetModeResponse response;
        return stub->SetMode(context, mode, &response);
      },
  };
  for (const auto& call : calls) {
    EXPECT_EQ(write("", call), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(write("Bearer 0123456789abcdef0124", call), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(write(std::string("Bearer ") + kToken, call), grpc::StatusCode::UNAVAILABLE);
  }
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  EXPECT_TRUE(stub->ListRuns(&context, {}, &runs).ok());
  EXPECT_EQ(counters_.Refused(state::Protocol::kGrpc, state::Refusal::kToken), 6u);
  server_.reset();
}

TEST_F(GrpcTlsTest, ListeningWiderInTheClearShows) {
  GrpcOptions options = Options();
  options.listen = "0.0.0.0:0";
  options.counters = &counters_;
  StartServer(options);
  EXPECT_EQ(counters_.exposed[static_cast<std::size_t>(state::Protocol::kGrpc)], 1u);
  server_.reset();
  const CertificateFiles files = made_.Sign("server", kLoopbackNames);
  auto tls = transport::ServerTls::Load({files.cert, files.key, ""}, &counters_);
  ASSERT_TRUE(tls.ok());
  options.tls = tls->get();
  StartServer(options);
  EXPECT_EQ(counters_.exposed[static_cast<std::size_t>(state::Protocol::kGrpc)], 0u);
  server_.reset();
}

}  // namespace
}  // namespace lossgauge::rpc
