// Every small log of fixtures/ against what a person checked that it says: NAME.points beside it. LOSSGAUGE_UPDATE_GOLDEN=1 writes those anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/replay/read_points.h"

namespace lossgauge::replay {
namespace {

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Describe(const ReadPoints& read) {
  const LogReport& report = read.report;
  std::string text = absl::StrFormat("%s, %s, loss \"%s\", %u lines\n", report.format, report.encoding, report.loss_name, report.lines);
  for (std::size_t i = 0; i < report.oddities.size(); ++i) {
    const OddityCount& entry = report.oddities[i];
    if (entry.count > 0) {
      absl::StrAppendFormat(&text, "oddity %s x %u, lines %u to %u\n", OddityName(static_cast<Oddity>(i)), entry.count, entry.first_line, entry.last_line);
    }
  }
  for (const LogPoint& point : read.points) absl::StrAppendFormat(&text, "%s\n", Show(point));
  for (const LogEvaluation& one : read.evaluations) {
    absl::StrAppendFormat(&text, "line %u  evaluation %g%s\n", one.line, one.loss_nats, one.step ? absl::StrFormat(" at step %d", *one.step) : "");
  }
  for (const LogCheckpoint& one : read.checkpoints) absl::StrAppendFormat(&text, "line %u  checkpoint at step %d, %s\n", one.line, one.step, one.path);
  return text;
}

TEST(Fixtures, SayWhatAPersonReadInThem) {
  int looked_at = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LOSSGAUGE_REPLAY_FIXTURES)) {
    if (entry.path().extension() == ".points") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++looked_at;
    const std::string said = Describe(ReadText(Contents(entry.path())));
    const std::string golden = entry.path().string() + ".points";
    if (std::getenv("LOSSGAUGE_UPDATE_GOLDEN") != nullptr) std::ofstream(golden) << said;
    EXPECT_EQ(said, Contents(golden));
  }
  EXPECT_GE(looked_at, 16);
}

}  // namespace
}  // namespace lossgauge::replay
