// HTTPS: TLS, mutual TLS, certificates replaced while it runs, tokens, limits of a client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>


#include "server/transport/httplib.h"
#include "tests/scratch_directory.h"
#include "tests/server/transport/certificates.h"
#include "tests/server/transport/token_file.h"
#include "tests/server/web/web_fixture.h"

namespace lossgauge::web {
namespace {

using testing::CertificateFiles;
using testing::Certificates;
using testing::kLoopbackNames;
using testing::kToken;
using testing::RawConnection;
using ::testing::HasSubstr;

class WebTlsTest : public testing::WebFixture {
 protected:
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }
  void TearDown() override { server_.reset(); }  // before what it uses
  void StartWithTls(const CertificateFiles& files, const std::string& client_ca = "") {
    auto tls = transport::ServerTls::Load({files.cert, files.key, client_ca}, &counters_, std::chrono::milliseconds(0));
    ASSERT_TRUE(tls.ok()) << tls.status();
    tls_ = *std::move(tls);
    WebOptions options = Options();
    options.tls = tls_.get();
    options.counters = &counters_;
    StartServer(options);
  }
  std::unique_ptr<httplib::SSLClient> Client(const std::string& ca, const CertificateFiles& own = {}) {
    auto client = std::make_unique<httplib::SSLClient>("127.0.0.1", server_->port(), own.cert, own.key);
    client->set_ca_cert_path(ca.c_str());
    client->enable_server_certificate_verification(true);
    client->set_read_timeout(std::chrono::seconds(30));
    return client;
  }
  int StatusOf(const std::string& ca, const CertificateFiles& own = {}) {
    const auto result = Client(ca, own)->Get("/-/healthy");
    return result ? result->status : 0;
  }
  std::uint64_t Refused(state::Refusal refusal) const { return counters_.Refused(state::Protocol::kHttp, refusal); }

  ScratchDirectory directory_;
  Certificates made_{directory_.path()};
  state::ServiceCounters counters_;
  std::unique_ptr<transport::ServerTls> tls_;
};

TEST_F(WebTlsTest, PagesAndManyRequestsOfOneConnectionComeThrough) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  const auto client = Client(made_.ca());
  client->set_keep_alive(true);
  std::size_t page_bytes = 0;
  for (int i = 0; i < 20; ++i) {
    const auto page = client->Get("/");
    ASSERT_TRUE(page);
    EXPECT_EQ(page->status, 200);
    page_bytes = page->body.size();
  }
  EXPECT_GT(page_bytes, 500u);
  EXPECT_EQ(client->Get("/api/v1/runs")->status, 200);
  EXPECT_EQ(Refused(state::Refusal::kTls), 0u);
}

TEST_F(WebTlsTest, WhoDoesNotTrustUsGoesAndWhoTalksInTheClearIsCounted) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  EXPECT_EQ(StatusOf(made_.other_ca()), 0);
  RawConnection plain(server_->port());
  plain.Send("GET /-/healthy HTTP/1.1\r\n" + HostLine() + "\r\n");
  EXPECT_EQ(plain.ReadAnswer().status, 0);
  EXPECT_EQ(StatusOf(made_.ca()), 200);
  // This client looks at our certificate only after the handshake.
  for (int i = 0; i < 500 && Refused(state::Refusal::kTls) < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(Refused(state::Refusal::kTls), 1u);
}

TEST_F(WebTlsTest, AClientRefusesACertificateThatIsExpiredOrSelfSignedOrOfAnotherName) {
  for (const CertificateFiles& files :
       {made_.Sign("old", kLoopbackNames, "ca", -1), made_.SelfSigned("self", kLoopbackNames), made_.Sign("elsewhere", "IP:10.9.8.7")}) {
    StartWithTls(files);
    EXPECT_EQ(StatusOf(made_.ca()), 0) << files.cert;
    server_.reset();
  }
}

TEST_F(WebTlsTest, MutualTlsTakesClientsOfTheAuthorityOnly) {
  StartWithTls(made_.Sign("server", kLoopbackNames), made_.ca());
  EXPECT_EQ(StatusOf(made_.ca(), made_.Sign("client", "DNS:client")), 200);
  EXPECT_EQ(StatusOf(made_.ca()), 0);
  EXPECT_EQ(StatusOf(made_.ca(), made_.Sign("stranger", "DNS:client", "other_ca")), 0);
  EXPECT_EQ(StatusOf(made_.ca(), made_.Sign("oldclient", "DNS:client", "ca", -1)), 0);
}

