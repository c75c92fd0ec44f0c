// Each publication counts once, and is acknowledged when it is kept.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/ingest/forwarder.h"
#include "tests/server/ingest/forward_source_fixture.h"

namespace lossgauge::ingest {
namespace {

TEST_F(ForwardSourceTest, JoinsTheRanksOfTwoNodes) {
  Rank a("run", 0, 2, 1), b("run", 1, 2, 2);
  const auto first = Connect("a"), second = Connect("b");
  v1::Batch of_a = Told(a, 1, 1), of_b = Told(b, 1, 1);
  for (std::int64_t step = 0; step < 3; ++step) {
    AppendSample(a.Step(step, clock_.NowNs()), 1, &of_a);
    AppendSample(b.Step(step, clock_.NowNs()), 1, &of_b);
  }
  EXPECT_EQ(of_a.items_size(), 3) << "records that follow one another share an item";
  Send(first, of_a);
  Cycle();
  EXPECT_TRUE(History().empty()) << "the other rank is waited for";
  EXPECT_EQ(first->acknowledged, 0u) << "what waits for its step is not in the store";
  Send(second, of_b);
  Cycle();
  ASSERT_EQ(History().size(), 3u);
  EXPECT_EQ(History()[2].finite_tokens, 21u);
  EXPECT_TRUE(History()[2].complete);
  EXPECT_EQ(first->acknowledged, 1u);
  EXPECT_EQ(second->acknowledged, 1u);
  EXPECT_EQ(Run()->verdict.scope, "job");
}

TEST_F(ForwardSourceTest, TimesAreAgesAndNoClockOfAnotherHostIsBelieved) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, 5 * kSecond), 1, &batch);  // by a clock that is in 1970
  InboxEntry entry;
  entry.link = link;
  entry.batch = std::make_unique<v1::Batch>(batch);
  entry.batch->set_sent_ns(8 * kSecond);
  inbox_->Push(std::move(entry));
  Cycle();
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].receive_time_ns, clock_.NowNs() - 3 * kSecond) << "it was read three seconds before it was sent";
}

// At least once on the wire, once in effect: any schedule of repetitions, broken streams and deaths of the daemon gives the producers' own totals.
TEST_F(ForwardSourceTest, EveryScheduleOfRepetitionsAndDeathsCountsEachRecordOnce) {
  std::mt19937_64 random(42);
  constexpr int kRanks = 3;
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    const std::string run = "run" + std::to_string(round);
    std::vector<Rank> ranks;
    struct Node {
      std::vector<v1::Batch> batches;  // of sequence i + 1, the first ones tell
      std::size_t next = 0;
      std::shared_ptr<FakeLink> link;
    };
    std::vector<Node> nodes(kRanks);
    for (int i = 0; i < kRanks; ++i) {
      ranks.emplace_back(run, i, kRanks, 100 * (round + 1) + i);
      v1::Batch told = Told(ranks[i], 1, 1);
      nodes[i].batches.push_back(told);
    }
    for (std::int64_t step = 0; step < 40; ++step) {
      for (int i = 0; i < kRanks; ++i) {
        v1::Batch batch;
        batch.set_sequence(nodes[i].batches.size() + 1);
        AppendSample(ranks[i].Step(step, clock_.NowNs()), 1, &batch);
        nodes[i].batches.push_back(batch);
      }
    }
    int deaths = 0;
    for (int turn = 0; turn < 4000; ++turn) {
      Node& node = nodes[random() % kRanks];
      const auto dice = random() % 100;
      if (node.link == nullptr) {
        node.link = Connect(run + "-" + std::to_string(&node - nodes.data()));
        // From where it knows that all is kept, or from long before.
        node.next = random() % 3 == 0 ? 0 : std::min<std::size_t>(node.next, node.link->acknowledged);
        if (node.next > 0) Send(node.link, nodes[&node - nodes.data()].batches[0]);
      } else if (dice < 70 && node.next < node.batches.size()) {
        Send(node.link, node.batches[node.next++]);
        if (dice < 10) Send(node.link, node.batches[node.next - 1]);
      } else if (dice < 80) {
        Cycle(0.005 * static_cast<double>(random() % 10));
      } else if (dice < 84) {
        Disconnect(node.link);
        node.next = node.link->acknowledged;  // the sender goes on behind what was acknowledged
        node.link.reset();
      } else if (dice == 99 && deaths < 8) {
        ++deaths;
        Kill();
        for (Node& each : nodes) {
          if (each.link != nullptr) each.next = each.link->acknowledged;
          each.link.reset();
        }
        Start();
      }
    }
    for (Node& node : nodes) {
      node.link = Connect(run + "-" + std::to_string(&node - nodes.data()));
      for (const v1::Batch& batch : node.batches) Send(node.link, batch);
      Cycle(0.02);
    }
    for (int i = 0; i < 200; ++i) Cycle(0.02);
    const auto shown = Run(run);
    ASSERT_NE(shown, nullptr);
    ASSERT_EQ(shown->ranks.size(), static_cast<std::size_t>(kRanks));
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_EQ(shown->ranks[i].totals.steps, 40u);
      EXPECT_EQ(shown->ranks[i].totals.records_read, 40u);
      EXPECT_EQ(shown->ranks[i].totals.tokens, ranks[i].totals.total_tokens);
      EXPECT_EQ(lg_fixed128_compare(shown->ranks[i].totals.nll_sum, ranks[i].totals.total_nll_sum), 0);
      EXPECT_EQ(Lost(shown->ranks[i].totals), 0u);
      EXPECT_EQ(nodes[i].link->acknowledged, nodes[i].batches.size());
    }
    const auto history = History(run);
    ASSERT_EQ(history.size(), 40u);
    for (std::int64_t step = 0; step < 40; ++step) EXPECT_EQ(history[step].step, step);
    for (int i = 0; i < kRanks; ++i) {  // room for the next run
      v1::Batch end;
      end.set_sequence(100);
      WriteLiveness(ranks[i].Look(state::ProducerState::kEnded, clock_.NowNs(), true), 1, end.add_items()->mutable_liveness());
      Send(nodes[i].link, end);
    }
    Cycle();
  }
}

