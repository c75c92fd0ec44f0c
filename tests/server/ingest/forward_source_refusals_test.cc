// What is refused, by which name, and that it harms nobody else.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/ingest/forward_source_fixture.h"

namespace lossgauge::ingest {
namespace {

// Bad input: refused or counted, and nothing of it harms another run.
TEST_F(ForwardSourceTest, TheSecondNodeThatClaimsASegmentIsRefusedForAsLongAsTheFirstIsConnected) {
  Rank a("run", 0, 1, 1);
  const auto first = Connect("a"), second = Connect("b");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  Send(first, batch);
  Send(second, batch);
  Cycle();
  EXPECT_EQ(Count("refused/second_sender"), 1u);
  EXPECT_EQ(Count("records_refused"), 1u);
  EXPECT_EQ(second->acknowledged, 1u) << "refused for good: it need not be kept";
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 1u);
  // A first one that was silent for long is still the first, and loses nothing when it speaks again.
  Cycle(20);
  v1::Batch late;
  late.set_sequence(2);
  AppendSample(a.Step(1, clock_.NowNs()), 1, &late);
  Send(second, Told(a, 1, 2));
  Send(first, late);
  Cycle();
  EXPECT_EQ(Count("refused/second_sender"), 2u);
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 2u);
  EXPECT_EQ(first->acknowledged, 2u);
  Disconnect(first);
  batch.Clear();  // who told of it while it was another's need not tell again
  batch.set_sequence(3);
  AppendSample(a.Step(2, clock_.NowNs()), 1, &batch);
  Send(second, batch);
  Cycle();
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 3u);
}

TEST_F(ForwardSourceTest, TwoLiveProcessesOfOneRankAreNotBothTaken) {
  Rank a("run", 0, 1, 1), impostor("run", 0, 1, 2), other("other", 0, 1, 3);
  const auto first = Connect("a"), second = Connect("b");
  Send(first, Told(a, 1, 1));
  Cycle();
  v1::Batch batch = Told(impostor, 1, 1);
  AppendSample(impostor.Step(0, clock_.NowNs()), 1, &batch);
  WriteProducer(*other.info, 2, batch.add_items()->mutable_producer());
  AppendSample(other.Step(0, clock_.NowNs()), 2, &batch);
  Send(second, batch);
  Cycle();
  EXPECT_EQ(Count("refused/producer"), 1u);
  EXPECT_EQ(board_.Get()->self.runs_refused.at("duplicate_rank"), 1u);
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 0u);
  EXPECT_EQ(Run("other")->ranks[0].totals.records_read, 1u) << "its other run is unharmed";
}

TEST_F(ForwardSourceTest, ALayoutThatContradictsItsRunIsRefused) {
  Rank a("run", 0, 2, 1), b("run", 1, 4, 2);
  const auto link = Connect("a");
  Send(link, Told(a, 1, 1));
  Send(link, Told(b, 2, 2));
  Cycle();
  EXPECT_EQ(board_.Get()->self.runs_refused.at("layout_mismatch"), 1u);
  EXPECT_EQ(Run()->ranks.size(), 1u);
}

TEST_F(ForwardSourceTest, ARankBeyondItsWorldIsRefusedWithItsRecordsAndNoOther) {
  Rank a("run", 0, 2, 1), beyond("run", 7, 2, 2);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  WriteProducer(*beyond.info, 2, batch.add_items()->mutable_producer());
  AppendSample(beyond.Step(0, clock_.NowNs()), 2, &batch);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Count("refused/bad_producer"), 1u);
  EXPECT_EQ(Count("records_refused"), 1u);
  EXPECT_TRUE(link->ended.ok());
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 1u);
}

TEST_F(ForwardSourceTest, NonsenseEndsItsStreamAndSaysWhichFieldItWas) {
  Rank a("run", 0, 1, 1);
  const auto try_item = [&](const v1::Item& item) {
    const auto link = Connect("bad");
    v1::Batch batch = Told(a, 1, 1);
    *batch.add_items() = item;
    Send(link, batch);
    Cycle();
    return link->ended;
  };
  v1::Item item;
  item.mutable_steps()->set_producer(9);
  item.mutable_steps()->set_first_publication(1);
  item.mutable_steps()->set_words(std::string(kStepWords * 8, '\0'));
  EXPECT_NE(std::string(try_item(item).message()).find("steps.producer: 9"), std::string::npos);
  item.mutable_steps()->set_producer(1);
  item.mutable_steps()->set_words(std::string(kStepWords * 8 - 1, '\0'));
  EXPECT_NE(std::string(try_item(item).message()).find("steps.words"), std::string::npos);
  item.mutable_steps()->set_words(std::string(kStepWords * 8, '\0'));
  item.mutable_steps()->set_first_publication(0);
  EXPECT_NE(std::string(try_item(item).message()).find("steps.first_publication"), std::string::npos);
  item.mutable_event()->set_producer(1);
  EXPECT_NE(std::string(try_item(item).message()).find("event.publication"), std::string::npos);
  item.mutable_lost()->set_producer(1);
  item.mutable_lost()->set_first_publication(1);
  item.mutable_lost()->set_records(~std::uint64_t{0});
  EXPECT_EQ(try_item(item).code(), absl::StatusCode::kInvalidArgument);
  item.mutable_producer()->set_number(0);
  EXPECT_NE(std::string(try_item(item).message()).find("producer.number"), std::string::npos);
  EXPECT_EQ(Count("refused/bad_batch"), 6u);
  EXPECT_TRUE(try_item(v1::Item()).ok()) << "an item of a later version is passed over";
}

