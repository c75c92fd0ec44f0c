// Who is heard, who is missing, and which runs go and come back.
#include <gtest/gtest.h>

#include <vector>

#include "tests/server/ingest/forward_source_fixture.h"

namespace lossgauge::ingest {
namespace {

TEST_F(ForwardSourceTest, ARankThatNobodyEverToldOfIsMissingByName) {
  Rank a("run", 0, 3, 1), c("run", 2, 3, 3);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  WriteProducer(*c.info, 2, batch.add_items()->mutable_producer());
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  AppendSample(c.Step(0, clock_.NowNs()), 2, &batch);
  Send(link, batch);
  Cycle();
  for (int i = 0; i < 30; ++i) Cycle(0.1);
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(ForwardSourceTest, ASilentNodeIsUnreachableAndSoIsOneThatHasNotSentAllItHad) {
  Rank a("run", 0, 2, 1), b("run", 1, 2, 2);
  const auto first = Connect("a"), second = Connect("b", 2);
  Send(first, Told(a, 1, 1));
  Send(second, Told(b, 1, 1));
  Cycle();
  Cycle(1.1);
  EXPECT_EQ(Run()->unreachable_ranks, 1u) << "it said that it holds two batches and has sent one";
  const auto presence = [&] { return judges_.told("run")->presences.back(); };
  EXPECT_TRUE(presence().source_reachable) << "a part of the job is heard";
  EXPECT_EQ(presence().first_unreachable_rank, 1u);
  v1::Batch more;
  more.set_sequence(2);
  Send(second, more);
  Send(first, v1::Batch());
  Cycle();
  Cycle(1.1);
  EXPECT_EQ(Run()->unreachable_ranks, 0u);
  Cycle(6);
  Cycle(1.1);
  EXPECT_EQ(Run()->unreachable_ranks, 2u);
  EXPECT_FALSE(presence().source_reachable);
}

TEST_F(ForwardSourceTest, AfterARestartNobodyIsHeardUntilHeComesBack) {
  Rank a("run", 0, 1, 1);
  auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  ASSERT_EQ(History().size(), 1u);
  Kill();
  Start();
  Cycle();
  ASSERT_NE(Run(), nullptr);
  EXPECT_EQ(Run()->unreachable_ranks, 1u);
  EXPECT_EQ(Run()->ranks[0].liveness.producer_state, state::ProducerState::kLive) << "silence is no death";
  link = Connect("a");
  Send(link, Told(a, 1, 1));
  Cycle();
  Cycle(1.1);
  EXPECT_EQ(Run()->unreachable_ranks, 0u);
}

// What is over leaves, and what is sent again of it afterwards does not bring it back.
TEST_F(ForwardSourceTest, AnEndedRunLeavesAndARepetitionOfItIsPassedOver) {
  Rank a("run", 0, 1, 1);
  auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  WriteLiveness(a.Look(state::ProducerState::kEnded, clock_.NowNs(), true), 1, batch.add_items()->mutable_liveness());
  batch.add_items()->set_gone(1);
  Send(link, batch);
  Cycle();
  EXPECT_TRUE(Run()->ended);
  Cycle(301);
  Cycle();
  EXPECT_EQ(Run(), nullptr);
  for (int death = 0; death < 2; ++death) {
    link = Connect("a");
    Send(link, batch);
    Cycle();
    EXPECT_EQ(Run(), nullptr);
    EXPECT_EQ(link->acknowledged, 1u);
    EXPECT_EQ(History().size(), 1u);
    Kill();
    Start();
  }
}

// The job goes back in its steps under another attempt name; both are kept.
TEST_F(ForwardSourceTest, AResumedJobThatGoesBackIsAnAttemptOfItsOwn) {
  Rank a("run", 0, 1, 1), again("run", 0, 1, 2, "2");
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  for (std::int64_t step = 0; step <= 212; ++step) AppendSample(a.Step(step, clock_.NowNs()), 1, &batch);
  WriteLiveness(a.Look(state::ProducerState::kLost, clock_.NowNs(), true), 1, batch.add_items()->mutable_liveness());
  Send(link, batch);
  Cycle();
  batch = Told(again, 2, 2);
  for (std::int64_t step = 200; step <= 220; ++step) AppendSample(again.Step(step, clock_.NowNs()), 2, &batch);
  Send(link, batch);
  Cycle();
  ASSERT_EQ(Run()->attempts.size(), 2u);
  EXPECT_EQ(Run()->totals.steps, 213u + 21u) << "replayed steps are work done";
  EXPECT_EQ(Run()->last_step->step, 220);
}

}  // namespace
}  // namespace lossgauge::ingest