TEST_F(ForwardSourceTest, AGapIsLostOnceAndTheTotalsAreRightAcrossIt) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  for (std::int64_t step = 1; step < 5; ++step) (void)a.Step(step, clock_.NowNs());  // dropped from the spool
  v1::Batch after;
  after.set_sequence(3);
  AppendSample(a.Step(5, clock_.NowNs()), 1, &after);
  Send(link, after);
  Send(link, after);
  Cycle();
  ASSERT_EQ(Run()->ranks.size(), 1u);
  const state::RankTotals& totals = Run()->ranks[0].totals;
  EXPECT_EQ(totals.records_lost[static_cast<std::size_t>(state::LossReason::kSpool)], 4u);
  EXPECT_EQ(Lost(totals), 4u);
  EXPECT_EQ(totals.records_read, 2u);
  EXPECT_EQ(totals.steps, 6u) << "records carry totals";
  EXPECT_EQ(Count("records_repeated"), 1u);
}

TEST_F(ForwardSourceTest, WhatBringsNothingNewIsAcknowledgedWithoutACommit) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  ASSERT_EQ(link->acknowledged, 1u);
  batch.set_sequence(2);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(link->acknowledged, 2u) << "there is nothing to commit for it";
}

TEST_F(ForwardSourceTest, WhatCameBeforeTheFirstRecordEverSeenIsNotMissing) {
  Rank a("run", 0, 1, 1);
  for (std::int64_t step = 0; step < 100; ++step) (void)a.Step(step, clock_.NowNs());
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(100, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 0u) << "a daemon that is put beside a running job has lost nothing";
}

// Each ring for itself: a sidecar that was read before it forwarded goes on in the middle of both.
TEST_F(ForwardSourceTest, WhatCameBeforeTheFirstEventEverSeenIsNotMissingEitherButAGapBehindItIs) {
  Rank a("run", 0, 1, 1);
  a.publication = 100;
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(100, clock_.NowNs()), 1, &batch);
  AppendNote(a, 10, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 0u);
  v1::Batch more;
  more.set_sequence(2);
  AppendNote(a, 13, &more);
  Send(link, more);
  Cycle();
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 2u);
}

TEST_F(ForwardSourceTest, AGapBetweenEventsCountsBeforeTheFirstStepToo) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendNote(a, 2, &batch);
  AppendNote(a, 6, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 3u);
}

TEST_F(ForwardSourceTest, OfAProducerThatWasMetAtItsFirstStepEveryEventIsExpected) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  AppendNote(a, 3, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 2u);
}

