#include "server/api/page_token.h"

#include <gtest/gtest.h>

namespace lossgauge::api {
namespace {

TEST(PageToken, GoesOnWhereItSays) {
  const auto position = ParsePageToken(MakePageToken(7, {1234567890123, 42}), 7);
  ASSERT_TRUE(position.ok()) << position.status();
  EXPECT_EQ(position->position, 1234567890123u);
  EXPECT_EQ(position->anchor, 42u);
}

TEST(PageToken, NoTokenMeansTheFirstPage) { EXPECT_EQ(ParsePageToken("", 7)->position, 0u); }

TEST(PageToken, OfAnotherQueryIsRefusedWithARemedy) {
  const auto position = ParsePageToken(MakePageToken(7, {1, 0}), 8);
  EXPECT_EQ(position.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(position.status().message().find("page_token: given for another query"), std::string::npos);
}

TEST(PageToken, EachDamagedTokenIsRefused) {
  const std::string token = MakePageToken(7, {99, 3});
  EXPECT_FALSE(ParsePageToken(token + "A", 7).ok());
  EXPECT_FALSE(ParsePageToken("not a token", 7).ok());
  EXPECT_FALSE(ParsePageToken(std::string(100'000, 'A'), 7).ok());
  for (std::size_t i = 0; i + 1 < token.size(); ++i) {  // the last character holds unused bits
    std::string damaged = token;
    damaged[i] = damaged[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(ParsePageToken(damaged, 7).ok()) << i;
    EXPECT_FALSE(ParsePageToken(token.substr(0, i == 0 ? 1 : i), 7).ok()) << i;
  }
}

}  // namespace
}  // namespace lossgauge::api
