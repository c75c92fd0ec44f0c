// How the history is read: whole and thinned, by ranges, by pages, and past what is damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <string>
#include <vector>

#include "tests/server/state/history_fixture.h"

namespace lossgauge::state {
namespace {

TEST_F(HistoryTest, OfEachKindSoManyAreKeptTheNewestAndWhatIsOpen) {
  AddExtras("r", 12'000, 11'500, 10'001, 10 * kSecond);
  PruneInPieces(20 * kSecond);
  EXPECT_EQ(CountExtras(), 30'000);
  EXPECT_EQ(store_->reader()->ReadVerdicts("r", 1, 9'999)->at(0).last_step, 2000);
  EXPECT_EQ(store_->reader()->ReadEvents("r", 0, 1)->events.at(0).second.text, "1");
  EXPECT_TRUE((*store_->reader()->FindIncident("r", "r-0")).has_value()) << "it is open";
  EXPECT_FALSE((*store_->reader()->FindIncident("r", "r-1500")).has_value());
  EXPECT_TRUE((*store_->reader()->FindIncident("r", "r-1501")).has_value());
}

TEST_F(HistoryTest, LookingAtWhatManyRunsKeepIsWorkOfManyCalls) {
  for (int run = 0; run < 6; ++run) AddExtras("r" + std::to_string(run), 9'000, 100, 9'000, 10 * kSecond);
  EXPECT_GE(PruneAll(20 * kSecond), 6) << "108,000 entries of indices, at most 17,000 to a call";
  EXPECT_EQ(CountExtras(), 6 * 18'100);
}

TEST_F(HistoryTest, PagesCrossFromThinnedToWholeWithoutGapOrOverlapBothWays) {
  Add("r", 0, 1999);
  PruneAll(1999 * kSecond);
  const auto all = Read({.limit = 10'000});
  std::vector<StepSummary> pages;
  while (true) {
    const auto page = Read({.after_sequence = pages.empty() ? 0 : pages.back().sequence, .limit = 7});
    pages.insert(pages.end(), page.begin(), page.end());
    if (page.size() < 7) break;
  }
  EXPECT_EQ(pages.size(), all.size());
  ExpectSeamless(pages);
  const auto newest = Read({.limit = 1045, .newest_first = true});
  ASSERT_EQ(newest.size(), 1045u);
  EXPECT_EQ(newest.front().sequence, 2000u);
  EXPECT_EQ(newest.back().sequence, 704u) << "1040 whole ones, then five rows";
}

TEST_F(HistoryTest, ARangeOfStepsFindsTheRowsThatItTouches) {
  Add("r", 0, 1999);
  PruneAll(1999 * kSecond);
  const auto rows = Read({.first_step = 70, .last_step = 130});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].thinned->first_step, 64);
  EXPECT_EQ(rows[1].step, 191);
  const auto across = Read({.first_step = 959, .last_step = 961});
  ASSERT_EQ(across.size(), 3u);
  EXPECT_TRUE(across[0].thinned);
  EXPECT_EQ(across[2].step, 961);
  EXPECT_EQ(Read({.first_step = 1990, .last_step = 5000, .limit = 3, .newest_first = true})[2].step, 1997);
  EXPECT_TRUE(Read({.first_step = 5000}).empty());
  EXPECT_EQ(Read({.first_step = 100, .limit = 100'000}).size(), 14u + 1040);
}

TEST_F(HistoryTest, ARangeThatTwoAttemptsCrossIsFoundInBoth) {
  Add("r", 0, 4999, "a");
  Add("r", 2000, 6999, "b", 3000);
  const auto rows = Read({.first_step = 2990, .last_step = 2999, .limit = 100});
  ASSERT_EQ(rows.size(), 20u);
  EXPECT_EQ(rows[9].attempt, "a");
  EXPECT_EQ(rows[10].attempt, "b");
  EXPECT_EQ(rows[10].step, 2990);
  const auto rest = Read({.first_step = 2990, .last_step = 2999, .after_sequence = rows[4].sequence, .limit = 100});
  ASSERT_EQ(rest.size(), 15u);
  EXPECT_EQ(rest[0].step, 2995);
}

TEST_F(HistoryTest, ADamagedStepIsDroppedCountedAndStopsNothing) {
  Add("r", 0, 299);
  {
    sqlite3* database = nullptr;  // as a flipped bit on disk would leave it
    ASSERT_EQ(sqlite3_open((directory_ + "/lossgauge.db").c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, "UPDATE steps SET data=x'09' WHERE sequence=101", nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }
  PruneAll(50'000 * kSecond);
  EXPECT_EQ(CountSteps(Read({})), 299u);
  EXPECT_EQ(store_->history_counts().dropped_damaged, 1u);
  EXPECT_EQ(store_->history_counts().thinned, 299u);
}

TEST_F(HistoryTest, EventsAreKeptInTheirOrder) {
  auto producer = std::make_shared<ProducerInfo>();
  producer->run = "r";
  producer->attempt = "a2";
  producer->layout.rank = 3;
  Transaction t;
  t.events.emplace_back("r", ProducerEvent{.producer = producer, .kind = LG_EVENT_CHECKPOINT, .step = 10, .text = "/c/10", .receive_time_ns = 5});
  t.events.emplace_back("r", ProducerEvent{.producer = producer, .kind = LG_EVENT_EVALUATION, .step = -1, .value = 2.5, .count = 7});
  ASSERT_TRUE(store_->Commit(t).ok());
  const auto events = store_->reader()->ReadEvents("r", 0, 10)->events;
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].second.text, "/c/10");
  EXPECT_EQ(events[0].second.producer->attempt, "a2");
  EXPECT_EQ(events[0].second.producer->layout.rank, 3u);
  EXPECT_EQ(events[1].second.value, 2.5);
  EXPECT_EQ(events[1].second.step, -1);
  const auto rest = store_->reader()->ReadEvents("r", events[0].first, 10)->events;
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].second.count, 7u);
}

TEST_F(HistoryTest, DamagedEventsIncidentsAndVerdictsEndNoListEarly) {
  AddExtras("r", 10, 10, 10, 10 * kSecond);
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((directory_ + "/lossgauge.db").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database,
                         "UPDATE events SET data=x'ff' WHERE id IN (2,3); UPDATE verdicts SET data=x'ff' WHERE id=9;"
                         "UPDATE incidents SET data=x'ff' WHERE id='r-8'",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  const auto reader = store_->reader();
  std::vector<std::string> texts;
  std::uint64_t damaged = 0;
  int pages = 0;
  for (std::int64_t after = 0; pages < 20;) {
    const auto page = *reader->ReadEvents("r", after, 2);
    for (const auto& [id, event] : page.events) texts.push_back(event.text);
    damaged += page.damaged;
    after = page.last_id;
    ++pages;
    if (!page.more) break;
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("0", "3", "4", "5", "6", "7", "8", "9"));
  EXPECT_EQ(damaged, 2u);
  EXPECT_EQ(pages, 5);
  EXPECT_EQ(reader->ReadVerdicts("r", 3, 0)->size(), 3u);
  EXPECT_EQ(reader->ReadVerdicts("r", 3, 0)->at(1).last_step, 7);
  EXPECT_EQ(reader->ReadIncidents("r", false, 3, 0)->size(), 3u);
  EXPECT_EQ(reader->ReadVerdicts("r", 100, 0)->size(), 9u);
}

TEST_F(HistoryTest, RanksAreLeftOutWhereNobodyAsksForThem) {
  Add("r", 0, 3, "a", 0, 8);
  EXPECT_EQ(Read({})[0].rank_steps.size(), 8u);
  const auto steps = Read({.without_ranks = true});
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_TRUE(steps[0].rank_steps.empty());
  EXPECT_EQ(steps[3].loss_nats, 3.0);
}

TEST_F(HistoryTest, FindsAnIncidentByItsIdInItsRunOnly) {
  Transaction t;
  Incident& incident = t.incidents.emplace_back();
  incident.id = "0123-7";
  incident.run = "r";
  incident.condition = Condition::kBlip;
  incident.summary = "young spike";
  ASSERT_TRUE(store_->Commit(t).ok());
  const auto found = *store_->reader()->FindIncident("r", "0123-7");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->summary, "young spike");
  EXPECT_FALSE((*store_->reader()->FindIncident("r", "0123-8")).has_value());
  EXPECT_FALSE((*store_->reader()->FindIncident("other", "0123-7")).has_value());
}

TEST_F(HistoryTest, NamesTheRunsItHoldsNewestFirst) {
  Add("older", 0, 9);
  Add("newer", 100, 109);
  const auto runs = *store_->reader()->ReadRuns(10);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].run, "newer");
  EXPECT_EQ(runs[0].updated_ns, 110 * kSecond);
  EXPECT_TRUE((*store_->reader()->FindRun("older")).has_value());
  EXPECT_FALSE((*store_->reader()->FindRun("nobody")).has_value());
}

}  // namespace
}  // namespace lossgauge::state
