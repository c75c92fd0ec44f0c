#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "server/ctl/json_writer.h"
#include "server/ctl/options.h"
#include "server/ctl/record_fields.h"
#include "server/ctl/sparkline.h"
#include "server/ctl/terminal.h"
#include "server/ctl/values.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;

TEST(Printable, EscapesWhatWouldMoveTheCursor) {
  EXPECT_EQ(Printable("a\x1b[2Jb\nc"), "a\\x1b[2Jb\\x0ac");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");          // CSI of the second control set
  EXPECT_EQ(Printable("\xe2\x80\xae" "x"), "\\xe2\\x80\\xaex");  // right-to-left override
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");  // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82");  // cut
}

TEST(Printable, LeavesOddButHarmlessNamesAlone) { EXPECT_EQ(Printable("β \"quoted\" 🚀/x\\"), "β \"quoted\" 🚀/x\\"); }

TEST(DisplayWidth, CountsWideCharactersTwice) {
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("β"), 1u);
  EXPECT_EQ(DisplayWidth("🚀"), 2u);
  EXPECT_EQ(DisplayWidth("損失"), 4u);
}

TEST(Fit, CutsAtACharactersBorder) {
  EXPECT_EQ(Fit("損失関数", 5, true), "損失…");
  EXPECT_EQ(Fit("abcdef", 4, false), "abc~");
  EXPECT_EQ(Fit("abcd", 4, true), "abcd");
}

TEST(FitMiddle, KeepsBothEnds) {
  EXPECT_EQ(FitMiddle("abcdefghij", 7, true), "abc…hij");
  EXPECT_EQ(FitMiddle("abcdefghij", 6, false), "ab~hij");
  EXPECT_EQ(FitMiddle("損失関数損失", 7, true), "損…損失");
  EXPECT_EQ(FitMiddle("abcd", 4, true), "abcd");
  EXPECT_EQ(FitMiddle("abcd", 1, true), "…");
  EXPECT_EQ(FitMiddle("abcd", 0, true), "");
}

TEST(Wrap, BreaksAtSpacesAndKeepsLongWordsWhole) {
  EXPECT_THAT(Wrap("aa bb cc", 5), ::testing::ElementsAre("aa bb", "cc"));
  EXPECT_THAT(Wrap("/a/very/long/path x", 5), ::testing::ElementsAre("/a/very/long/path", "x"));
  EXPECT_THAT(Wrap("", 5), ::testing::ElementsAre(""));
}

TEST(Coloured, WritesCodesOnlyWhereTheyAreWanted) {
  std::ostringstream stream;
  Io io{stream, stream};
  EXPECT_EQ(Coloured(io, Tone::kBad, "x"), "x");
  io.colour = true;
  EXPECT_EQ(Coloured(io, Tone::kBad, "x"), "\x1b[1;31mx\x1b[0m");
}

TEST(Sparkline, ScalesBetweenSmallestAndLargest) {
  EXPECT_EQ(Sparkline(std::vector<double>{0, 1, 2, 7}, true), "▁▂▃█");
  EXPECT_EQ(Sparkline(std::vector<double>{3, 3}, true), "▁▁");
  EXPECT_EQ(Sparkline(std::vector<double>{}, true), "");
}

TEST(Sparkline, ShowsANonFiniteValueAsSuchAndIsNotBlindedByIt) {
  EXPECT_EQ(Sparkline(std::vector<double>{0, std::nan(""), 7}, true), "▁×█");
  EXPECT_EQ(Sparkline(std::vector<double>{0, std::numeric_limits<double>::infinity(), 7}, false), "_!#");
  EXPECT_EQ(Sparkline(std::vector<double>{-1e308, 1e308}, true), "▁█");
}

