// What a restart of lossgauged keeps, and what waits while the store cannot write.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

TEST_F(RunBookTest, ARestartLosesNoStepAndJoinsNoneTwice) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 5; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Rank before_waiting = a;
  Step(a, 5);  // these two wait for rank 1
  Step(a, 6);
  Advance();
  Commit();
  Restart();
  EXPECT_EQ(book_->FindCursor(a.info->segment).next_steps_publication, 6u) << "waiting records are read again";
  EXPECT_EQ(book_->FindCursor(b.info->segment).next_steps_publication, 6u);
  Add(a);
  Add(b);
  Step(before_waiting, 5);
  Step(before_waiting, 6);
  Step(b, 5);
  Step(b, 6);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/5", "1/6"}));
  EXPECT_EQ(Steps()[0].sequence, 6u);
  EXPECT_TRUE(Steps()[0].complete);
  EXPECT_EQ(judges_.told("run")->steps_known, 7u) << "the judge knows the five before";
  EXPECT_EQ(Run()->totals.steps, 14u);
  EXPECT_EQ(Run()->totals.finite_tokens, 140u);
  EXPECT_EQ(Run()->totals.nll_sum.hi, 280);
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 7u) << "read again, counted once";
  EXPECT_EQ(Run()->recent_steps.back()->size(), 7u);
  EXPECT_TRUE(Steps()[0].step_seconds);
  EXPECT_DOUBLE_EQ(*Steps()[0].step_seconds, 0.25);
}

TEST_F(RunBookTest, WhatWasLostAcrossARestartIsCountedOnce) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Step(a, 1);
  Advance();
  Commit();
  Restart();
  Add(a);
  // The ring was lapped: publications 1 to 10 are gone, of which 1 and 2 had been read before.
  LossReport lost;
  lost.producer = a.info;
  lost.first_publication = 1;
  lost.records = 10;
  book_->OnLoss(lost);
  Advance();
  EXPECT_EQ(Run()->ranks[0].totals.records_lost[0], 8u);
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 2u);
}

TEST_F(RunBookTest, AnEndThatWaitedForItsStepsSurvivesARestart) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  book_->OnEvent(a.Event(LG_EVENT_END, -1, now_));
  Advance();
  EXPECT_TRUE(judges_.told("run")->calls.empty());
  Commit();
  EXPECT_EQ(store_->LoadCursors()->front().next_events_publication, 1u);
}

TEST_F(RunBookTest, AProducerThatARestartDoesNotFindAgainIsLost) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  Commit();
  Restart();
  Advance();
  ASSERT_NE(Run(), nullptr);
  EXPECT_EQ(Run()->ranks[0].liveness.producer_state, ProducerState::kLost);
  EXPECT_EQ(Run()->attempts[0].state, "lost");
}

TEST_F(RunBookTest, AJudgeStateThatCannotBeReadStartsCleanAndIsCounted) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  Transaction transaction = book_->BuildTransaction(now_);
  transaction.runs[0].judge = "garbage";
  ASSERT_TRUE(store_->Commit(transaction).ok());
  Restart();
  Add(a);
  Step(a, 1);
  Advance();
  EXPECT_EQ(Snap()->self.baseline_resets, 1u);
  EXPECT_EQ(Run()->totals.steps, 2u);
}

TEST_F(RunBookTest, ARunStateThatCannotBeReadStartsCleanAndIsCounted) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  Transaction transaction = book_->BuildTransaction(now_);
  transaction.runs[0].state.resize(transaction.runs[0].state.size() / 2);
  ASSERT_TRUE(store_->Commit(transaction).ok());
  Restart();
  EXPECT_EQ(Snap()->self.baseline_resets, 1u);
  Add(a);
  Advance();
  EXPECT_NE(Run(), nullptr);
}

TEST_F(RunBookTest, ATransactionThatFailedIsBuiltAgainWholeAndNotDouble) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  (void)book_->BuildTransaction(now_);  // the commit fails
  Step(a, 1);
  Advance();
  const Transaction& transaction = book_->BuildTransaction(now_);
  EXPECT_EQ(transaction.runs.size(), 1u);
  EXPECT_EQ(transaction.cursors.size(), 1u);
  EXPECT_EQ(transaction.steps.size(), 2u);
  EXPECT_EQ(transaction.cursors[0].next_steps_publication, 3u);
  Commit();
  EXPECT_FALSE(book_->HasUncommitted());
}

