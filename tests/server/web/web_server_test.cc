#include "server/web/web_server.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/web/page_assets.h"
#include "tests/server/web/web_fixture.h"

namespace lossgauge::web {
namespace {

using testing::FakeDrain;
using testing::HttpAnswer;
using testing::MakeFullRun;
using testing::MakeIncident;
using testing::MakeRun;
using testing::MakeStep;
using testing::MakeVerdict;
using testing::RawConnection;
using ::testing::HasSubstr;
using ::testing::Not;

class WebServerTest : public testing::WebFixture {
 protected:
  template <typename Message>
  Message Parse(const HttpAnswer& answer) {
    Message message;
    const auto status = google::protobuf::util::JsonStringToMessage(answer.body, &message);
    EXPECT_TRUE(status.ok()) << status.ToString() << answer.body;
    return message;
  }
};

TEST_F(WebServerTest, MetricsAreWhatWasRendered) {
  StartServer();
  const HttpAnswer answer = Get("/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(answer.body, "# HELP a b\n# TYPE a gauge\na 1\n");
}

TEST_F(WebServerTest, ARenderThatThrowsIsAnErrorOfThatRequestOnly) {
  WebOptions options = Options();
  options.render_metrics = []() -> std::string { throw std::runtime_error("broken"); };
  StartServer(options);
  EXPECT_EQ(Get("/metrics").status, 500);
  EXPECT_EQ(Get("/-/healthy").status, 200);
}

TEST_F(WebServerTest, HealthyAtOnceReadyOnceSomethingWasPublished) {
  StartServer();
  EXPECT_EQ(Get("/-/healthy").status, 200);
  EXPECT_EQ(Get("/-/ready").status, 503);
  Publish({});
  EXPECT_EQ(Get("/-/ready").status, 200);
}

TEST_F(WebServerTest, NotReadyAndNotHealthySayWhy) {
  WebOptions options = Options();
  options.ready = [] { return absl::UnavailableError("the disk does not answer"); };
  StartServer(options);
  Publish({});
  EXPECT_EQ(Get("/-/ready").status, 503);
  EXPECT_EQ(Get("/-/ready").body, "not ready: the disk does not answer\n");
  EXPECT_EQ(Get("/-/healthy").status, 200);
  options.healthy = [] { return absl::UnavailableError("it hangs"); };
  StartServer(options);
  EXPECT_EQ(Get("/-/healthy").status, 503);
  EXPECT_EQ(Get("/-/healthy").body, "not healthy: it hangs\n");
}

TEST_F(WebServerTest, EveryCallAnswersAsJson) {
  StartServer();
  auto run = MakeFullRun("run");
  Publish({run});
  history_->incidents = run->incidents;
  history_->verdicts = {MakeVerdict(state::Action::kRestart, "divergence")};
  FakeDrain drain(mailbox_);
  drain.incidents = run->incidents;
  EXPECT_EQ(Parse<v1::ListRunsResponse>(Get("/api/v1/runs")).runs(0).run(), "run");
  EXPECT_EQ(Parse<v1::Run>(Get("/api/v1/run?run=run")).producers_size(), 1);
  EXPECT_EQ(Parse<v1::Verdict>(Get("/api/v1/verdict?run=run")).action(), v1::RESTART);
  EXPECT_EQ(Parse<v1::ListVerdictsResponse>(Get("/api/v1/verdicts?run=run&page_size=&page_token=")).verdicts_size(), 1);
  EXPECT_EQ(Parse<v1::ListStepsResponse>(Get("/api/v1/steps?run=run&tail=5")).steps(0).sequence(), 42u);
  EXPECT_EQ(Parse<v1::ListIncidentsResponse>(Get("/api/v1/incidents?run=run&open_only=true")).incidents_size(), 1);
  EXPECT_TRUE(Parse<v1::Incident>(Post("/api/v1/incidents/acknowledge", R"({"id": "00000000deadbeef-5", "by": "anna"})")).acknowledged());
  EXPECT_EQ(
      Parse<v1::ReportActionResponse>(Post("/api/v1/actions", R"({"run": "run", "action": "RESTART", "actor": "slurm"})")).ledger_entries(), 1u);
  EXPECT_EQ(Parse<v1::SetModeResponse>(Post("/api/v1/mode", R"({"run": "run", "mode": "shadow", "by": "anna"})")).mode(), "shadow");
  EXPECT_EQ(drain.modes.back().mode, "shadow");
}

TEST_F(WebServerTest, ErrorsAreJsonWithAFittingStatus) {
  StartServer();
  Publish({MakeRun("run", 1, 4)});
  HttpAnswer answer = Get("/api/v1/verdict?run=none");
  EXPECT_EQ(answer.status, 404);
  EXPECT_THAT(answer.body, HasSubstr(R"("status":"NOT_FOUND")"));
  answer = Get("/api/v1/steps?run=run&page_size=-1");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("page_size: -1 is out of range; give 1 to 10000"));
  EXPECT_EQ(Get("/api/v1/steps?run=%ff").status, 400);
  EXPECT_EQ(Get("/api/v1/none").status, 404);
  EXPECT_EQ(Get("/api/v1/actions").status, 405);
  EXPECT_EQ(Post("/api/v1/runs", "{}").status, 405);
  EXPECT_EQ(Post("/api/v1/actions", "{").status, 400);
  EXPECT_EQ(Post("/api/v1/actions", R"({"nonsense": 1})").status, 400);
  EXPECT_EQ(Post("/api/v1/actions", "{}", "text/plain").status, 415);
  EXPECT_EQ(Post("/metrics", "{}", "text/plain").status, 405);
  RawConnection connection(server_->port());
  connection.Send("POST /metrics HTTP/1.1\r\n" + HostLine() + "\r\n");
  answer = connection.ReadAnswer();
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers["Allow"], "GET, HEAD");
  EXPECT_EQ(Get("/nothing/here").status, 404);
}

// Case B4: odd run names work in every path.
TEST_F(WebServerTest, OddRunNamesWorkPercentEncoded) {
  StartServer();
  const std::pair<std::string, std::string> names[] = {{"a\"b", "a%22b"},   {"a\\b", "a%5Cb"}, {"line\nbreak", "line%0Abreak"},
                                                       {"a/b/restart", "a%2Fb%2Frestart"},     {"🔥", "%F0%9F%94%A5"}, {"{", "%7B"},
                                                       {"a+b c", "a%2Bb%20c"}, {"a&b=c#d", "a%26b%3Dc%23d"}, {"100%", "100%25"}};
  for (const auto& [name, encoded] : names) {
    Publish({MakeRun(name, 1, 4)});
    EXPECT_EQ(Parse<v1::Verdict>(Get("/api/v1/verdict?run=" + encoded)).run(), name);
    EXPECT_EQ(Parse<v1::Run>(Get("/api/v1/run?run=" + encoded)).run(), name);
    EXPECT_EQ(Parse<v1::ListStepsResponse>(Get("/api/v1/steps?run=" + encoded)).steps_size(), 4);
  }
}

TEST_F(WebServerTest, APlainTableShowsRunsAndVerdictsWorstFirstAndTheirNamesAsText) {
  StartServer();
  auto calm = MakeRun("calm", 1, 4);
  auto odd = MakeRun("<img src=x onerror=\"a()\"> 'q' & 🔥", 1, 4);
  odd->verdict = MakeVerdict(state::Action::kHalt, "integrity/<mass>");
  odd->incidents = {MakeIncident("i-1", state::Condition::kIntegrity)};
  Publish({calm, odd});
  const HttpAnswer answer = Get("/plain");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(answer.headers.at("Cache-Control"), "no-store");
  const std::size_t halt = answer.body.find("<th scope=\"row\" role=\"rowheader\">&lt;img src=x onerror=&quot;a()&quot;&gt; &#39;q&#39; &amp; 🔥</th><td role=\"cell\"><b>HALT</b></td><td role=\"cell\">because of integrity/&lt;mass&gt;</td>");
  const std::size_t go_on = answer.body.find("<th scope=\"row\" role=\"rowheader\">calm</th><td role=\"cell\"><b>CONTINUE</b></td>");
  EXPECT_NE(go_on, std::string::npos);
  EXPECT_LT(halt, go_on) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("integrity since step 40"));
  EXPECT_THAT(answer.body, HasSubstr("<caption>Runs, worst verdict first, as of 2026-03-04 05:06:07 UTC</caption>"));
  EXPECT_THAT(answer.body, Not(HasSubstr("<img")));
  EXPECT_THAT(answer.body, Not(HasSubstr("<script")));
  Publish({});
  EXPECT_THAT(Get("/plain").body, HasSubstr("No run yet."));
}

