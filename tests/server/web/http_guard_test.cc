#include "server/web/http_guard.h"

#include <gtest/gtest.h>

namespace lossgauge::web {
namespace {

httplib::Request Request(const std::string& method, const std::string& host, std::vector<std::pair<std::string, std::string>> headers = {}) {
  httplib::Request request;
  request.method = method;
  request.path = "/";
  if (!host.empty()) request.headers.emplace("Host", host);
  for (auto& [name, value] : headers) request.headers.emplace(name, value);
  return request;
}

int StatusOf(const httplib::Request& request, const GuardOptions& options = {}) {
  const auto refusal = CheckRequest(request, options);
  return refusal ? refusal->http_status : 0;
}

TEST(HttpGuard, OnLoopbackOnlyAddressesAndLocalhostAreOurNames) {
  for (const char* host : {"127.0.0.1:9788", "127.0.0.1", "localhost:9788", "LOCALHOST", "[::1]:9788", "10.1.2.3:80"}) {
    EXPECT_EQ(StatusOf(Request("GET", host)), 0) << host;
  }
  for (const char* host : {"evil.example", "evil.example:9788", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "127.0.0.1:x", "a b"}) {
    EXPECT_EQ(StatusOf(Request("GET", host)), 421) << host;
  }
}

TEST(HttpGuard, FurtherNamesCanBeAllowed) {
  GuardOptions options;
  options.allowed_hosts = {"node7.cluster"};
  EXPECT_EQ(StatusOf(Request("GET", "Node7.Cluster:80"), options), 0);
  EXPECT_EQ(StatusOf(Request("GET", "node8.cluster"), options), 421);
  options.check_host = false;
  EXPECT_EQ(StatusOf(Request("GET", "node8.cluster"), options), 0);
}

TEST(HttpGuard, TwoHostHeadersAreOneTooMany) { EXPECT_EQ(StatusOf(Request("GET", "localhost", {{"Host", "127.0.0.1"}})), 400); }

TEST(HttpGuard, PagesOfOtherSitesAreRefused) {
  EXPECT_EQ(StatusOf(Request("GET", "localhost:1", {{"Origin", "http://localhost:1"}})), 0);
  EXPECT_EQ(StatusOf(Request("GET", "localhost:1", {{"Origin", "http://localhost:2"}})), 403);
  EXPECT_EQ(StatusOf(Request("GET", "localhost:1", {{"Origin", "https://evil.example"}})), 403);
  EXPECT_EQ(StatusOf(Request("GET", "localhost:1", {{"Origin", "null"}})), 403);
}

TEST(HttpGuard, PostTakesJsonOnly) {
  EXPECT_EQ(StatusOf(Request("POST", "localhost", {{"Content-Type", "application/json"}})), 0);
  EXPECT_EQ(StatusOf(Request("POST", "localhost", {{"Content-Type", "Application/JSON; charset=utf-8"}})), 0);
  EXPECT_EQ(StatusOf(Request("POST", "localhost")), 415);
  EXPECT_EQ(StatusOf(Request("POST", "localhost", {{"Content-Type", "text/plain"}})), 415);  // what a form on another site can send
  EXPECT_EQ(StatusOf(Request("POST", "localhost", {{"Content-Type", "application/jsonp"}})), 415);
  EXPECT_EQ(StatusOf(Request("POST", "localhost", {{"Content-Type", "application/json"}, {"Content-Encoding", "gzip"}})), 415);
}

TEST(HttpGuard, GetHasNoBodyAndOtherMethodsAreNotServed) {
  EXPECT_EQ(StatusOf(Request("GET", "localhost", {{"Content-Length", "5"}})), 400);
  EXPECT_EQ(StatusOf(Request("GET", "localhost", {{"Content-Length", "0"}})), 0);
  EXPECT_EQ(StatusOf(Request("GET", "localhost", {{"Transfer-Encoding", "chunked"}})), 400);
  for (const char* method : {"PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"}) EXPECT_EQ(StatusOf(Request(method, "localhost")), 405);
}

}  // namespace
}  // namespace lossgauge::web
