// A history on disk whose steps, verdicts, incidents and events are written by number.
#ifndef LOSSGAUGE_TESTS_SERVER_STATE_HISTORY_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_STATE_HISTORY_FIXTURE_H_

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/state/store.h"
#include "tests/scratch_directory.h"

namespace lossgauge::state {

inline constexpr TimeNs kSecond = 1'000'000'000;

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

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_TESTS_SERVER_STATE_HISTORY_FIXTURE_H_