TEST_F(WebServerTest, ThePlainPageListsRunsOfThePastNewestFirstAndNotWithoutBound) {
  StartServer();
  Publish({MakeRun("live", 1, 4)});
  history_->runs = {{"live", testing::kNow}, {"<b>night</b>", testing::kNow - 60'000'000'000}, {"older", 0}};
  const std::string page = Get("/plain").body;
  const std::size_t past = page.find("<caption>Earlier runs, newest first</caption>");
  ASSERT_NE(past, std::string::npos) << page;
  const std::size_t newer = page.find(">&lt;b&gt;night&lt;/b&gt;</th><td role=\"cell\" data-name=\"Last written\">2026-03-04 05:05:07 UTC</td>", past);
  ASSERT_NE(newer, std::string::npos) << page;
  EXPECT_NE(page.find(">older</th><td role=\"cell\" data-name=\"Last written\">–</td>", newer), std::string::npos) << page;
  EXPECT_EQ(page.find(">live</th>", past), std::string::npos) << "it is live";
  for (int i = 0; i < 200; ++i) history_->runs.push_back({"sweep-" + std::to_string(i), testing::kNow});
  const std::string bounded = Get("/plain").body;
  EXPECT_THAT(bounded, HasSubstr("<caption>Earlier runs, newest first: 100 of 202</caption>"));
  EXPECT_THAT(bounded, HasSubstr(">sweep-97</th>"));
  EXPECT_THAT(bounded, Not(HasSubstr(">sweep-98</th>")));
  Publish({});
  EXPECT_THAT(Get("/plain").body, HasSubstr("No run is live."));
}

TEST_F(WebServerTest, EveryAnswerCarriesTheSecurityHeaders) {
  StartServer();
  for (const char* path : {"/", "/plain", "/metrics", "/api/v1/runs", "/nothing", "/-/healthy"}) {
    const HttpAnswer answer = Get(path);
    EXPECT_THAT(answer.headers.at("Content-Security-Policy"), HasSubstr("default-src 'self'")) << path;
    EXPECT_THAT(answer.headers.at("Content-Security-Policy"), HasSubstr("frame-ancestors 'none'")) << path;
    EXPECT_EQ(answer.headers.at("X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(answer.headers.count("Access-Control-Allow-Origin"), 0u) << path;
  }
}

TEST_F(WebServerTest, AForeignHostIsRefused) {
  StartServer();
  RawConnection connection(server_->port());
  connection.Send("GET /api/v1/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  const HttpAnswer answer = connection.ReadAnswer();
  EXPECT_EQ(answer.status, 421);
  EXPECT_THAT(answer.body, Not(HasSubstr("instance")));
}

TEST_F(WebServerTest, ThePageAndItsPartsAreServedOnceWhileTheyStayTheSame) {
  StartServer();
  ASSERT_GT(PageAssets().size(), 0u);
  for (const PageAsset& asset : PageAssets()) {
    const HttpAnswer answer = Get(std::string(asset.path));
    EXPECT_EQ(answer.status, 200) << asset.path;
    EXPECT_EQ(answer.body, asset.bytes) << asset.path;
    EXPECT_EQ(answer.headers.at("Content-Type"), asset.content_type);
    EXPECT_EQ(Get(std::string(asset.path), "If-None-Match: " + answer.headers.at("ETag") + "\r\n").status, 304);
    EXPECT_EQ(Get(std::string(asset.path), "If-None-Match: \"other\"\r\n").status, 200);
  }
}

TEST_F(WebServerTest, LargeAnswersAreCompressedForThoseWhoTakeIt) {
  StartServer();
  const HttpAnswer plain = Get("/");
  const HttpAnswer compressed = Get("/", "Accept-Encoding: gzip, deflate, br\r\n");
  EXPECT_EQ(compressed.headers.at("Content-Encoding"), "gzip");
  EXPECT_LT(compressed.body.size(), plain.body.size());
}

TEST_F(WebServerTest, HeadHasHeadersAndNoBody) {
  StartServer();
  Publish({MakeRun("run", 1, 4)});
  RawConnection connection(server_->port());
  for (const char* path : {"/metrics", "/api/v1/steps/watch?run=run"}) {
    connection.Send(std::string("HEAD ") + path + " HTTP/1.1\r\n" + HostLine() + "\r\n");
    EXPECT_EQ(connection.ReadAnswer(false).status, 200) << path;
  }
}

TEST_F(WebServerTest, AConnectionIsUsedAgain) {
  StartServer();
  RawConnection connection(server_->port());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(connection.Send("GET /-/healthy HTTP/1.1\r\n" + HostLine() + "\r\n"));
    ASSERT_EQ(connection.ReadAnswer().status, 200) << i;
  }
}

TEST_F(WebServerTest, AConnectionServesAsManyRequestsAsItsAnswersSay) {
  StartServer();
  RawConnection connection(server_->port());
  int said = 1;
  for (int i = 1; i <= said; ++i) {
    ASSERT_TRUE(connection.Send("GET /-/healthy HTTP/1.1\r\n" + HostLine() + "\r\n"));
    HttpAnswer answer = connection.ReadAnswer();
    ASSERT_EQ(answer.status, 200) << i;
    if (i == 1) {
      ASSERT_EQ(std::sscanf(answer.headers["Keep-Alive"].c_str(), "timeout=5, max=%d", &said), 1) << answer.headers["Keep-Alive"];
    }
    EXPECT_EQ(answer.headers["Connection"] == "close", i == said) << i;
  }
  EXPECT_GT(said, 5);
  EXPECT_EQ(connection.ReadAll(), "");
}

// As a browser does.
TEST_F(WebServerTest, ThePageLoadsOverSixConnectionsAgainAndAgain) {
  StartServer();
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int i = 0; i < 6; ++i) connections.push_back(std::make_unique<RawConnection>(server_->port()));
  for (int load = 0; load < 5; ++load) {
    for (std::size_t first = 0; first < PageAssets().size(); first += connections.size()) {
      const auto batch = PageAssets().subspan(first, std::min(connections.size(), PageAssets().size() - first));
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ASSERT_TRUE(connections[i]->Send("GET " + std::string(batch[i].path) + " HTTP/1.1\r\n" + HostLine() + "\r\n"));
      }
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const HttpAnswer answer = connections[i]->ReadAnswer();
        ASSERT_EQ(answer.status, 200) << batch[i].path << " in load " << load;
        EXPECT_EQ(answer.body, batch[i].bytes) << batch[i].path;
      }
    }
  }
}

// Case D1.
TEST_F(WebServerTest, APortThatIsTakenIsAnErrorWithAddressAndErrno) {
  StartServer();
  WebOptions options = Options();
  options.listen = server_->address();
  WebServer second(options, api_);
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_->address()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("errno " + std::to_string(EADDRINUSE)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--http_listen"));
  server_->Shutdown();
  EXPECT_TRUE(second.Start().ok());
}

TEST_F(WebServerTest, AnAddressThatMakesNoSenseIsRefused) {
  WebOptions options = Options();
  options.listen = "localhost:http";
  WebServer server(options, api_);
  EXPECT_EQ(server.Start().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lossgauge::web
