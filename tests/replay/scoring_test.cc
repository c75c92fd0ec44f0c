// The scorer's own rules, on detections and labels made up for each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/replay/public_rules.h"
#include "tests/replay/scoring.h"

namespace lossgauge::replay {
namespace {

std::vector<PointPlace> Every(std::int64_t spacing, int count) {
  std::vector<PointPlace> points;
  for (int i = 0; i < count; ++i) points.push_back({1, i * spacing});
  return points;
}

Label At(LabelKind kind, std::int64_t onset, std::int64_t end, std::int64_t latest) {
  Label label;
  label.kind = kind;
  label.onset = {onset, false};
  label.end = {end, false};
  label.latest = LogPlace{latest, false};
  return label;
}

Detection Said(DetectionKind kind, std::uint64_t onset, std::uint64_t last, std::uint64_t warned) {
  Detection detection;
  detection.kind = kind;
  detection.onset = onset;
  detection.last = last;
  detection.warned = warned;
  return detection;
}

TEST(Labels, RowsBecomeLabelsAndWrongOnesAreNamed) {
  const auto logs = ParseLabels(
      "file\tonset\tend\tkind\tlatest_detection\tnote\n"
      "a.csv\t100\t300\tspike\t200\tbig [points #1-#3]\n"
      "a.csv\t900\t900\tblip\t\tambiguous: small\n"
      "a.csv\t\t\tworst_verdict\t\tRESTART|HALT\n"
      "b.log\t#4\t#9\tdivergence\t#6\t\n"
      "b.log\t\t\tworst_verdict\t\tambiguous: WATCH\n"
      "c.log\t\t\tclean\t\t\n");
  ASSERT_TRUE(logs.ok());
  const LabelledLog& a = logs->at("a.csv");
  EXPECT_THAT(a.verdicts, ::testing::ElementsAre("RESTART", "HALT"));
  ASSERT_EQ(a.labels.size(), 2u);
  EXPECT_EQ(a.labels[0].first_point, 1u);
  EXPECT_EQ(a.labels[0].last_point, 3u);
  EXPECT_FALSE(a.labels[0].ambiguous);
  EXPECT_TRUE(a.labels[1].ambiguous);
  EXPECT_TRUE(logs->at("b.log").verdicts.empty());
  EXPECT_TRUE(logs->at("b.log").labels[0].onset.is_index);
  EXPECT_TRUE(logs->at("c.log").clean);
  const auto wrong = ParseLabels("file\tonset\n a\t1\t2\tspyke\t\t\n");
  EXPECT_THAT(std::string(wrong.status().message()), ::testing::HasSubstr("line 2: unknown kind \"spyke\""));
}

TEST(Scoring, ASpikeIsFoundUpToItsLatestPointAndLateCountsAsMissed) {
  const auto points = Every(10, 100);
  const std::vector<Label> labels = {At(LabelKind::kSpike, 500, 550, 520)};
  Score score = MakeScore(points, labels, {Said(DetectionKind::kLoss, 50, 60, 52)});
  EXPECT_EQ(score.Found(LabelKind::kSpike), 1u);
  EXPECT_EQ(score.labels[0].delay_steps, 20);
  EXPECT_TRUE(score.false_detections.empty());
  score = MakeScore(points, labels, {Said(DetectionKind::kLoss, 50, 60, 53)});
  EXPECT_EQ(score.Found(LabelKind::kSpike), 0u);
  EXPECT_TRUE(score.labels[0].late);
  EXPECT_TRUE(score.false_detections.empty());
  score = MakeScore(points, labels, {Said(DetectionKind::kGradient, 50, 60, 50)});
  EXPECT_EQ(score.Found(LabelKind::kSpike), 0u) << "a gradient is no loss";
  Detection info = Said(DetectionKind::kLoss, 50, 60, 50);
  info.warned.reset();
  EXPECT_EQ(MakeScore(points, labels, {info}).Found(LabelKind::kSpike), 0u) << "info only";
}

TEST(Scoring, ADetectionElsewhereIsFalseAndAnEchoIsNot) {
  const auto points = Every(1, 300);
  const std::vector<Label> labels = {At(LabelKind::kSpike, 100, 110, 103)};
  const auto false_at = [&](std::uint64_t onset) { return MakeScore(points, labels, {Said(DetectionKind::kLoss, onset, onset + 1, onset)}).false_detections.size(); };
  EXPECT_EQ(false_at(89), 1u);
  EXPECT_EQ(false_at(90), 0u);
  EXPECT_EQ(false_at(140), 0u);
  EXPECT_EQ(false_at(141), 1u);
}

TEST(Scoring, ABlipOrARestartExcusesNoAlarmOfTheLoss) {
  const auto points = Every(1, 300);
  for (const LabelKind kind : {LabelKind::kBlip, LabelKind::kRestart, LabelKind::kGradExplosion}) {
    const std::vector<Label> labels = {At(kind, 100, 100, 100)};
    EXPECT_EQ(MakeScore(points, labels, {Said(DetectionKind::kLoss, 100, 101, 100)}).false_detections.size(), 1u);
    EXPECT_EQ(MakeScore(points, labels, {Said(DetectionKind::kGradient, 100, 101, 100)}).false_detections.size(), kind == LabelKind::kRestart ? 1u : 0u);
  }
}

TEST(Scoring, AmbiguousRowsAreNeitherFoundNorFalse) {
  const auto points = Every(1, 300);
  std::vector<Label> labels = {At(LabelKind::kSpike, 100, 110, 103)};
  labels[0].ambiguous = true;
  EXPECT_TRUE(MakeScore(points, labels, {}).labels.empty());
  EXPECT_TRUE(MakeScore(points, labels, {Said(DetectionKind::kLoss, 100, 101, 100)}).false_detections.empty());
}

TEST(Scoring, AnAmbiguousRestartExcusesWhatIsNearIt) {
  const auto points = Every(1, 300);
  std::vector<Label> labels = {At(LabelKind::kRestart, 100, 100, 100)};
  labels[0].ambiguous = true;
  const auto false_at = [&](std::uint64_t onset) { return MakeScore(points, labels, {Said(DetectionKind::kLoss, onset, onset + 1, onset)}).false_detections.size(); };
  EXPECT_EQ(false_at(100), 0u);
  EXPECT_EQ(false_at(130), 0u);
  EXPECT_EQ(false_at(131), 1u);
  EXPECT_EQ(false_at(20), 1u);
}

TEST(Scoring, OneDetectionThatLivesOnFindsTheLabelsOfItsStretch) {
  const auto points = Every(1, 300);
  const std::vector<Label> labels = {At(LabelKind::kSpike, 100, 105, 103), At(LabelKind::kDivergence, 130, 299, 160), At(LabelKind::kSpike, 20, 22, 22)};
  Score score = MakeScore(points, labels, {Said(DetectionKind::kLoss, 100, 299, 101)});
  EXPECT_EQ(score.Found(LabelKind::kDivergence), 1u);
  EXPECT_EQ(score.Found(LabelKind::kSpike), 1u) << "the one at 20 is another stretch";
  score = MakeScore(points, labels, {Said(DetectionKind::kLoss, 100, 115, 101)});
  EXPECT_EQ(score.Found(LabelKind::kDivergence), 0u) << "it ended before";
}

TEST(Scoring, WhereStepsRepeatTheNoteSaysWhichPointsAreMeant) {
  std::vector<PointPlace> points = Every(1, 50);
  for (std::int64_t step = 0; step < 50; ++step) points.push_back({2, step});
  Label label = At(LabelKind::kSpike, 20, 25, 22);
  label.first_point = 70;
  label.last_point = 75;
  const Score score = MakeScore(points, {label}, {Said(DetectionKind::kLoss, 70, 76, 72)});
  EXPECT_EQ(score.Found(LabelKind::kSpike), 1u);
  EXPECT_EQ(MakeScore(points, {label}, {Said(DetectionKind::kLoss, 20, 26, 22)}).false_detections.size(), 1u);
}

LogPoint Point(double loss, double grad_norm) {
  LogPoint point;
  point.loss = loss;
  point.grad_norm = grad_norm;
  return point;
}

TEST(PublicRules, EachFlagsWhatItsFormulaSays) {
  const auto six = MakeSixSigmaRule(), ten = MakeTenTimesMaximumRule(), twice = MakeTwiceInitialRule(), gradient = MakeGradientEmaRule();
  for (int i = 0; i < 200; ++i) {
    const LogPoint quiet = Point(2 + 0.01 * (i % 2), 1 + 0.1 * (i % 2));
    for (const auto& rule : {six.get(), ten.get(), twice.get(), gradient.get()}) EXPECT_FALSE(rule->Flags(quiet)) << rule->name() << " at " << i;
  }
  const LogPoint spike = Point(4.9, 1.3);  // mean 2.005 with a deviation of 0.005; gradient 1.05 with 0.05
  EXPECT_TRUE(six->Flags(spike));
  EXPECT_FALSE(ten->Flags(spike)) << "below 10 x 2.01";
  EXPECT_TRUE(twice->Flags(spike));
  EXPECT_TRUE(gradient->Flags(spike));
  EXPECT_TRUE(ten->Flags(Point(20.2, 1)));
}

TEST(PublicRules, OneNanBlindsTheMeanForAWindow) {
  const auto rule = MakeSixSigmaRule();
  for (int i = 0; i < 128; ++i) rule->Flags(Point(2 + 0.01 * (i % 2), 1));
  rule->Flags(Point(NAN, 1));
  for (int i = 0; i < 127; ++i) EXPECT_FALSE(rule->Flags(Point(i % 2 == 0 ? 2.0 : 30.0, 1)));
}

}  // namespace
}  // namespace lossgauge::replay