TEST_F(WebTlsTest, AReplacedCertificateIsShownToTheNextClientWhileConnectionsGoOn) {
  const CertificateFiles live = made_.Sign("live", kLoopbackNames);
  StartWithTls(live);
  const auto standing = Client(made_.ca());
  standing->set_keep_alive(true);
  ASSERT_EQ(standing->Get("/-/healthy")->status, 200);
  const CertificateFiles next = made_.Sign("next", kLoopbackNames, "other_ca");
  Certificates::Replace(live.cert, next.cert);
  Certificates::Replace(live.key, next.key);
  EXPECT_EQ(StatusOf(made_.ca()), 0);
  EXPECT_EQ(StatusOf(made_.other_ca()), 200);
  const auto again = standing->Get("/-/healthy");
  ASSERT_TRUE(again) << "the connection that stood was cut off";
  EXPECT_EQ(again->status, 200);
}

TEST_F(WebTlsTest, ClientsThatBeginAHandshakeAndStopDoNotShutOutTheScrape) {
  StartWithTls(made_.Sign("server", kLoopbackNames));
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < 60; ++i) {
    slow.push_back(std::make_unique<RawConnection>(server_->port()));
    if (i % 2 == 0) slow.back()->Send(std::string("\x16\x03\x01\x02\x00\x01", 6));  // the head of a ClientHello
  }
  EXPECT_EQ(StatusOf(made_.ca()), 200);
}

TEST_F(WebTlsTest, WhatWritesNeedsATokenAndWhatReadsDoesNot) {
  testing::WriteTokenFile(directory_ / "tokens");
  const auto tokens = transport::TokenFile::Load("--token_file", directory_ / "tokens");
  ASSERT_TRUE(tokens.ok());
  const transport::WriteGuard guard(state::Protocol::kHttp, tokens->get(), true, &counters_);
  WebOptions options = Options();
  options.guard = &guard;
  StartServer(options);
  httplib::Client client("127.0.0.1", server_->port());
  for (const char* path : {"/api/v1/incidents/acknowledge", "/api/v1/actions", "/api/v1/mode"}) {
    const auto none = client.Post(path, "{}", "application/json");
    ASSERT_TRUE(none);
    EXPECT_EQ(none->status, 401) << path;
    EXPECT_EQ(none->get_header_value("WWW-Authenticate"), "Bearer");
    EXPECT_EQ(client.Post(path, {{"Authorization", "Bearer 0123456789abcdef0124"}}, "{}", "application/json")->status, 401);
    EXPECT_EQ(client.Post(path, {{"Authorization", std::string("Bearer ") + kToken}}, "{}", "application/json")->status, 400);  // an empty request
  }
  EXPECT_EQ(client.Get("/api/v1/runs")->status, 200);
  EXPECT_EQ(Refused(state::Refusal::kToken), 6u);
  server_.reset();
}

TEST_F(WebTlsTest, ReadOnlyWhereOthersReachUsAndNoTokensAreGiven) {
  const transport::WriteGuard guard(state::Protocol::kHttp, nullptr, false, &counters_);
  WebOptions options = Options();
  options.guard = &guard;
  StartServer(options);
  httplib::Client client("127.0.0.1", server_->port());
  const auto answer = client.Post("/api/v1/mode", "{}", "application/json");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 403);
  EXPECT_THAT(answer->body, HasSubstr("--token_file"));
  EXPECT_EQ(Refused(state::Refusal::kReadOnly), 1u);
  server_.reset();
}

TEST_F(WebTlsTest, AClientThatFloodsOrHoardsConnectionsIsRefusedAndCounted) {
  transport::ClientLimits limits;
  limits.calls_per_second = 5;
  limits.max_streams = 4;
  limits.monotonic_ns = [] { return std::int64_t{1}; };
  transport::ClientLimiter limiter(limits);
  WebOptions options = Options();
  options.limiter = &limiter;
  options.counters = &counters_;
  StartServer(options);
  int taken = 0;
  {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_keep_alive(true);
    for (int i = 0; i < 50; ++i) taken += client.Get("/-/healthy")->status == 200 ? 1 : 0;
    const auto refused = client.Get("/-/healthy");
    EXPECT_EQ(refused->status, 429);
    EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  }
  EXPECT_EQ(taken, 10);
  EXPECT_EQ(Refused(state::Refusal::kRate), 41u);
  std::vector<std::unique_ptr<RawConnection>> hoard;
  for (int i = 0; i < 20; ++i) hoard.push_back(std::make_unique<RawConnection>(server_->port()));
  for (int i = 0; i < 500 && Refused(state::Refusal::kStreams) < 15; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(Refused(state::Refusal::kStreams), 15u);
  server_.reset();
}

}  // namespace
}  // namespace lossgauge::web
