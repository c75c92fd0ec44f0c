// The daemon's source over a real book and store, fed with batches by hand: each publication once, acknowledged when kept, nonsense refused.
#include "server/ingest/forward_source.h"

#include <gtest/gtest.h>

#include <random>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/forwarder.h"
#include "server/main/pipeline.h"
#include "server/state/run_book.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::ingest {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

class FakeLink final : public SenderLink {
 public:
  void Acknowledge(std::uint64_t sequence) override { acknowledged = std::max(acknowledged, sequence); }
  void Taken() override { ++taken; }
  void End(const absl::Status& status) override { ended = status; }
  std::uint64_t acknowledged = 0;
  int taken = 0;
  absl::Status ended;
};

// One rank's records as its sidecar has them.
struct Rank {
  Rank(const std::string& run, std::uint32_t rank, std::uint32_t world, std::uint64_t segment, const std::string& attempt = "1") {
    auto made = std::make_shared<state::ProducerInfo>();
    made->segment.words[0] = segment;
    made->segment.words[1] = 1;
    made->run = run;
    made->attempt = attempt;
    made->attempt_start_ns = 1;
    made->layout.world_size = world;
    made->layout.rank = rank;
    made->layout.dp = {world, rank};
    made->layout.tp = made->layout.pp = made->layout.cp = made->layout.ep = {1, 0};
    made->layout.has_loss = 1;
    info = std::move(made);
  }
  state::RankSample Step(std::int64_t step, state::TimeNs now) {
    state::RankSample sample;
    sample.producer = info;
    sample.publication = ++publication;
    sample.receive_time_ns = now;
    lg_step_record& r = sample.record;
    r.present = LG_HAS_LOSS;
    r.step = step;
    r.tokens = r.unmasked_tokens = r.finite_tokens = 10 + info->layout.rank;
    r.nll_sum = lg_fixed128_from_double(2.5 * static_cast<double>(r.tokens));
    totals.total_steps += 1;
    totals.total_tokens += r.tokens;
    totals.total_nll_sum = lg_fixed128_add(totals.total_nll_sum, r.nll_sum);
    r.total_steps = totals.total_steps;
    r.total_tokens = r.total_unmasked_tokens = r.total_finite_tokens = totals.total_tokens;
    r.total_nll_sum = totals.total_nll_sum;
    return sample;
  }
  state::LivenessReport Look(state::ProducerState producer_state, state::TimeNs now, bool drained = false) const {
    state::LivenessReport report;
    report.producer = info;
    report.producer_state = producer_state;
    report.drained = drained;
    report.closed = producer_state == state::ProducerState::kEnded ? std::uint64_t{LG_CLOSE_FINISHED} : std::uint64_t{LG_CLOSE_OPEN};
    report.time_ns = now;
    return report;
  }
  std::shared_ptr<const state::ProducerInfo> info;
  std::uint64_t publication = 0;
  lg_step_record totals{};
};

class ForwardSourceTest : public ::testing::Test {
 protected:
  ForwardSourceTest() {
    spdlog::set_level(spdlog::level::off);
    Start();
  }
  void Start() {
    state::StoreOptions store_options;
    store_options.directory = directory_ / "state";
    auto store = state::Store::Open(store_options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    state::RunBookOptions options;
    options.run.is_forwarded = options.run.join.whole_job = true;
    options.run.join.max_ranks = 64;
    options.max_runs = 4;
    book_ = std::make_unique<state::RunBook>(options, &judges_, store_.get(), clock_.NowNs());
    ASSERT_TRUE(book_->Load(clock_.NowNs()).ok());
    inbox_ = std::make_unique<Inbox>(1 << 20);
    Rebuild({});
  }
  void Rebuild(const ForwardSourceOptions& options) {
    pipeline_.reset();
    source_ = std::make_unique<ForwardSource>(options, inbox_.get(), &clock_);
    pipeline_ = std::make_unique<main::Pipeline>(main::PipelineOptions{}, &clock_, book_.get(), store_.get(), &board_, &mailbox_,
                                                 std::vector<state::RecordSource*>{source_.get()});
  }
  // As SIGKILL would.
  void Kill() {
    pipeline_.reset();
    source_.reset();
    inbox_.reset();
    book_.reset();
    store_.reset();
    judges_ = testing::FakeJudges();
  }
  void Cycle(double seconds = 0.02) {
    clock_.Advance(static_cast<std::int64_t>(seconds * 1e9));
    while (pipeline_->RunCycle() == 0) {
    }
  }
  std::shared_ptr<FakeLink> Connect(const std::string& sender, std::uint64_t newest = 0, std::uint32_t minor = LG_RING_ABI_MINOR,
                                    std::uint32_t step_words = kStepWords) {
    auto link = std::make_shared<FakeLink>();
    InboxEntry entry;
    entry.kind = InboxEntry::Kind::kOpened;
    entry.link = link;
    entry.hello.set_sender(sender);
    entry.hello.set_node("node-" + sender);
    entry.hello.set_newest_sequence(newest);
    entry.hello.set_ring_abi_major(LG_RING_ABI_MAJOR);
    entry.hello.set_ring_abi_minor(minor);
    entry.hello.set_step_words(step_words);
    inbox_->Push(std::move(entry));
    return link;
  }
  void Disconnect(const std::shared_ptr<FakeLink>& link) {
    InboxEntry entry;
    entry.kind = InboxEntry::Kind::kClosed;
    entry.link = link;
    inbox_->Push(std::move(entry));
  }
  void Send(const std::shared_ptr<FakeLink>& link, const v1::Batch& batch) {
    InboxEntry entry;
    entry.link = link;
    entry.batch = std::make_unique<v1::Batch>(batch);
    entry.batch->set_sent_ns(static_cast<std::uint64_t>(clock_.NowNs()));
    entry.bytes = batch.ByteSizeLong();
    inbox_->Push(std::move(entry));
  }
  // A batch that tells of the rank under a number, and that it lives.
  v1::Batch Told(const Rank& rank, std::uint32_t number, std::uint64_t sequence) {
    v1::Batch batch;
    batch.set_sequence(sequence);
    WriteProducer(*rank.info, number, batch.add_items()->mutable_producer());
    WriteLiveness(rank.Look(state::ProducerState::kLive, clock_.NowNs()), number, batch.add_items()->mutable_liveness());
    return batch;
  }
  std::shared_ptr<const state::RunSnapshot> Run(const std::string& run = "run") { return state::FindRun(*board_.Get(), run); }
  std::uint64_t Count(const std::string& name) {
    const auto& counts = source_->stats().ingest;
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  }
  std::vector<state::StepSummary> History(const std::string& run = "run") {
    state::StepQuery query;
    query.run = run;
    query.limit = 1'000'000;
    auto steps = store_->reader()->ReadSteps(query);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return *std::move(steps);
  }
  static std::uint64_t Lost(const state::RankTotals& totals) {
    std::uint64_t lost = 0;
    for (const std::uint64_t records : totals.records_lost) lost += records;
    return lost;
  }

  ScratchDirectory directory_;
  testing::ManualClock clock_;
  testing::FakeJudges judges_;
  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::unique_ptr<state::Store> store_;
  std::unique_ptr<state::RunBook> book_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<ForwardSource> source_;
  std::unique_ptr<main::Pipeline> pipeline_;
};

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

// observer E1: a step of 10^9 among others.
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

// observer B1: what is over leaves, and what is sent again of it afterwards does not bring it back.
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

// observer E1: the job goes back in its steps under another attempt name; both are kept.
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
