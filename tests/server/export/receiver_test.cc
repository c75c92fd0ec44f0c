// What flags and receivers say, read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/export/receiver_answer.h"
#include "server/export/receiver_url.h"

namespace lossgauge::export_ {
namespace {

using state::ShipDrop;
using state::ShipResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr state::TimeNs kNow = 1'772'600'767 * kSecond;  // 2026-03-04T05:06:07Z

std::string UrlError(const std::string& text) { return std::string(ParseReceiverUrl(text).status().message()); }

TEST(ReceiverUrl, IsTakenApart) {
  const auto plain = ParseReceiverUrl("http://prometheus.example:9090/api/v1/write?x=1");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->tls);
  EXPECT_EQ(plain->host, "prometheus.example");
  EXPECT_EQ(plain->port, 9090);
  EXPECT_EQ(plain->path, "/api/v1/write?x=1");
  EXPECT_EQ(ParseReceiverUrl("HTTPS://mimir/push")->port, 443);
  EXPECT_EQ(ParseReceiverUrl("http://mimir/push")->port, 80);
  const auto v6 = ParseReceiverUrl("https://[::1]:9/x");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->Text(), "https://[::1]:9/x");
}

TEST(ReceiverUrl, SaysWhatIsWrong) {
  EXPECT_THAT(UrlError(""), HasSubstr("begins neither"));
  EXPECT_THAT(UrlError("ftp://h/p"), HasSubstr("begins neither"));
  EXPECT_THAT(UrlError("http://h"), HasSubstr("has no path"));
  EXPECT_THAT(UrlError("http:///p"), HasSubstr("no host"));
  EXPECT_THAT(UrlError("http://me:secret@h/p"), HasSubstr("name or password"));
  EXPECT_THAT(UrlError("http://h:0/p"), HasSubstr("port"));
  EXPECT_THAT(UrlError("http://h:65536/p"), HasSubstr("port"));
  EXPECT_THAT(UrlError("http://h:/p"), HasSubstr("port"));
  EXPECT_THAT(UrlError("http://::1/p"), HasSubstr("host"));
  EXPECT_THAT(UrlError("http://[::1/p"), HasSubstr("bracket"));
  EXPECT_THAT(UrlError("http://[::1]x/p"), HasSubstr("bracket"));
  EXPECT_THAT(UrlError("http://h/p#f"), HasSubstr("fragment"));
  EXPECT_THAT(UrlError("http://h /p"), HasSubstr("byte"));
  EXPECT_THAT(UrlError("http://h\r\nX: y/p"), HasSubstr("byte"));
  EXPECT_THAT(UrlError("http://h?q/p"), HasSubstr("before its query"));
  EXPECT_THAT(UrlError("http://h/" + std::string(3000, 'a')), HasSubstr("longer"));
}

