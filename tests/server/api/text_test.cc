#include "server/api/text.h"

#include <gtest/gtest.h>

namespace lossgauge::api {
namespace {

TEST(Text, ValidTextIsLeftAsItIs) {
  for (const std::string text : {"", "run", "naïve", "日本", "🔥", "a\"b\\c\n"}) {
    EXPECT_TRUE(IsValidUtf8(text)) << text;
    EXPECT_EQ(ValidUtf8(text), text);
  }
}

TEST(Text, EachByteThatBelongsToNoCharacterIsReplaced) {
  EXPECT_EQ(ValidUtf8("a\xff" "b"), "a\xef\xbf\xbd" "b");
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");                           // overlong slash
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");           // surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80").size(), 12u);                                    // above U+10FFFF
  EXPECT_EQ(ValidUtf8("ok\xf0\x9f\x94"), "ok\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");       // cut short
}

TEST(Text, QuotedTextShowsControlCharactersAndIsCutAtACharacter) {
  EXPECT_EQ(Quoted("a\"\n"), R"("a\"\x0a")");
  EXPECT_EQ(Quoted("ééé", 3), "\"é...\"");
  EXPECT_LT(Quoted(std::string(100'000, 'x')).size(), 200u);
}

TEST(Text, TheHashIsTheSameInEveryProcess) { EXPECT_EQ(StableHash("a"), 0xaf63dc4c8601ec8cu); }

}  // namespace
}  // namespace lossgauge::api