TEST(Significant, KeepsFourDigitsAndNamesWhatIsNoNumber) {
  EXPECT_EQ(Significant(2.41234), "2.412");
  EXPECT_EQ(Significant(12345.6), "12346");
  EXPECT_EQ(Significant(0.0123456), "0.01235");
  EXPECT_EQ(Significant(3e-4), "3.00e-04");
  EXPECT_EQ(Significant(std::nan("")), "NaN");
  EXPECT_EQ(Significant(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Json, EscapesTextAndReplacesBrokenUtf8) {
  EXPECT_EQ(JsonText("a\"b\\c\n\xff"), "\"a\\\"b\\\\c\\u000a\\ufffd\"");
  EXPECT_EQ(JsonNumber(std::nan("")), "\"NaN\"");
  EXPECT_EQ(JsonNumber(0.5), "0.5");
}

TEST(RecordFields, CoverEveryWordOfAStepRecordOnce) {
  std::vector<int> covered(sizeof(lg_step_record) / 8, 0);
  for (const Field& field : StepFields()) {
    for (std::size_t i = 0; i < FieldWords(field.type); ++i) ++covered[field.offset / 8 + i];
  }
  const std::size_t reserved = offsetof(lg_step_record, reserved) / 8;
  for (std::size_t word = 1; word < reserved; ++word) EXPECT_EQ(covered[word], 1) << "word " << word;
}

TEST(RecordFields, CoverEveryWordOfAnEventRecordOnce) {
  std::vector<int> covered(sizeof(lg_event_record) / 8, 0);
  for (const Field& field : EventFields()) {
    for (std::size_t i = 0; i < FieldWords(field.type); ++i) ++covered[field.offset / 8 + i];
  }
  for (std::size_t word = 1; word < offsetof(lg_event_record, reserved) / 8; ++word) EXPECT_EQ(covered[word], 1) << "word " << word;
}

TEST(CommandLine, HelpOfEveryCommandFitsEightyColumnsAndNamesEveryFlag) {
  Session session;
  EXPECT_EQ(session.Run({"--help"}), 0);
  EXPECT_LE(LongestLine(session.out), 80u);
  for (const Command& command : Commands()) {
    EXPECT_THAT(session.out.empty() ? "" : session.out, ::testing::Not(HasSubstr("\x1b")));
    ASSERT_EQ(session.Run({command.name, "--help"}), 0) << command.name;
    EXPECT_LE(LongestLine(session.out), 80u) << command.name;
    for (const Flag& flag : AllFlags(command)) EXPECT_THAT(session.out, HasSubstr("--" + flag.name));
    EXPECT_THAT(session.out, HasSubstr("Exit codes"));
  }
}

TEST(CommandLine, WrongUseNamesTheWordAndExitsWithTwo) {
  const struct {
    std::vector<std::string> arguments;
    std::string said;
  } cases[] = {
      {{}, "usage: lossgaugectl"},
      {{"verdct", "x"}, "did you mean verdict?"},
      {{"verdict"}, "RUN is missing"},
      {{"verdict", "a", "b"}, "unexpected \"b\""},
      {{"replay"}, "FILE... is missing"},
      {{"verdict", "a", "--adress=x"}, "unknown flag --adress, did you mean --address?"},
      {{"verdict", "bad\xff"}, "lossgaugectl verdict: \"bad\\xff\" is not valid UTF-8"},
      {{"steps", "a", "--attempt=\xff"}, "\"--attempt=\\xff\" is not valid UTF-8"},
      {{"steps", "a", "--attempt", "\xff"}, "--attempt: \"\\xff\" is not valid UTF-8"},
      {{"verdict", "a", "--address="}, "--address is empty; give HOST:PORT"},
      {{"runs", "--address", ""}, "--address is empty; give HOST:PORT"},
      {{"verdict", "a", "--json=1"}, "--json takes no value"},
      {{"verdict", "a", "--timeout", "soon"}, "--timeout takes a time with its unit"},
      {{"verdict", "a", "--timeout=0s"}, "--timeout takes a time with its unit"},
      {{"steps", "a", "--tail=0"}, "--tail takes a whole number from 1 to 10000, not \"0\""},
      {{"steps", "a", "--first=1x"}, "--first takes a whole number"},
      {{"steps", "a", "--first=9223372036854775808"}, "--first takes a whole number"},
      {{"steps", "a", "--tail"}, "--tail needs a value"},
      {{"steps", "a", "--first=9", "--last=3"}, "--first=9 lies after --last=3"},
      {{"report", "a", "reboot"}, "no action \"reboot\""},
      {{"report", "a", "UNKNOWN"}, "no action \"UNKNOWN\""},
      {{"ack", "1"}, "--by=NAME"},
      {{"completion", "fish"}, "only bash is known"},
  };
  for (const auto& one : cases) {
    Session session;
    EXPECT_EQ(session.Run(one.arguments), 2) << one.said;
    EXPECT_THAT(session.err, HasSubstr(one.said));
    EXPECT_EQ(session.out, "");
  }
}

TEST(CommandLine, AWrongWordCannotWriteToTheTerminal) {
  Session session;
  EXPECT_EQ(session.Run({"verdict", "a", "b\x1b[2J"}), 2);
  EXPECT_THAT(session.err, ::testing::Not(HasSubstr("\x1b")));
}

TEST(Completion, OffersCommandsAndFlags) {
  Session session;
  ASSERT_EQ(session.Run({"completion", "bash"}), 0);
  EXPECT_THAT(session.out, HasSubstr("runs verdict steps incidents explain export compare bundle watch ack report mode replay dump completion"));
  EXPECT_THAT(session.out, HasSubstr("steps) flags='--attempt= --first= --last= --tail= --ranks --address= --tls-ca= --tls-cert= --tls-key= --token-file= --timeout= --json --help'"));
}

}  // namespace
}  // namespace lossgauge::ctl
