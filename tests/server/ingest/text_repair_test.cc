#include "server/ingest/text_repair.h"

#include <gtest/gtest.h>

#include <string>

namespace lossgauge::ingest {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(RepairUtf8, LeavesValidTextAsItIs) {
  for (const std::string& text : {std::string("plain"), std::string("a\"b\\c\nd\r{"), std::string("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x94\xA5"),
                                 std::string("nul\0inside", 10), std::string()}) {
    EXPECT_EQ(RepairUtf8(text), text);
  }
}

TEST(RepairUtf8, ReplacesEachByteThatBelongsToNoSequence) {
  EXPECT_EQ(RepairUtf8("a\xFFz"), "a" + kBad + "z");
  EXPECT_EQ(RepairUtf8("\x80"), kBad);
  EXPECT_EQ(RepairUtf8("\xC3"), kBad);                          // cut short
  EXPECT_EQ(RepairUtf8("\xE2\x82"), kBad + kBad);
  EXPECT_EQ(RepairUtf8("\xC0\xAF"), kBad + kBad);               // overlong '/'
  EXPECT_EQ(RepairUtf8("\xE0\x80\xAF"), kBad + kBad + kBad);    // overlong
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80"), kBad + kBad + kBad);    // surrogate
  EXPECT_EQ(RepairUtf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above U+10FFFF
  EXPECT_EQ(RepairUtf8("\xF0\x8F\xBF\xBF"), kBad + kBad + kBad + kBad);  // overlong
}

TEST(RepairName, KeepsAGoodNameAndSaysSo) {
  const RepairedName name = RepairName("run-7", kMaxRunBytes);
  EXPECT_EQ(name.name, "run-7");
  EXPECT_FALSE(name.repaired);
  EXPECT_FALSE(RepairName(std::string(kMaxRunBytes, 'x'), kMaxRunBytes).repaired);
}

TEST(RepairName, GivesTheNamelessAName) {
  const RepairedName name = RepairName("", kMaxRunBytes);
  EXPECT_EQ(name.name, "unnamed");
  EXPECT_TRUE(name.repaired);
}

TEST(RepairName, CutsLongNamesWithAHashSoThatTheyStayDifferent) {
  const std::string stem(250, 'x');
  const RepairedName a = RepairName(stem + "a", kMaxRunBytes);
  const RepairedName b = RepairName(stem + "b", kMaxRunBytes);
  EXPECT_EQ(a.name.size(), kMaxRunBytes);
  EXPECT_TRUE(a.repaired);
  EXPECT_EQ(a.name[a.name.size() - 9], '~');
  EXPECT_NE(a.name, b.name);
}

TEST(RepairName, DifferentInvalidBytesStayDifferentNames) { EXPECT_NE(RepairName("r\xFF", 64).name, RepairName("r\xFE", 64).name); }

TEST(RepairName, DoesNotCutInsideACharacter) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "\xF0\x9F\x94\xA5";
  for (std::size_t limit = 40; limit < 50; ++limit) {
    const std::string name = RepairName(text, limit).name;
    EXPECT_LE(name.size(), limit);
    EXPECT_EQ(RepairUtf8(name), name);
  }
}

}  // namespace
}  // namespace lossgauge::ingest
