#include "server/web/query_string.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::web {
namespace {

using ::testing::HasSubstr;

TEST(QueryString, FillsFieldsByEitherOfTheirNames) {
  v1::ListStepsRequest request;
  ASSERT_TRUE(FillFromQuery("run=a%2Fb%20%F0%9F%94%A5+%22&first_step=-3&lastStep=9&page_size=5&include_ranks=true&tail=", &request).ok());
  EXPECT_EQ(request.run(), "a/b \xf0\x9f\x94\xa5 \"");
  EXPECT_EQ(request.first_step(), -3);
  EXPECT_EQ(request.last_step(), 9);
  EXPECT_EQ(request.page_size(), 5);
  EXPECT_TRUE(request.include_ranks());
  EXPECT_EQ(request.tail(), 0);
}

TEST(QueryString, AnEmptyNumberIsAsGoodAsNone) {
  v1::WatchStepsRequest request;
  ASSERT_TRUE(FillFromQuery("run=r&after_sequence=", &request).ok());
  EXPECT_FALSE(request.has_after_sequence());
  ASSERT_TRUE(FillFromQuery("after_sequence=0", &request).ok());
  EXPECT_TRUE(request.has_after_sequence());
}

TEST(QueryString, SaysWhatIsWrong) {
  const auto refusal = [](const char* query) {
    v1::ListStepsRequest request;
    const absl::Status status = FillFromQuery(query, &request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << query;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("rum=x"), HasSubstr(R"(no parameter "rum"; there are run, attempt, first_step)"));
  EXPECT_THAT(refusal("run=a&run=b"), HasSubstr("run: given more than once"));
  EXPECT_THAT(refusal("page_size=5&pageSize=6"), HasSubstr("page_size: given more than once"));
  EXPECT_THAT(refusal("run=%ff"), HasSubstr("run: not valid UTF-8"));
  EXPECT_THAT(refusal("run=%4"), HasSubstr("no percent-encoded byte"));
  EXPECT_THAT(refusal("run=%zz"), HasSubstr("%25"));
  EXPECT_THAT(refusal("page_size=five"), HasSubstr(R"(page_size: "five" is not an integer)"));
  EXPECT_THAT(refusal("page_size=99999999999"), HasSubstr("32 bits"));
  EXPECT_THAT(refusal("first_step=1.5"), HasSubstr("64 bits"));
  EXPECT_THAT(refusal("page_size=+1"), HasSubstr("page_size"));
  EXPECT_THAT(refusal("include_ranks=yes"), HasSubstr("true or false"));
  std::string many;
  for (int i = 0; i < 100; ++i) many += "&a=" + std::to_string(i);
  EXPECT_THAT(refusal(many.c_str()), HasSubstr("more than 64"));
}

TEST(QueryString, ASequenceIsNotNegative) {
  v1::WatchStepsRequest request;
  EXPECT_FALSE(FillFromQuery("after_sequence=-1", &request).ok());
  EXPECT_FALSE(FillFromQuery("after_sequence=18446744073709551616", &request).ok());
  EXPECT_TRUE(FillFromQuery("after_sequence=18446744073709551615", &request).ok());
}

TEST(QueryString, TheQueryBeginsAfterTheFirstQuestionMark) {
  EXPECT_EQ(QueryOf("/a?b=c?d"), "b=c?d");
  EXPECT_EQ(QueryOf("/a?b#c"), "b");
  EXPECT_EQ(QueryOf("/a"), "");
}

}  // namespace
}  // namespace lossgauge::web
