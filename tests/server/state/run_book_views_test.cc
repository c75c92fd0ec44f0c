// What a run shows: totals, recent steps, phase, modes, verdicts, and what was done.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

// Totals come from the records' own cumulative words.
TEST_F(RunBookTest, TotalsAreRightAcrossAGap) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  for (int step = 1; step < 100; ++step) (void)a.Step(step, now_);  // published, never delivered
  LossReport lost;
  lost.producer = a.info;
  lost.reason = LossReason::kOverrun;
  lost.first_publication = 2;
  lost.records = 99;
  book_->OnLoss(lost);
  Step(a, 100);
  Advance();
  const RankTotals& totals = Run()->ranks[0].totals;
  EXPECT_EQ(totals.steps, 101u);
  EXPECT_EQ(totals.finite_tokens, 1010u);
  EXPECT_EQ(totals.nll_sum.hi, 2020);
  EXPECT_EQ(totals.records_read, 2u);
  EXPECT_EQ(totals.records_lost[0], 99u);
  EXPECT_EQ(judges_.told("run")->lost, 99u);
}

TEST_F(RunBookTest, RecentStepsAreBoundedAndShared) {
  options_.max_recent_steps = 128;
  MakeBook();
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 1000; ++step) Step(a, step);
  Advance();
  const auto before = Run();
  std::size_t kept = 0;
  for (const auto& chunk : before->recent_steps) kept += chunk->size();
  EXPECT_LE(kept, 128u);
  EXPECT_EQ(before->recent_steps.back()->back()->step, 999);
  Step(a, 1000);
  Advance();
  const auto after = Run();
  EXPECT_EQ(after->recent_steps.front().get(), before->recent_steps.front().get()) << "chunks are shared, not copied";
  EXPECT_EQ(before->recent_steps.back()->back()->step, 999) << "a published snapshot never changes";
}

TEST_F(RunBookTest, EventsSetPhaseCheckpointAndEvaluation) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  ProducerEvent phase = a.Event(LG_EVENT_PHASE_BEGIN, -1, now_);
  phase.phase = LG_PHASE_EVALUATION;
  book_->OnEvent(phase);
  ProducerEvent evaluation = a.Event(LG_EVENT_EVALUATION, 50, now_);
  evaluation.value = 1.5;
  book_->OnEvent(evaluation);
  book_->OnEvent(a.Event(LG_EVENT_CHECKPOINT, 40, now_));
  Advance();
  EXPECT_EQ(Run()->phase, "evaluation");
  EXPECT_EQ(*Run()->evaluation_loss_nats, 1.5);
  EXPECT_EQ(Run()->last_checkpoint->step, 40);
  EXPECT_EQ(Run()->last_checkpoint->path, "/ckpt/40");
  phase.kind = LG_EVENT_PHASE_END;
  phase.publication = ++a.events;
  book_->OnEvent(phase);
  Advance();
  EXPECT_EQ(Run()->phase, "train");
}

TEST_F(RunBookTest, TotalsOfARunCountATensorParallelGroupOnce) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  for (Rank* rank : {&a, &b}) {
    auto& layout = const_cast<ProducerInfo*>(rank->info.get())->layout;
    layout.dp = {1, 0};
    layout.tp = {2, layout.rank};
    Add(*rank);
  }
  Step(a, 0);
  Step(b, 0);
  Advance();
  EXPECT_EQ(Run()->totals.finite_tokens, 10u);
  EXPECT_EQ(Run()->totals.records_read, 2u);
  EXPECT_EQ(Run()->ranks[1].totals.finite_tokens, 10u);
}

TEST_F(RunBookTest, AnActionIsKeptInTheLedger) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Advance();
  Mailbox::Report report{"run", {}};
  std::uint64_t entries = 0;
  ASSERT_TRUE(book_->Report(report, &entries).ok());
  EXPECT_EQ(entries, 1u);
  EXPECT_EQ(book_->Report({"nobody", {}}, &entries).code(), absl::StatusCode::kNotFound);
  Advance();
  Commit();
  EXPECT_EQ(store_->LoadLedger("run")->size(), 1u);
  Restart();
  Add(a);
  ASSERT_TRUE(book_->Report(report, &entries).ok());
  EXPECT_EQ(entries, 2u);
}

TEST_F(RunBookTest, AModeForARunThatIsNotThereIsAnError) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  EXPECT_TRUE(book_->SetMode("run", "shadow").ok());
  EXPECT_EQ(judges_.told("run")->calls.back(), "mode shadow");
  EXPECT_TRUE(book_->SetMode("run", "policy").ok());
  EXPECT_EQ(judges_.told("run")->calls.back(), "mode ");
  EXPECT_EQ(book_->SetMode("none", "shadow").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RunBookTest, AVerdictIsWrittenWhenItsSubstanceChanges) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Advance(2);
  Advance(2);
  EXPECT_EQ(Run()->verdict_changes, 1u);
  judges_.told("run")->action = Action::kRestart;
  Advance(2);
  EXPECT_EQ(Run()->verdict_changes, 2u);
  Commit();
  Restart();
  Add(a);
  judges_.told("run")->action = Action::kRestart;
  Advance(2);
  EXPECT_EQ(Run()->verdict_changes, 2u) << "a restart is no change";
}

}  // namespace
}  // namespace lossgauge::state
