// Incident book and run history.
#include <gtest/gtest.h>

#include "server/detect/incident_book.h"
#include "server/detect/run_history.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::Severity;

Finding Of(Condition condition, std::int64_t step, Severity severity = Severity::kWarning) {
  Finding finding;
  finding.condition = condition;
  finding.severity = severity;
  finding.onset_step = finding.peak_step = step;
  finding.summary = "text";
  return finding;
}

class Book : public ::testing::Test {
 protected:
  void Report(Condition condition, std::int64_t step, state::TimeNs time_ns = 1) {
    book.Report({condition}, Of(condition, step), {"1", step, time_ns});
  }
  std::string HiddenBy(Condition condition) const { return book.FindOpen({condition})->hidden_by; }
  std::string Id(Condition condition) const { return book.FindOpen({condition})->id; }
  IncidentBook book{"run"};
};

TEST_F(Book, RootsHideTheirSymptomsInOrder) {
  Report(Condition::kLossSpike, 100);
  Report(Condition::kIntegrity, 100);
  EXPECT_EQ(HiddenBy(Condition::kLossSpike), Id(Condition::kIntegrity));
  Report(Condition::kNonfinite, 101);
  EXPECT_EQ(HiddenBy(Condition::kLossSpike), Id(Condition::kNonfinite));
  EXPECT_EQ(HiddenBy(Condition::kIntegrity), Id(Condition::kNonfinite));
  Report(Condition::kRankMissing, 101);
  Report(Condition::kStall, 101);
  EXPECT_EQ(HiddenBy(Condition::kRankMissing), "") << "a NaN stops no rank";
  Report(Condition::kProducerLost, 101);
  EXPECT_EQ(HiddenBy(Condition::kRankMissing), Id(Condition::kProducerLost));
  EXPECT_EQ(HiddenBy(Condition::kStall), Id(Condition::kProducerLost));
  EXPECT_EQ(HiddenBy(Condition::kNonfinite), "") << "it came before the loss of the process and may be its reason";
  EXPECT_EQ(HiddenBy(Condition::kProducerLost), "");
}

TEST_F(Book, ARootThatIsOverUncoversWhatItHid) {
  Report(Condition::kProducerLost, 100);
  Report(Condition::kRankMissing, 100);
  book.Resolve({Condition::kProducerLost}, {"1", 101, 2});
  EXPECT_EQ(HiddenBy(Condition::kRankMissing), "");
}

TEST_F(Book, WhatBeganLongBeforeARootIsNoSymptomOfIt) {
  Report(Condition::kAccounting, 1);
  Report(Condition::kNonfinite, 500);
  EXPECT_EQ(HiddenBy(Condition::kAccounting), "");
}

TEST_F(Book, ARootHidesNothingWorseThanItself) {
  book.Report({Condition::kNonfinite}, Of(Condition::kNonfinite, 100), {"1", 100, 1});
  book.Report({Condition::kDivergence}, Of(Condition::kDivergence, 110, Severity::kWarning), {"1", 110, 1});
  EXPECT_EQ(HiddenBy(Condition::kDivergence), Id(Condition::kNonfinite));
  book.Report({Condition::kDivergence}, Of(Condition::kDivergence, 110, Severity::kCritical), {"1", 111, 1});
  EXPECT_EQ(HiddenBy(Condition::kDivergence), "");
  book.Report({Condition::kNonfinite}, Of(Condition::kNonfinite, 100, Severity::kCritical), {"1", 112, 1});
  EXPECT_EQ(HiddenBy(Condition::kDivergence), Id(Condition::kNonfinite));
}