TEST_F(ForwardSourceTest, ARecordThatMakesNoSenseIsLostAndTheNextIsTaken) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  state::RankSample bad = a.Step(0, clock_.NowNs());
  bad.record.step = -5;
  AppendSample(bad, 1, &batch);
  AppendSample(a.Step(1, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Count("refused/bad_record"), 1u);
  EXPECT_EQ(Run()->ranks[0].totals.records_lost[static_cast<std::size_t>(state::LossReason::kInvalid)], 1u);
  EXPECT_EQ(Run()->ranks[0].totals.records_read, 1u);
}

// A step of 10^9 among others.
TEST_F(ForwardSourceTest, AnAbsurdStepIsCountedAndNotAdopted) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  for (const std::int64_t step : {10, 1'000'000'000, 11}) AppendSample(a.Step(step, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  ASSERT_EQ(History().size(), 2u);
  EXPECT_EQ(History()[1].step, 11);
  EXPECT_EQ(board_.Get()->self.absurd_steps, 1u);
}

TEST_F(ForwardSourceTest, RecordsOfALaterMinorAreTakenByTheirKnownWords) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a", 0, LG_RING_ABI_MINOR + 1, kStepWords + 4);
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  v1::Item::StepRecords* records = batch.mutable_items(batch.items_size() - 1)->mutable_steps();
  records->mutable_words()->append(32, 'x');
  const state::RankSample next = a.Step(1, clock_.NowNs());
  records->mutable_words()->append(reinterpret_cast<const char*>(&next.record) + 8, kStepWords * 8);
  records->mutable_words()->append(32, 'y');
  Send(link, batch);
  Cycle();
  EXPECT_EQ(Count("refused/newer_minor"), 1u);
  ASSERT_EQ(History().size(), 2u);
  EXPECT_DOUBLE_EQ(*History()[1].loss_nats, 2.5);
}

TEST_F(ForwardSourceTest, TooManyRunsAreRefusedAndTheirSenderGoesOn) {
  const auto link = Connect("a");
  std::vector<Rank> ranks;
  v1::Batch batch;
  batch.set_sequence(1);
  for (std::uint32_t i = 0; i < 8; ++i) {
    ranks.emplace_back("run" + std::to_string(i), 0, 1, i + 1);
    WriteProducer(*ranks[i].info, i + 1, batch.add_items()->mutable_producer());
    WriteLiveness(ranks[i].Look(state::ProducerState::kLive, clock_.NowNs()), i + 1, batch.add_items()->mutable_liveness());
    AppendSample(ranks[i].Step(0, clock_.NowNs()), i + 1, &batch);
  }
  Send(link, batch);
  Cycle();
  EXPECT_EQ(board_.Get()->runs.size(), 4u);
  EXPECT_EQ(board_.Get()->self.runs_refused.at("max_runs"), 4u);
  EXPECT_EQ(link->acknowledged, 1u);
}

// One sender does not take all runs; what of it is over makes room, and what comes back needs it again.
TEST_F(ForwardSourceTest, OneSenderHasAFewRunsAtATimeAndOthersHaveRoom) {
  ForwardSourceOptions options;
  options.max_runs_per_sender = 2;
  Rebuild(options);
  const auto greedy = Connect("a"), other = Connect("b");
  std::vector<Rank> ranks;
  v1::Batch batch;
  for (std::uint32_t i = 0; i < 3; ++i) {
    ranks.emplace_back("run" + std::to_string(i), 0, 2, i + 1);
    WriteProducer(*ranks[i].info, i + 1, batch.add_items()->mutable_producer());
    AppendSample(ranks[i].Step(0, clock_.NowNs()), i + 1, &batch);
  }
  Rank second("run0", 1, 2, 9);
  WriteProducer(*second.info, 9, batch.add_items()->mutable_producer());
  Send(greedy, batch);
  Rank mine("mine", 0, 1, 20);
  batch = Told(mine, 1, 1);
  Send(other, batch);
  Cycle();
  EXPECT_EQ(board_.Get()->runs.size(), 3u);
  EXPECT_EQ(Run("run2"), nullptr);
  EXPECT_EQ(Run("run0")->ranks.size(), 2u) << "another rank of a run takes no room";
  EXPECT_NE(Run("mine"), nullptr);
  EXPECT_EQ(Count("refused/max_runs_per_sender"), 1u);
  EXPECT_EQ(Count("records_refused"), 1u);
  batch.Clear();
  for (const std::uint32_t number : {1u, 9u}) {
    const Rank& rank = number == 1 ? ranks[0] : second;
    WriteLiveness(rank.Look(state::ProducerState::kEnded, clock_.NowNs(), true), number, batch.add_items()->mutable_liveness());
  }
  Send(greedy, batch);
  Cycle(6);  // a refused producer is asked for again after five seconds
  AppendSample(ranks[2].Step(1, clock_.NowNs()), 3, &batch);
  Send(greedy, batch);
  Cycle();
  ASSERT_NE(Run("run2"), nullptr);
  batch.Clear();
  WriteLiveness(ranks[0].Look(state::ProducerState::kLive, clock_.NowNs()), 1, batch.add_items()->mutable_liveness());
  Send(greedy, batch);
  Cycle();
  EXPECT_EQ(Count("refused/max_runs_per_sender"), 2u);
  EXPECT_TRUE(Run("run0")->ended) << "two of its runs are not over";
}

