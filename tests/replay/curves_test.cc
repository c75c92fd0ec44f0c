// The targets over real logs. They are not of this repository: LOSSGAUGE_CURVES (environment, or at configuration) names the directory with their
// labels; without it the test is skipped.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/replay/scoring.h"

namespace lossgauge::replay {
namespace {

std::string Directory() {
  const char* named = std::getenv("LOSSGAUGE_CURVES");
  return named != nullptr ? named : LOSSGAUGE_CURVES_DIRECTORY;
}

class Curves : public ::testing::Test {
 protected:
  // All logs are replayed once for all tests.
  static void SetUpTestSuite() {
    std::ifstream file(Directory() + "/events.tsv");
    if (!file) return;
    std::stringstream text;
    text << file.rdbuf();
    const auto labels = ParseLabels(text.str());
    ASSERT_TRUE(labels.ok()) << labels.status();
    for (const auto& [name, labelled] : *labels) {
      auto score = ScoreLog(Directory() + "/logs/" + name, labelled, detect::DefaultPolicies());
      ASSERT_TRUE(score.ok()) << score.status();
      scores.push_back(*std::move(score));
    }
  }
  void SetUp() override {
    if (scores.empty()) GTEST_SKIP() << "no labelled logs at \"" << Directory() << "\"";
  }

  static inline std::vector<LogScore> scores;
};

std::string Missed(const std::vector<LogScore>& scores, bool spikes) {
  std::string text;
  for (const LogScore& score : scores) {
    for (const FoundLabel& label : score.ours.labels) {
      const LabelKind kind = label.label.kind;
      const bool is_damage = kind == LabelKind::kDivergence || kind == LabelKind::kCollapse || kind == LabelKind::kNonfinite;
      if (!label.found && (spikes ? kind == LabelKind::kSpike : is_damage)) text += score.file + " at step " + std::to_string(label.step) + "\n";
    }
  }
  return text;
}

TEST_F(Curves, EveryDivergenceCollapseAndNanIsFound) {
  const Totals totals = Total(scores);
  EXPECT_GT(totals.damages, 0u);
  EXPECT_EQ(totals.damages_found, totals.damages) << Missed(scores, false);
}

TEST_F(Curves, NineteenOfTwentySpikesAreFound) {
  const Totals totals = Total(scores);
  EXPECT_GT(totals.spikes, 0u);
  EXPECT_GE(totals.spikes_found * 20, totals.spikes * 19) << Missed(scores, true);
}

TEST_F(Curves, NoRestartOrHaltWhereNothingDeservesIt) {
  for (const LogScore& score : scores) EXPECT_FALSE(score.wrong_restart) << score.file << ": " << score.wrong_restart_text;
}

TEST_F(Curves, AtMostOneFalseIncidentInTenThousandPoints) {
  std::string text;
  for (const LogScore& score : scores) {
    for (const FalseDetection& one : score.ours.false_detections) text += score.file + " at step " + std::to_string(one.step) + ": " + one.detection.what + "\n";
  }
  EXPECT_LE(Total(scores).FalsePer10k(), 1) << text;
}

TEST_F(Curves, NineteenOfTwentyWorstVerdictsAreRight) {
  const Totals totals = Total(scores);
  EXPECT_GT(totals.verdicts, 0u);
  std::string wrong;
  for (const LogScore& score : scores) {
    if (!score.verdict_right) wrong += score.file + ": " + std::string(state::ActionName(score.worst)) + "\n";
  }
  EXPECT_GE(totals.verdicts_right * 20, totals.verdicts * 19) << wrong;
}

TEST_F(Curves, PublicRulesFindLessAndThoseThatFindAnythingCryMore) {
  const Totals ours = Total(scores);
  for (std::size_t i = 0; i < scores[0].rules.size(); ++i) {
    const Totals rule = TotalOfRule(scores, i);
    EXPECT_LT(rule.spikes_found, ours.spikes_found) << "rule " << i;
    EXPECT_LT(rule.damages_found, ours.damages_found) << "rule " << i;
    EXPECT_LT(rule.gradients_found, ours.gradients_found) << "rule " << i;
    if (rule.spikes_found + rule.damages_found + rule.gradients_found == 0) continue;
    EXPECT_GT(rule.FalsePer10k(), ours.FalsePer10k()) << "rule " << i;
  }
}

}  // namespace
}  // namespace lossgauge::replay