TEST(HeaderLines, AreTakenButNotThoseThatAreOurs) {
  const auto headers = ParseHeaderLines("# tenant\nX-Scope-OrgID: team\r\n\nAuthorization:  Bearer abc def \n");
  ASSERT_TRUE(headers.ok()) << headers.status();
  EXPECT_THAT(*headers, ElementsAre(Pair("X-Scope-OrgID", "team"), Pair("Authorization", "Bearer abc def")));
  for (const char* bad : {"no colon", ": value", "Name:", "Na me: x", "Content-Length: 3", "host: elsewhere", "X: a\x01" "b"}) {
    EXPECT_EQ(ParseHeaderLines(std::string("A: b\n") + bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(ParseHeaderLines(std::string("A: b\n") + bad).status().message()), HasSubstr("line 2"));
  }
}

TEST(Labels, AreSortedAndNeverOurs) {
  const auto labels = ParseLabels("team=a b,cluster=x=y");
  ASSERT_TRUE(labels.ok());
  EXPECT_THAT(*labels, ElementsAre(Pair("cluster", "x=y"), Pair("team", "a b")));
  EXPECT_TRUE(ParseLabels("")->empty());
  for (const char* bad : {"a", "=b", "1a=b", "a-b=c", "a=", "run=x", "__name__=x", "a=1,a=2", ",", "a=1,"}) {
    if (std::string(bad) == "a=1,") continue;  // nothing stands behind the last comma
    EXPECT_FALSE(ParseLabels(bad).ok()) << bad;
  }
}

TEST(RetryAfter, IsSecondsOrADate) {
  EXPECT_EQ(ParseRetryAfter("0", kNow), 0);
  EXPECT_EQ(ParseRetryAfter("120", kNow), 120 * kSecond);
  EXPECT_EQ(ParseRetryAfter("99999999999999999999999", kNow), 86'400 * kSecond);
  EXPECT_EQ(ParseRetryAfter("Wed, 04 Mar 2026 05:06:37 GMT", kNow), 30 * kSecond);
  EXPECT_EQ(ParseRetryAfter("Wed, 04 Mar 2020 05:06:37 GMT", kNow), 0);
  EXPECT_EQ(ParseRetryAfter("Wed, 04 Mar 9999 05:06:37 GMT", kNow), 86'400 * kSecond);
  for (const char* bad : {"", "-1", "1.5", "soon", "infinite-past", "Wed, 04 Mar 2026"}) EXPECT_EQ(ParseRetryAfter(bad, kNow), std::nullopt) << bad;
}

TEST(Answers, AreSortedByStatus) {
  for (const int status : {200, 202, 204}) EXPECT_EQ(JudgeAnswer(status, "", "", kNow).result, ShipResult::kTaken) << status;
  for (const int status : {429, 502, 503, 504}) EXPECT_EQ(JudgeAnswer(status, "7", "", kNow).retry_after_ns, 7 * kSecond) << status;
  for (const int status : {429, 502, 503, 504}) EXPECT_EQ(JudgeAnswer(status, "7", "", kNow).result, ShipResult::kBusy) << status;
  for (const int status : {500, 501, 505, 599}) EXPECT_EQ(JudgeAnswer(status, "", "", kNow).result, ShipResult::kFailed) << status;
  for (const int status : {100, 301, 302, 400, 401, 403, 404, 413, 422, 499, 600, -1}) {
    EXPECT_EQ(JudgeAnswer(status, "", "", kNow).result, ShipResult::kRefused) << status;
  }
}

TEST(Answers, RefusalsAreSortedByTheirWords) {
  const auto reason = [](const char* body) { return JudgeAnswer(400, "", body, kNow).reason; };
  EXPECT_EQ(reason("out of order sample\n"), ShipDrop::kOutOfOrder);
  EXPECT_EQ(reason("Out Of Bounds"), ShipDrop::kOutOfWindow);
  EXPECT_EQ(reason("duplicate sample for timestamp"), ShipDrop::kOutOfOrder);
  EXPECT_EQ(reason("too old sample"), ShipDrop::kOutOfWindow);
  EXPECT_EQ(reason("failed pushing to ingester: ... (err-mimir-sample-timestamp-too-old)"), ShipDrop::kOutOfWindow);
  EXPECT_EQ(reason("(err-mimir-sample-out-of-order)"), ShipDrop::kOutOfOrder);
  EXPECT_EQ(reason("snappy: corrupt input"), ShipDrop::kRefused);
  EXPECT_EQ(reason(""), ShipDrop::kRefused);
}

TEST(Answers, ATextForTheLogHoldsNoControlCharacters) {
  const std::string text = JudgeAnswer(400, "", "a\r\nb\x1b[31m" + std::string(10'000, 'x'), kNow).text;
  EXPECT_EQ(text.find_first_of("\r\n\x1b"), std::string::npos);
  EXPECT_LT(text.size(), 300u);
}

}  // namespace
}  // namespace lossgauge::export_
