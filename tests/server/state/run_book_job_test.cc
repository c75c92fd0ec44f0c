// The book of a daemon: whole jobs from many nodes.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

class JobBookTest : public RunBookTest {
 protected:
  JobBookTest() {
    options_.run.is_forwarded = options_.run.join.whole_job = true;
    MakeBook();
  }
  std::vector<StepSummary> History() {
    StepQuery query;
    query.run = "run";
    auto steps = store_->reader()->ReadSteps(query);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return *std::move(steps);
  }
};

TEST_F(JobBookTest, WaitsForAllRanksWhileSidecarsComeBack) {
  options_.run.join.hold_until_ns = now_ + 10 * kSecond;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance(5);
  EXPECT_TRUE(Steps().empty()) << "far beyond the join timeout, but the other node may be on its way";
  Add(b);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
  Step(a, 1);
  Advance(3);
  EXPECT_EQ(Steps().size(), 1u);
  Advance(4);
  ASSERT_EQ(Steps().size(), 2u);
  EXPECT_EQ(Steps()[1].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(JobBookTest, CorrectsOnlyAsManyStepsAsItMayKeepOpen) {
  options_.run.join.max_open_bytes = 5000;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (std::int64_t step = 0; step < 20; ++step) Step(a, step);
  Advance(3);
  ASSERT_EQ(Steps().size(), 20u);
  for (std::int64_t step = 0; step < 20; ++step) Step(b, step);
  Advance();
  Commit();
  const auto history = History();
  ASSERT_EQ(history.size(), 20u);
  EXPECT_FALSE(history[0].complete);
  EXPECT_TRUE(history[19].complete);
  EXPECT_EQ(history[19].finite_tokens, 20u);
  EXPECT_EQ(Run()->totals.finite_tokens, 400u) << "totals do not depend on it";
  EXPECT_EQ(Snap()->self.late_records, 20u);
}

// Found by a simulated fleet of 16,384 ranks: with more of them missing than are named, those behind the named ones were left out for good.
TEST_F(JobBookTest, ManyLateRanksAreAllAddedThoughOnlyTheFirstAreNamed) {
  options_.run.join.max_ranks = 4096;
  options_.run.join.max_pending = 1 << 20;
  MakeBook();
  constexpr std::uint32_t kWorld = 1500;
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) ranks.emplace_back("run", "1", rank, kWorld, rank + 1);
  for (Rank& rank : ranks) Add(rank);
  Step(ranks[0], 0);
  Advance(3);
  Commit();
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].missing_ranks.size(), 1024u);
  for (std::uint32_t rank = 1; rank < 1200; ++rank) Step(ranks[rank], 0);
  Advance();
  Commit();
  EXPECT_FALSE(History()[0].complete);
  for (std::uint32_t rank = 1200; rank < kWorld; ++rank) Step(ranks[rank], 0);
  Advance();
  Commit();
  EXPECT_TRUE(History()[0].complete);
  EXPECT_EQ(History()[0].ranks, kWorld);
  EXPECT_EQ(History()[0].finite_tokens, 10u * kWorld);
}

TEST_F(JobBookTest, ALateRecordThatComesTwiceIsAddedOnce) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance(3);
  const RankSample late = b.Step(0, now_);
  book_->OnSample(late);
  book_->OnSample(late);
  Advance();
  Commit();
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].finite_tokens, 20u);
  EXPECT_EQ(History()[0].ranks, 2u);
}

TEST_F(JobBookTest, CursorsOfLiveSegmentsComeBackWithTheirRun) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (std::int64_t step = 0; step < 3; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Step(a, 3);  // waits for its other rank
  Advance();
  Commit();
  EXPECT_EQ(store_->LoadCursors()->size(), 0u) << "no row for each rank";
  EXPECT_EQ(book_->FindCommitted(a.info->segment).next_steps_publication, 4u);
  Restart();
  Advance();
  ASSERT_NE(Run(), nullptr);
  EXPECT_EQ(Run()->unreachable_ranks, 0u);
  Add(a);
  Add(b);
  EXPECT_EQ(book_->FindCursor(a.info->segment).next_steps_publication, 4u) << "what waited is to be sent again";
  EXPECT_EQ(book_->FindCursor(b.info->segment).next_steps_publication, 4u);
  now_ += 2 * kSecond;
  book_->Advance(now_, Reachability([](const ProducerInfo& info) { return info.layout.rank == 0; }));
  EXPECT_EQ(Run()->unreachable_ranks, 1u);
}

TEST_F(JobBookTest, AJobOfManyRanksShowsThoseThatAreNotWell) {
  options_.run.max_rank_series = 10;
  MakeBook();
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < 40; ++rank) ranks.emplace_back("run", "1", rank, 40, rank + 1);
  for (Rank& rank : ranks) Add(rank);
  for (Rank& rank : ranks) {
    if (rank.info->layout.rank != 17) Step(rank, 0);
  }
  Advance(3);
  Commit();
  EXPECT_EQ(Run()->ranks_left_out, 39u);
  ASSERT_EQ(Run()->ranks.size(), 1u);
  EXPECT_EQ(Run()->ranks[0].rank, 17u);
  ASSERT_NE(Run()->last_step->spread, nullptr);
  EXPECT_EQ(Run()->last_step->spread->loss_nats.ranks, 39u);
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].rank_steps.size(), 39u) << "the judge sees them all";
  Step(ranks[17], 0);
  Advance();
  Commit();
  EXPECT_EQ(History()[0].spread->loss_nats.ranks, 40u);
  EXPECT_TRUE(History()[0].complete);
  Advance(1);
  EXPECT_TRUE(Run()->ranks.empty());
}

TEST_F(JobBookTest, AJobEndsWhenItsWholeWorldHasEnded) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance();
  End(a);
  Advance(3);
  EXPECT_FALSE(Run()->ended) << "nobody has told of the other rank";
  Add(b);
  Step(b, 0);
  End(b);
  Advance();
  EXPECT_TRUE(Run()->ended);
}

TEST_F(JobBookTest, AJobThatNobodyTellsOfAnyMoreIsLetGoAndComesBack) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  Commit();
  now_ += 3700 * kSecond;
  Advance();
  Commit();
  EXPECT_EQ(Run(), nullptr);
  EXPECT_FALSE(book_->FindCursor(a.info->segment).ended) << "it was only not heard of";
  EXPECT_TRUE(Add(a));
  EXPECT_EQ(book_->FindCursor(a.info->segment).next_steps_publication, 2u);
  Step(a, 1);
  Advance();
  EXPECT_EQ(Run()->totals.steps, 2u);
}

}  // namespace
}  // namespace lossgauge::state
