// What becomes of steps as they age and as the file fills.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/state/history_fixture.h"

namespace lossgauge::state {
namespace {

TEST_F(HistoryTest, StepsAreWholeUntilTheirAgeAndThenRowsOf64) {
  Add("r", 0, 1999);
  PruneAll(1999 * kSecond);  // steps of the first 999 s are older than 1000 s
  const auto rows = Read({.limit = 10'000});
  EXPECT_EQ(CountSteps(rows), 2000u);
  ExpectSeamless(rows);
  ASSERT_TRUE(rows[0].thinned);
  EXPECT_EQ(rows[0].thinned->steps, 64u);
  EXPECT_DOUBLE_EQ(*rows[0].loss_nats, 3.5);
  EXPECT_EQ(rows[0].thinned->min[0], 0.0);
  EXPECT_EQ(rows[0].thinned->max[0], 7.0);
  const auto whole = std::count_if(rows.begin(), rows.end(), [](const auto& row) { return !row.thinned; });
  EXPECT_EQ(whole, 2000 - 15 * 64) << "998 steps are old: 15 rows of 64, the rest wait for their successors";
  EXPECT_EQ(store_->history_counts().thinned, 15u * 64);
  EXPECT_EQ(store_->history_counts().dropped_by_age, 0u);
  Open();
  EXPECT_EQ(Read({.limit = 10'000}).size(), rows.size()) << "survives a restart";
}

TEST_F(HistoryTest, WithoutBeingAskedForThinnedRowsStayOut) {
  Add("r", 0, 1999);
  PruneAll(1999 * kSecond);
  const auto steps = *store_->reader()->ReadSteps({.run = "r", .limit = 10'000});
  EXPECT_EQ(steps.size(), 2000u - 15 * 64);
  EXPECT_EQ(steps[0].step, 15 * 64);
}

TEST_F(HistoryTest, ARowHoldsOneAttemptAndNeverGoesBack) {
  Add("r", 0, 99, "a");
  Add("r", 50, 149, "b", 50);
  PruneAll(5000 * kSecond);
  const auto rows = Read({});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].attempt, "a");
  EXPECT_EQ(rows[1].thinned->steps, 36u);
  EXPECT_EQ(rows[2].attempt, "b");
  EXPECT_EQ(rows[2].thinned->first_step, 50);
  EXPECT_EQ(rows[3].step, 149) << "a run whose steps are all old has no rest";
  EXPECT_EQ(Read({.attempt = "b"}).size(), 2u);
}

TEST_F(HistoryTest, RowsOlderThanTheAgeAreDroppedAndTheirStepsCounted) {
  Add("r", 0, 639);
  PruneAll(5000 * kSecond);
  ASSERT_EQ(Read({}).size(), 10u);
  PruneAll(5061 * kSecond);  // nothing is due
  EXPECT_EQ(Read({}).size(), 10u);
  PruneAll((100'000 + 129) * kSecond);  // the first two end at seconds 64 and 128
  EXPECT_EQ(Read({}).size(), 8u);
  EXPECT_EQ(store_->history_counts().dropped_by_age, 128u);
  PruneAll(200'000 * kSecond);
  EXPECT_TRUE(Read({}).empty());
  EXPECT_EQ(store_->history_counts().dropped_by_age, 640u);
  EXPECT_FALSE((*store_->LoadRun("r")).has_value()) << "nothing is left of it";
}

TEST_F(HistoryTest, BeyondItsSizeTheOldestIsThinnedFirstAndDroppedOnlyOnceAllIsThin) {
  options_.full_age_ns = options_.max_age_ns = std::int64_t{1} << 60;
  options_.max_bytes = 3 << 18;
  Open();
  Add("old", 0, 7999);
  Add("young", 100'000, 107'999);
  ASSERT_GT(store_->bytes(), 6u << 18);
  PruneAll(200'000 * kSecond);
  EXPECT_LE(store_->bytes(), 3u << 18);
  EXPECT_EQ(store_->history_counts().dropped_by_size, 0u);
  EXPECT_GT(store_->history_counts().thinned, 8000u);
  const auto old = Read({.run = "old", .limit = 100'000});
  const auto young = Read({.run = "young", .limit = 100'000});
  EXPECT_EQ(CountSteps(old) + CountSteps(young), 16'000u) << "nothing dropped";
  EXPECT_EQ(old.size(), 125u) << "all of the older run is thin before any of the younger";
  EXPECT_GT(young.size(), 125u);
  ExpectSeamless(young);
  EXPECT_FALSE(young.back().thinned) << "the newest are whole";

  options_.max_bytes = 3 << 17;
  Open();
  for (std::int64_t step = 200'000; step < 400'000; step += 10'000) {
    Add("young", step, step + 9'999);
    PruneAll(static_cast<TimeNs>(step + 10'000) * kSecond);
    ASSERT_LE(store_->bytes(), 3u << 17) << step;
  }
  EXPECT_GT(store_->history_counts().dropped_by_size, 8000u);
  EXPECT_TRUE(Read({.run = "old"}).empty()) << "the oldest went first";
  EXPECT_FALSE(Read({.run = "young"}).empty());
}

TEST_F(HistoryTest, ACallDoesABoundedAmountOfWork) {
  Add("r", 0, 19'999);
  const auto more = store_->Prune(50'000 * kSecond);
  ASSERT_TRUE(more.ok());
  EXPECT_TRUE(*more);
  EXPECT_LE(store_->history_counts().thinned, 1024u + 64);
  EXPECT_GE(PruneAll(50'000 * kSecond), 19'999 / 1100);
  EXPECT_EQ(CountSteps(Read({.limit = 100'000})), 20'000u);
}

TEST_F(HistoryTest, StepsOfManyRanksAreBoundedByBytes) {
  Add("r", 0, 255, "a", 0, 4096);  // about 50 kB a step
  const auto more = store_->Prune(50'000 * kSecond);
  ASSERT_TRUE(more.ok());
  EXPECT_LE(store_->history_counts().thinned, 64u);
  PruneAll(50'000 * kSecond);
  EXPECT_EQ(CountSteps(Read({.limit = 1000})), 256u);
}

TEST_F(HistoryTest, StepsOfManyRanksAreDroppedInPiecesToo) {
  Add("r", 0, 255, "a", 0, 4096);
  const auto more = store_->Prune(200'000 * kSecond);
  ASSERT_TRUE(more.ok());
  EXPECT_TRUE(*more);
  EXPECT_LE(store_->history_counts().dropped_by_age, 64u);
  PruneAll(200'000 * kSecond);
  EXPECT_EQ(store_->history_counts().dropped_by_age, 256u);
  EXPECT_TRUE(Read({}).empty());
}

TEST_F(HistoryTest, ARunThatIsOldGoesInPiecesAndTheRunItselfLast) {
  AddExtras("old", 3000, 2500, 2000, 10 * kSecond);
  AddExtras("young", 10, 10, 10, 150'000 * kSecond);
  Transaction t;
  for (int i = 0; i < 5; ++i) t.ledger.emplace_back("old", LedgerEntry{.action = Action::kRestart, .actor = "slurm"});
  ASSERT_TRUE(store_->Commit(t).ok());
  const auto more = store_->Prune(200'000 * kSecond);
  ASSERT_TRUE(more.ok());
  EXPECT_TRUE(*more);
  EXPECT_TRUE((*store_->LoadRun("old")).has_value());
  EXPECT_EQ(store_->LoadLedger("old")->size(), 5u) << "who did what goes last";
  EXPECT_GE(PruneInPieces(200'000 * kSecond), 6);
  EXPECT_FALSE((*store_->LoadRun("old")).has_value());
  EXPECT_TRUE((*store_->LoadRun("young")).has_value());
  EXPECT_EQ(CountExtras(), 30);
  AddExtras("old", 1, 0, 0, 200'000 * kSecond);
  EXPECT_EQ(store_->reader()->ReadVerdicts("old", 10, 0)->size(), 1u) << "it came back, with a row of its own";
}

}  // namespace
}  // namespace lossgauge::state