// A name costs nothing, an address does: however many senders one has, they have its runs together, each run once.
TEST_F(ForwardSourceTest, SendersOfOneAddressHaveItsRunsTogether) {
  ForwardSourceOptions options;
  options.max_runs_per_client = 2;
  Rebuild(options);
  const auto connect = [this](const std::string& sender, const std::string& client) { return Connect(sender, 0, LG_RING_ABI_MINOR, kStepWords, client); };
  Rank job0("job", 0, 2, 1), job1("job", 1, 2, 2), alone("alone", 0, 1, 3), greedy("greedy", 0, 1, 4), elsewhere("elsewhere", 0, 1, 5);
  const auto first = connect("a", "10.0.0.1"), third = connect("c", "10.0.0.1");
  Send(first, Told(job0, 1, 1));
  Send(connect("b", "10.0.0.1"), Told(job1, 1, 1));
  Send(third, Told(alone, 1, 1));
  Send(connect("d", "10.0.0.1"), Told(greedy, 1, 1));
  Send(connect("e", "10.0.0.2"), Told(elsewhere, 1, 1));
  Cycle();
  ASSERT_NE(Run("job"), nullptr);
  EXPECT_EQ(Run("job")->ranks.size(), 2u) << "a job's nodes are as many senders as they like";
  EXPECT_NE(Run("alone"), nullptr);
  EXPECT_EQ(Run("greedy"), nullptr);
  EXPECT_NE(Run("elsewhere"), nullptr) << "another address has room of its own";
  EXPECT_EQ(Count("refused/max_runs_per_client"), 1u);

  // The node of "alone" comes back under another address: its run counts there, and makes room here.
  Disconnect(third);
  const auto moved = connect("c", "10.0.0.2");
  Send(moved, Told(alone, 1, 2));
  Cycle(6);
  Rank late("late", 0, 1, 6), late_elsewhere("late_elsewhere", 0, 1, 7);
  Send(connect("f", "10.0.0.1"), Told(late, 1, 1));
  Send(connect("g", "10.0.0.2"), Told(late_elsewhere, 1, 1));
  Cycle();
  EXPECT_NE(Run("late"), nullptr);
  EXPECT_EQ(Run("late_elsewhere"), nullptr);

  // One of a run's two nodes is through: the other still has it. Both: there is room.
  v1::Batch ended;
  WriteLiveness(job0.Look(state::ProducerState::kEnded, clock_.NowNs(), true), 1, ended.add_items()->mutable_liveness());
  Send(first, ended);
  Rank next("next", 0, 1, 8);
  const auto waiting = connect("h", "10.0.0.1");
  Send(waiting, Told(next, 1, 1));
  Cycle();
  EXPECT_EQ(Run("next"), nullptr);
  const auto second = connect("b", "10.0.0.1");
  ended = Told(job1, 1, 2);
  WriteLiveness(job1.Look(state::ProducerState::kEnded, clock_.NowNs(), true), 1, ended.add_items()->mutable_liveness());
  Send(second, ended);
  Cycle(6);
  Send(waiting, Told(next, 1, 2));
  Cycle();
  EXPECT_NE(Run("next"), nullptr);
}

// Gaps add up to a counter: what no ring could have published is nonsense, and no loss.
TEST_F(ForwardSourceTest, APublicationThatNoRingReachesIsNonsense) {
  Rank a("run", 0, 1, 1);
  const auto link = Connect("a");
  v1::Batch batch = Told(a, 1, 1);
  AppendSample(a.Step(0, clock_.NowNs()), 1, &batch);
  a.publication = kMaxPublication;
  AppendSample(a.Step(1, clock_.NowNs()), 1, &batch);
  Send(link, batch);
  Cycle();
  EXPECT_NE(std::string(link->ended.message()).find("steps.first_publication: expected 1 to 2^44"), std::string::npos) << link->ended;
  EXPECT_EQ(Lost(Run()->ranks[0].totals), 0u);
}

}  // namespace
}  // namespace lossgauge::ingest