TEST_F(ForwardSourceTest, LossesOfTheSidecarAreToldWithTheirReasonOnce) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  a.publication += 7;
  state::LossReport loss;
  loss.producer = a.info;
  loss.first_publication = 2;
  loss.records = 7;
  loss.reason = state::LossReason::kOverrun;
  WriteLoss(loss, 1, batch.add_items()->mutable_lost());
  AppendSample(a.Step(8, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Send(link, batch);
  Cycle();
  const state::RankTotals& totals = Run()->ranks[0].totals;
  EXPECT_EQ(totals.records_lost[static_cast<std::size_t>(state::LossReason::kOverrun)], 7u);
  EXPECT_EQ(Lost(totals), 7u);
  EXPECT_EQ(totals.records_read, 2u);
}

TEST_F(ForwardSourceTest, LateRanksCorrectTheStep) {
  Rank a("run", 0, 2, 1), b("run", 1, 2, 2);
  const auto first = Connect("a"), second = Connect("b");
  v1::Batch of_a = Told(a, 1, 1), of_b = Told(b, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &of_a);
  Send(first, of_a);
  Send(second, of_b);
  Cycle();
  for (int i = 0; i < 30; ++i) Cycle(0.1);  // past the join timeout
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].missing_ranks, std::vector<std::uint32_t>{1});
  EXPECT_EQ(History()[0].finite_tokens, 10u);
  v1::Batch late;
  late.set_sequence(2);
  AppendSample(b.Step(0, clock_.NowNs()), 1, &late);
  Send(second, late);
  Cycle();
  ASSERT_EQ(History().size(), 1u);
  const state::StepSummary corrected = History()[0];
  EXPECT_TRUE(corrected.complete);
  EXPECT_TRUE(corrected.missing_ranks.empty());
  EXPECT_EQ(corrected.ranks, 2u);
  EXPECT_EQ(corrected.finite_tokens, 21u);
  EXPECT_DOUBLE_EQ(*corrected.loss_nats, 2.5);
  EXPECT_EQ(corrected.rank_steps.size(), 2u);
  EXPECT_EQ(Run()->last_step->finite_tokens, 21u);
  EXPECT_EQ(board_.Get()->self.steps_corrected, 1u);
  EXPECT_EQ(second->acknowledged, 2u);
}

// What the sidecar's side makes is what this side reads.
TEST_F(ForwardSourceTest, ReadsWhatAForwarderWrites) {
  SpoolOptions spool_options;
  auto spool = Spool::Open(spool_options);
  ASSERT_TRUE(spool.ok());
  Forwarder forwarder({}, spool->get(), [] {});
  Rank a("run", 0, 2, 1), b("run", 1, 2, 2);
  for (Rank* rank : {&a, &b}) {
    forwarder.OnProducer(rank->info);
    forwarder.OnLiveness(rank->Look(state::ProducerState::kLive, clock_.NowNs()));
  }
  for (std::int64_t step = 0; step < 500; ++step) {
    for (Rank* rank : {&a, &b}) forwarder.OnSample(rank->Step(step, clock_.NowNs()));
    if (step == 100) {
      state::ProducerEvent event;
      event.producer = a.info;
      event.kind = LG_EVENT_CHECKPOINT;
      event.step = step;
      event.text = "/checkpoints/100";
      event.publication = 1;
      event.receive_time_ns = clock_.NowNs();
      forwarder.OnEvent(event);
    }
    if (step % 7 == 0) forwarder.BeforeCommit(clock_.NowNs());
  }
  for (Rank* rank : {&a, &b}) {
    forwarder.OnLiveness(rank->Look(state::ProducerState::kEnded, clock_.NowNs(), true));
    forwarder.OnProducerGone(rank->info->segment);
  }
  forwarder.BeforeCommit(clock_.NowNs());
  const auto link = Connect("a");
  for (auto frame = (*spool)->Read(1); frame; frame = (*spool)->Read(frame->sequence + 1)) {
    v1::Batch batch;
    ASSERT_TRUE(batch.ParseFromString(frame->bytes));
    batch.set_sequence(frame->sequence);
    Send(link, batch);
    Cycle();
    ASSERT_TRUE(link->ended.ok()) << link->ended;
  }
  EXPECT_EQ(link->acknowledged, (*spool)->newest());
  EXPECT_EQ(History().size(), 500u);
  EXPECT_TRUE(Run()->ended);
  EXPECT_EQ(Run()->last_checkpoint->path, "/checkpoints/100");
  EXPECT_EQ(lg_fixed128_compare(Run()->ranks[1].totals.nll_sum, b.totals.total_nll_sum), 0);
}

}  // namespace
}  // namespace lossgauge::ingest