TEST_F(Book, ChangesAreToldOnceAndAnAgeingIncidentOnlyNowAndThen) {
  Report(Condition::kStall, 100, 1'000'000'000);
  EXPECT_EQ(book.TakeChanged().size(), 1u);
  EXPECT_EQ(book.TakeChanged().size(), 0u);
  Report(Condition::kStall, 100, 2'000'000'000);
  EXPECT_EQ(book.TakeChanged().size(), 0u);
  Report(Condition::kStall, 100, 12'000'000'000);
  EXPECT_EQ(book.TakeChanged().size(), 1u);
  book.Resolve({Condition::kStall}, {"1", 101, 13'000'000'000});
  const auto changed = book.TakeChanged();
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_FALSE(changed[0].open);
}

TEST_F(Book, IdsAreStableUniqueAndOfTheRun) {
  Report(Condition::kStall, 1);
  Report(Condition::kFrozen, 1);
  EXPECT_NE(Id(Condition::kStall), Id(Condition::kFrozen));
  IncidentBook same("run");
  IncidentBook other("other");
  EXPECT_EQ(same.Report({Condition::kStall}, Of(Condition::kStall, 1), {"1", 1, 1}).id, Id(Condition::kStall));
  EXPECT_NE(other.Report({Condition::kStall}, Of(Condition::kStall, 1), {"1", 1, 1}).id, Id(Condition::kStall));
}

TEST_F(Book, HistoryIsBounded) {
  for (int i = 0; i < 1000; ++i) {
    Report(Condition::kStall, i, i + 1);
    book.Resolve({Condition::kStall}, {"1", i, i + 1});
  }
  EXPECT_EQ(book.All().size(), 64u);
  EXPECT_EQ(book.counters().incidents[0].opened, 1000u);
}

TEST_F(Book, EvidenceThatIsNoNumberIsSaidInWords) {
  Finding finding = Of(Condition::kNonfinite, 1);
  finding.evidence = {{"grad_norm", std::numeric_limits<double>::quiet_NaN(), "nats", ""}};
  book.Report({Condition::kNonfinite}, finding, {"1", 1, 1});
  EXPECT_EQ(book.FindOpen({Condition::kNonfinite})->evidence[0].text, "NaN");
  EXPECT_EQ(book.FindOpen({Condition::kNonfinite})->evidence[0].value, 0);
  EXPECT_EQ(book.FindOpen({Condition::kNonfinite})->evidence[0].unit, "");
}

TEST(RunHistory, NeverDropsTheCheckpointThatARestartWouldTake) {
  RunHistory history;
  for (int step = 100; step <= 10'000; step += 100) history.AddCheckpoint(step, "/c", 250);
  EXPECT_EQ(history.CheckpointAtOrBefore(250)->step, 200);
  EXPECT_EQ(history.CheckpointAtOrBefore(100'000)->step, 10'000);
  EXPECT_FALSE(history.CheckpointAtOrBefore(99));
}

TEST(RunHistory, KeepsASpreadThatReachesBack) {
  RunHistory history;
  for (int step = 100; step <= 10'000; step += 100) history.AddCheckpoint(step, "/c", step);
  ASSERT_TRUE(history.CheckpointAtOrBefore(150)) << "the oldest";
  ASSERT_TRUE(history.CheckpointAtOrBefore(9'000));
  EXPECT_GE(history.CheckpointAtOrBefore(9'000)->step, 4'000);
  EXPECT_GE(history.CheckpointAtOrBefore(9'999)->step, 9'000);
}

TEST(RunHistory, CountsAttemptsThatGotNoFurther) {
  RunHistory history;
  const auto attempt = [&](const char* name, std::int64_t last) {
    history.BeginAttempt(name, 1, std::nullopt);
    history.OnStep(last);
  };
  attempt("1", 100);
  EXPECT_EQ(history.AttemptsWithoutProgress(), 0);
  attempt("2", 90);
  attempt("3", 100);
  EXPECT_EQ(history.AttemptsWithoutProgress(), 2);
  attempt("4", 101);
  EXPECT_EQ(history.AttemptsWithoutProgress(), 0);
}

}  // namespace
}  // namespace lossgauge::detect
