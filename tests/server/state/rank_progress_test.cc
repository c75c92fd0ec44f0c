#include "server/state/rank_progress.h"

#include <gtest/gtest.h>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::state {
namespace {

lg_step_record Record(std::uint64_t steps, std::uint64_t tokens, std::int64_t nll) {
  lg_step_record record{};
  record.total_steps = steps;
  record.total_tokens = record.total_unmasked_tokens = record.total_finite_tokens = tokens;
  record.total_nll_sum = lg_fixed128_from_int64(nll);
  return record;
}

TEST(TakeProgress, TheFirstRecordSeenBringsAllThatWentBefore) {
  RankTotals seen;
  const RankTotals delta = TakeProgress(Record(500, 5000, 12000), &seen);
  EXPECT_EQ(delta.steps, 500u);
  EXPECT_EQ(delta.finite_tokens, 5000u);
  EXPECT_EQ(delta.nll_sum.hi, 12000);
}

TEST(TakeProgress, ALaterRecordBringsTheDifferenceAcrossAnyGap) {
  RankTotals seen;
  TakeProgress(Record(1, 10, 20), &seen);
  const RankTotals delta = TakeProgress(Record(101, 1010, 2020), &seen);
  EXPECT_EQ(delta.steps, 100u);
  EXPECT_EQ(delta.finite_tokens, 1000u);
  EXPECT_EQ(delta.nll_sum.hi, 2000);
}

TEST(TakeProgress, ARecordReadAgainOrOutOfOrderBringsNothing) {
  RankTotals seen;
  TakeProgress(Record(7, 70, 140), &seen);
  for (const std::uint64_t steps : {7u, 6u, 1u, 0u}) {
    const RankTotals delta = TakeProgress(Record(steps, 10 * steps, 20), &seen);
    EXPECT_EQ(delta.steps, 0u);
    EXPECT_EQ(delta.finite_tokens, 0u);
    EXPECT_EQ(delta.nll_sum.hi, 0);
  }
  EXPECT_EQ(seen.steps, 7u);
}

// A counter never goes down, whatever a ring claims.
TEST(TakeProgress, ACountThatFallsBringsNothing) {
  RankTotals seen;
  TakeProgress(Record(7, 70, 140), &seen);
  const RankTotals delta = TakeProgress(Record(8, 3, 160), &seen);
  EXPECT_EQ(delta.steps, 1u);
  EXPECT_EQ(delta.finite_tokens, 0u);
  EXPECT_EQ(TakeProgress(Record(9, 75, 180), &seen).finite_tokens, 5u);
}

TEST(Totals, SurviveTheirBytes) {
  RankTotals totals;
  totals.steps = 1;
  totals.tokens = ~std::uint64_t{0};
  totals.mass_error_rows = 3;
  totals.nll_sum = lg_fixed128_make(-5, 7);
  totals.z_loss_sum = lg_fixed128_make(6, 8);
  totals.records_lost = {1, 2, 3, 4};
  totals.records_read = 9;
  ByteWriter writer;
  WriteTotals(totals, &writer);
  const std::string bytes = writer.Take();
  ByteReader reader(bytes);
  const RankTotals back = ReadTotals(&reader);
  EXPECT_TRUE(reader.ok() && reader.at_end());
  EXPECT_EQ(back.tokens, totals.tokens);
  EXPECT_EQ(back.mass_error_rows, 3u);
  EXPECT_EQ(back.nll_sum.hi, -5);
  EXPECT_EQ(back.nll_sum.lo, 7u);
  EXPECT_EQ(back.z_loss_sum.hi, 6);
  EXPECT_EQ(back.records_lost, totals.records_lost);
  EXPECT_EQ(back.records_read, 9u);
}

}  // namespace
}  // namespace lossgauge::state
