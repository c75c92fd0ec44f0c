// A state file of schema 1 under today's program: everything in it is still there, and what is new works on it.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <fstream>
#include <sstream>

#include "server/state/store.h"
#include "tests/scratch_directory.h"

namespace lossgauge::state {
namespace {


class SchemaMigration : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(LOSSGAUGE_GOLDEN_DIR "/state_schema_1.sql");
    std::stringstream sql;
    sql << file.rdbuf();
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open((directory_ + "/lossgauge.db").c_str(), &database), SQLITE_OK);
    char* error = nullptr;
    ASSERT_EQ(sqlite3_exec(database, sql.str().c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_close(database);
  }
  const ScratchDirectory scratch_;
  const std::string directory_ = scratch_.path();
};

TEST_F(SchemaMigration, KeepsWhatSchema1Held) {
  auto store = Store::Open({.directory = directory_});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->open_note(), "") << "it was moved aside";
  const auto steps = *(*store)->reader()->ReadSteps({.run = "old run", .thinned = true});
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0].loss_nats, 2.125);
  EXPECT_EQ(steps[0].step, 100);
  EXPECT_EQ(steps[4].attempt, "second");
  EXPECT_EQ(steps[0].rank_steps[1].lost_before, 3u);
  EXPECT_EQ(steps[0].worst_row->token, 31);
  EXPECT_FALSE(steps[0].thinned);
  const auto cursors = *(*store)->LoadCursors();
  ASSERT_EQ(cursors.size(), 1u);
  EXPECT_EQ(cursors[0].next_steps_publication, 7u);
  EXPECT_EQ((*(*store)->LoadRun("old run"))->judge, "j");
  EXPECT_EQ((*(*store)->LoadLedger("old run"))[0].comment, "requeued");
  EXPECT_EQ((*(*store)->reader()->ReadIncidents("old run", false, 10, 0))[0].id, "0123-1");
  EXPECT_EQ((*(*store)->reader()->ReadVerdicts("old run", 10, 0))[0].reason, "young spike");
}

TEST_F(SchemaMigration, OldStepsCanBeThinnedAndEventsAreTaken) {
  constexpr TimeNs kLater = 1'700'000'000'000'000'000 + std::int64_t{5} * 86'400 * 1'000'000'000;
  auto store = Store::Open({.directory = directory_});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Prune(kLater).ok());
  const auto rows = *(*store)->reader()->ReadSteps({.run = "old run", .thinned = true});
  ASSERT_EQ(rows.size(), 2u) << "one row for each attempt";
  EXPECT_EQ(rows[0].thinned->steps, 4u);
  EXPECT_EQ(rows[0].thinned->first_step, 100);
  EXPECT_DOUBLE_EQ(*rows[0].loss_nats, (2.125 + 2.25 + 2.375 + 2.5) / 4);
  EXPECT_EQ(rows[1].attempt, "second");
  Transaction t;
  t.events.emplace_back("old run", ProducerEvent{.kind = LG_EVENT_CHECKPOINT, .step = 102, .text = "/c"});
  ASSERT_TRUE((*store)->Commit(t).ok());
  EXPECT_EQ((*store)->reader()->ReadEvents("old run", 0, 10)->events.size(), 1u);
}

}  // namespace
}  // namespace lossgauge::state
