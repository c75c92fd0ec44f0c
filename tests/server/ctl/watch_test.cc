#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ctl/connection.h"
#include "server/ctl/watcher.h"
#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::WatchStepsResponse Message(std::vector<v1::Step> steps, std::uint64_t skipped = 0) {
  v1::WatchStepsResponse message;
  for (v1::Step& step : steps) *message.add_steps() = std::move(step);
  message.set_skipped(skipped);
  return message;
}

class CtlWatch : public ::testing::Test {
 protected:
  CtlWatch() {
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
    fake.runs["demo"] = MakeRun("demo", v1::WATCH, "loss spike is young");
    for (std::uint64_t i = 1; i <= 3; ++i) fake.steps["demo"].push_back(MakeStep(i, static_cast<std::int64_t>(i), 2.0));
  }

  FakeLossGauge fake;
  Session session;
};

TEST_F(CtlWatch, FollowsFromWhereTheHistoryEnds) {
  fake.step_streams = {{Message({MakeStep(4, 4, 2.5)}), Message({MakeStep(5, 5, 6.5)})}};
  ASSERT_EQ(session.Run({"watch", "demo", "--count=2"}), 0);
  EXPECT_THAT(fake.watch_tokens, ElementsAre(3u));
  EXPECT_THAT(session.out, HasSubstr("step 4  loss 2.500"));
  EXPECT_THAT(session.out, HasSubstr("step 5  loss 6.500"));
}

TEST_F(CtlWatch, ResumesAfterABreakWithoutLossOrRepetition) {
  fake.step_streams = {{Message({MakeStep(4, 4, 2.5)})}, {Message({MakeStep(4, 4, 2.5), MakeStep(5, 5, 2.5)}), Message({MakeStep(6, 6, 2.5)})}};
  ASSERT_EQ(session.Run({"watch", "demo", "--count=3"}), 0);
  EXPECT_THAT(fake.watch_tokens, ElementsAre(3u, 4u));
  const std::size_t first = session.out.find("step 4 ");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(session.out.find("step 4 ", first + 1), std::string::npos);
  EXPECT_THAT(session.out, HasSubstr("step 6 "));
  EXPECT_THAT(session.out, HasSubstr("disconnected"));
}

TEST_F(CtlWatch, SaysWhatWasSkipped) {
  fake.step_streams = {{Message({MakeStep(90, 90, 2.5)}, 86)}};
  ASSERT_EQ(session.Run({"watch", "demo", "--count=1"}), 0);
  EXPECT_THAT(session.out, HasSubstr("86 steps were no longer kept"));
}

TEST_F(CtlWatch, KeepsOneLineOnATerminal) {
  session.terminal = true;
  fake.step_streams = {{Message({MakeStep(4, 4, 9.0)})}};
  ASSERT_EQ(session.Run({"watch", "demo", "--count=1"}), 0);
  EXPECT_THAT(session.out, HasSubstr("\r\x1b[K"));
  EXPECT_THAT(session.out, HasSubstr("step 4  loss 9.000"));
  EXPECT_THAT(session.out, HasSubstr("▁▁▁█"));
  EXPECT_EQ(session.out.back(), '\n');
}

TEST_F(CtlWatch, WritesOneObjectALineAsJson) {
  fake.step_streams = {{Message({MakeStep(4, 4, 2.5)})}};
  ASSERT_EQ(session.Run({"watch", "demo", "--count=1", "--json"}), 0);
  std::istringstream lines(session.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with("{\"verdict\":{") || line.starts_with("{\"step\":{")) << line;
    EXPECT_TRUE(line.ends_with("}}")) << line;
  }
  EXPECT_THAT(session.out, HasSubstr("\"lossNats\":2.5"));
  EXPECT_THAT(session.out, Not(HasSubstr("\x1b")));
}

TEST_F(CtlWatch, OpensASilentStreamAnew) {
  fake.silent_verdicts = true;  // a connection whose other end has gone without a word
  std::ostringstream out;
  Io io{out, out};
  io.environment = [this](const char* name) { return std::string(name) == "LOSSGAUGE_ADDRESS" ? fake.address() : std::string(); };
  Connection connection(Options(), io);
  Watcher watcher(connection, "demo", std::chrono::milliseconds(50));
  ASSERT_TRUE(watcher.LoadHistory(20).ok());
  watcher.Start();
  bool connected = true;
  for (int tries = 0; tries < 2000 && (connected || fake.verdict_watches < 2); ++tries) {
    connected = watcher.Next(std::chrono::milliseconds(10)).connected;
  }
  EXPECT_FALSE(connected);
  EXPECT_GE(fake.verdict_watches, 2);
}

}  // namespace
}  // namespace lossgauge::ctl