TEST_F(RunBookTest, WhileTheStoreCannotWriteTheQueueIsBounded) {
  options_.max_queued_steps = 100;
  MakeBook();
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 500; ++step) {
    Step(a, step);
    Advance();
    (void)book_->BuildTransaction(now_);
  }
  EXPECT_EQ(book_->BuildTransaction(now_).steps.size(), 100u);
  EXPECT_EQ(book_->history_steps_dropped(), 400u);
}

// Its row in the store is older than the one that waits, and its last steps are in neither.
TEST_F(RunBookTest, ARunThatComesBackBeforeItWasWrittenHasEachOfItsStepsOnce) {
  Rank a("run", "1", 0, 1, 1, 100);
  Add(a);
  for (int step = 0; step < 3; ++step) Step(a, step);
  Advance();
  Commit();
  for (int step = 3; step < 5; ++step) Step(a, step);
  std::uint64_t entries = 0;
  ASSERT_TRUE(book_->Report({"run", {}}, &entries).ok());
  End(a);
  Advance();
  Advance(400);
  ASSERT_EQ(Run(), nullptr);
  Rank b("run", "2", 0, 1, 2, 200);
  Add(b);
  Step(b, 5);
  Advance();
  const auto run = Run();
  std::vector<std::uint64_t> sequences;
  for (const auto& chunk : run->recent_steps) {
    for (const auto& step : *chunk) sequences.push_back(step->sequence);
  }
  EXPECT_EQ(sequences, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run->totals.steps, 6u);
  EXPECT_EQ(run->attempts.size(), 2u);
  ASSERT_TRUE(book_->Report({"run", {}}, &entries).ok());
  EXPECT_EQ(entries, 2u);
}

TEST_F(RunBookTest, AnOldSegmentThatLingersDoesNotStandForItsRankAfterARestart) {
  Rank a("run", "1", 0, 1, 1), a2("run", "1", 0, 1, 2);
  Add(a);
  Step(a, 0);
  Advance();
  End(a);
  Add(a2);
  Step(a2, 1);
  Advance();
  Commit();
  Restart();
  book_->OnProducer(a.info);
  book_->OnLiveness(a.Look(ProducerState::kLost, now_, true));
  Add(a2);
  Step(a2, 2);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1/2"});
  ASSERT_EQ(Run()->ranks.size(), 1u);
  EXPECT_EQ(Run()->ranks[0].producer->segment, a2.info->segment);
}

TEST_F(RunBookTest, TimesFromTheFutureCountAsNowAfterARestart) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  End(a);
  Advance();
  ASSERT_TRUE(Run()->ended);
  Commit();
  now_ -= 7200 * kSecond;  // the clock is set back
  Restart();
  EXPECT_EQ(book_->runs_from_future(), 1u);
  const auto run = Run();
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->ended_time_ns, now_);
  EXPECT_LE(run->first_seen_ns, now_);
  EXPECT_EQ(run->last_step->receive_time_ns, now_);
  Advance(301);
  EXPECT_EQ(Run(), nullptr) << "it lingers as long as any other, not two hours more";
}

TEST_F(RunBookTest, WhatWaitsForAStoreThatCannotWriteIsBounded) {
  options_.max_queued_ledger = 3;
  options_.max_queued_cursors = 2;
  options_.max_queued_runs = 2;
  options_.max_queued_incidents = 1500;
  options_.linger_ns = 0;
  MakeBook();
  Rank keep("keep", "1", 0, 1, 100);
  Add(keep);
  std::uint64_t entries = 0;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(book_->Report({"keep", {}}, &entries).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(book_->Report({"keep", {}}, &entries)));
  EXPECT_EQ(entries, 3u) << "a refused report changes nothing";
  for (std::uint64_t i = 1; i <= 6; ++i) {
    Rank rank("run" + std::to_string(i), "1", 0, 1, i);
    Add(rank);
    Advance();
    End(rank);
    Advance();
    Advance();
  }
  for (int i = 0; i < 4000; ++i) {
    Incident& incident = judges_.told("keep")->changed.emplace_back();
    incident.id = "keep-" + std::to_string(i % 2000);
    incident.peak_step = i;
  }
  Advance(2);
  const Transaction& waiting = book_->BuildTransaction(now_);
  ASSERT_EQ(waiting.incidents.size(), 1500u);
  EXPECT_EQ(waiting.incidents.front().id, "keep-500");
  EXPECT_EQ(waiting.incidents.front().peak_step, 2500) << "of each the last, and of those the newest";
  EXPECT_LE(waiting.cursors.size(), 3u) << "two of dropped runs, one of the living";
  EXPECT_LE(waiting.runs.size(), 3u);
  Commit();
  EXPECT_TRUE(book_->Report({"keep", {}}, &entries).ok());
}

}  // namespace
}  // namespace lossgauge::state
