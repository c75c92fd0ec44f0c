// What becomes of steps as they age and as the file fills, and how they are read then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>

#include "server/state/store.h"
#include "tests/scratch_directory.h"

namespace lossgauge::state {
namespace {

constexpr TimeNs kSecond = 1'000'000'000;

class HistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.directory = directory_;
    options_.full_age_ns = 1000 * kSecond;
    options_.max_age_ns = 100'000 * kSecond;
    Open();
  }
  void TearDown() override { store_.reset(); }
  void Open() {
    store_.reset();
    auto store = Store::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  // Steps `first` to `last`, one a second from second `first` on; sequence = step + 1 + offset.
  void Add(const std::string& run, std::int64_t first, std::int64_t last, const std::string& attempt = "a", std::int64_t offset = 0,
           std::size_t ranks = 0) {
    Transaction t;
    for (std::int64_t step = first; step <= last; ++step) {
      auto s = std::make_shared<StepSummary>();
      s->sequence = static_cast<std::uint64_t>(step + 1 + offset);
      s->attempt = attempt;
      s->step = step;
      s->receive_time_ns = static_cast<TimeNs>(s->sequence) * kSecond;
      s->loss_nats = static_cast<double>(step % 8);
      s->finite_tokens = 10;
      s->rank_steps.resize(ranks);
      for (auto& rank : s->rank_steps) rank.loss_nats = 2.0;
      t.steps.emplace_back(run, s);
    }
    t.runs.push_back({run, "s", "j", (last + 1 + offset) * kSecond});
    ASSERT_TRUE(store_->Commit(t).ok());
  }
  // Until nothing is left to do; the number of calls.
  int PruneAll(TimeNs now_ns) {
    for (int calls = 1; calls < 100'000; ++calls) {
      const auto more = store_->Prune(now_ns);
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more) return calls;
    }
    ADD_FAILURE() << "never done";
    return 0;
  }
  std::vector<StepSummary> Read(StepQuery query) {
    query.thinned = true;
    if (query.run.empty()) query.run = "r";
    auto steps = store_->reader()->ReadSteps(query);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return steps.ok() ? *std::move(steps) : std::vector<StepSummary>();
  }
  static std::uint64_t CountSteps(const std::vector<StepSummary>& rows) {
    std::uint64_t steps = 0;
    for (const auto& row : rows) steps += row.thinned ? row.thinned->steps : 1;
    return steps;
  }
  // Rows follow one another without a gap or an overlap.
  static void ExpectSeamless(const std::vector<StepSummary>& rows) {
    for (std::size_t i = 1; i < rows.size(); ++i) {
      const std::uint64_t first = rows[i].thinned ? rows[i].thinned->first_sequence : rows[i].sequence;
      EXPECT_EQ(first, rows[i - 1].sequence + 1);
    }
  }
  // So many of each that hang on a run, oldest first; ids of incidents and texts of events count from 0.
  void AddExtras(const std::string& run, int verdicts, int incidents, int events, TimeNs updated_ns) {
    auto producer = std::make_shared<ProducerInfo>();
    producer->run = run;
    Transaction t;
    for (int i = 0; i < verdicts; ++i) t.verdicts.emplace_back(run, Verdict{.last_step = i});
    for (int i = 0; i < incidents; ++i) {
      Incident& incident = t.incidents.emplace_back();
      incident.id = run + "-" + std::to_string(i);
      incident.run = run;
      incident.condition = Condition::kBlip;
      incident.onset_time_ns = i * kSecond;
      incident.open = i == 0;
    }
    for (int i = 0; i < events; ++i) t.events.emplace_back(run, ProducerEvent{.producer = producer, .kind = LG_EVENT_NOTE, .text = std::to_string(i)});
    t.runs.push_back({run, "s", "j", updated_ns});
    ASSERT_TRUE(store_->Commit(t).ok());
  }
  // Rows of everything but steps.
  std::int64_t CountExtras() {
    std::int64_t rows = 0;
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open_v2((directory_ + "/lossgauge.db").c_str(), &database, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    for (const char* table : {"verdicts", "incidents", "events", "ledger"}) {
      sqlite3_exec(database, (std::string("SELECT count(*) FROM ") + table).c_str(), [](void* sum, int, char** values, char**) {
        *static_cast<std::int64_t*>(sum) += std::stoll(values[0]);
        return 0;
      }, &rows, nullptr);
    }
    sqlite3_close(database);
    return rows;
  }
  // As PruneAll; no call may take away more than a call's worth.
  int PruneInPieces(TimeNs now_ns) {
    std::int64_t before = CountExtras();
    for (int calls = 1; calls < 10'000; ++calls) {
      const auto more = store_->Prune(now_ns);
      EXPECT_TRUE(more.ok()) << more.status();
      const std::int64_t after = CountExtras();
      EXPECT_LE(before - after, 1024);
      if (!more.ok() || !*more || before - after > 1024) return calls;
      before = after;
    }
    ADD_FAILURE() << "never done";
    return 0;
  }
  const ScratchDirectory scratch_;
  const std::string directory_ = scratch_.path();
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

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
