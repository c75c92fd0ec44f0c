// The run book over an in-memory store, fed by hand: joining, totals, attempts, ends, limits.
#include "server/state/run_book.h"

#include <gtest/gtest.h>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/server/fake_judge.h"

namespace lossgauge::state {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// One rank's segment as a source would hand it over.
class Rank {
 public:
  Rank(const std::string& run, const std::string& attempt, std::uint32_t rank, std::uint32_t world, std::uint64_t segment, TimeNs start = 1) {
    auto made = std::make_shared<ProducerInfo>();
    made->segment.words[0] = segment;
    made->run = run;
    made->attempt = attempt;
    made->attempt_start_ns = start;
    made->layout.world_size = world;
    made->layout.rank = rank;
    made->layout.dp = {world, rank};
    made->layout.tp = made->layout.pp = made->layout.cp = made->layout.ep = {1, 0};
    made->layout.has_loss = 1;
    info = std::move(made);
  }
  std::shared_ptr<const ProducerInfo> info;
  std::uint64_t publication = 0;
  std::uint64_t events = 0;
  lg_step_record totals{};

  RankSample Step(std::int64_t step, TimeNs now, std::uint64_t tokens = 10) {
    RankSample sample;
    sample.producer = info;
    sample.publication = ++publication;
    sample.receive_time_ns = now;
    lg_step_record& r = sample.record;
    r.present = LG_HAS_LOSS;
    r.step = step;
    r.boot_ns = 1000 * kSecond + step * kSecond / 4;
    r.tokens = r.unmasked_tokens = r.finite_tokens = tokens;
    r.nll_sum = lg_fixed128_from_double(2.0 * static_cast<double>(tokens));
    totals.total_steps += 1;
    totals.total_tokens += tokens;
    totals.total_unmasked_tokens += tokens;
    totals.total_finite_tokens += tokens;
    totals.total_nll_sum = lg_fixed128_add(totals.total_nll_sum, r.nll_sum);
    r.total_steps = totals.total_steps;
    r.total_tokens = totals.total_tokens;
    r.total_unmasked_tokens = totals.total_unmasked_tokens;
    r.total_finite_tokens = totals.total_finite_tokens;
    r.total_nll_sum = totals.total_nll_sum;
    return sample;
  }
  LivenessReport Look(ProducerState producer_state, TimeNs now, bool drained = false, std::uint64_t closed = LG_CLOSE_OPEN) {
    LivenessReport report;
    report.producer = info;
    report.producer_state = producer_state;
    report.drained = drained;
    report.closed = closed;
    report.time_ns = now;
    return report;
  }
  ProducerEvent Event(std::uint64_t kind, std::int64_t step, TimeNs now) {
    ProducerEvent event;
    event.producer = info;
    event.kind = kind;
    event.step = step;
    event.publication = ++events;
    event.receive_time_ns = now;
    event.text = "/ckpt/" + std::to_string(step);
    return event;
  }
};

class RunBookTest : public ::testing::Test {
 protected:
  RunBookTest() {
    StoreOptions options;
    auto store = Store::Open(options);
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    MakeBook();
  }
  void MakeBook() {
    book_ = std::make_unique<RunBook>(options_, &judges_, store_.get(), now_);
    ASSERT_TRUE(book_->Load(now_).ok());
  }
  // A restart: what was not committed is gone.
  void Restart() {
    book_.reset();
    judges_ = testing::FakeJudges();
    MakeBook();
  }
  bool Add(Rank& rank) {
    const bool admitted = book_->OnProducer(rank.info);
    if (admitted) book_->OnLiveness(rank.Look(ProducerState::kLive, now_));
    return admitted;
  }
  void Step(Rank& rank, std::int64_t step, std::uint64_t tokens = 10) { book_->OnSample(rank.Step(step, now_, tokens)); }
  void Advance(double seconds = 0.01) {
    now_ += static_cast<std::int64_t>(seconds * 1e9);
    book_->Advance(now_, true);
  }
  void Commit() {
    ASSERT_TRUE(store_->Commit(book_->BuildTransaction(now_)).ok());
    book_->OnCommitted();
  }
  void End(Rank& rank, std::uint64_t how = LG_CLOSE_FINISHED) {
    book_->OnEvent(rank.Event(LG_EVENT_END, -1, now_));
    book_->OnLiveness(rank.Look(ProducerState::kEnded, now_, true, how));
  }
  void Lose(Rank& rank) { book_->OnLiveness(rank.Look(ProducerState::kLost, now_, true)); }
  std::shared_ptr<const Snapshot> Snap() { return book_->BuildSnapshot(now_, {}); }
  std::shared_ptr<const RunSnapshot> Run(const std::string& run = "run") { return FindRun(*Snap(), run); }
  std::vector<StepSummary>& Steps(const std::string& run = "run") { return judges_.told(run)->steps; }
  std::vector<std::string> StepNames(const std::string& run = "run") {
    std::vector<std::string> names;
    for (const auto& step : Steps(run)) names.push_back(step.attempt + "/" + std::to_string(step.step));
    return names;
  }

  RunBookOptions options_;
  TimeNs now_ = 1'800'000'000 * kSecond;
  testing::FakeJudges judges_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RunBook> book_;
};

TEST_F(RunBookTest, AStepIsJoinedAsSoonAsAllRanksHaveDeliveredIt) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance();
  EXPECT_TRUE(Steps().empty());
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
  EXPECT_EQ(Steps()[0].ranks, 2u);
  EXPECT_EQ(Steps()[0].sequence, 1u);
}

TEST_F(RunBookTest, AStepLeavesWithoutAMissingRankAfterTheTimeout) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance(1.99);
  EXPECT_TRUE(Steps().empty());
  Advance(0.02);
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_FALSE(Steps()[0].complete);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
  Step(b, 0);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Snap()->self.late_records, 1u);
  EXPECT_EQ(Run()->ranks[1].totals.steps, 1u) << "late, but its totals count";
}

TEST_F(RunBookTest, ARankThatWentPastAStepIsNotWaitedFor) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Step(a, 1);
  Step(b, 1);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1"}));
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
  EXPECT_TRUE(Steps()[1].complete);
}

TEST_F(RunBookTest, ADeadAndDrainedRankIsNotWaitedForButMissed) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Lose(b);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(RunBookTest, StepsLeaveInRisingOrder) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 5; ++step) Step(a, step);
  for (int step = 0; step < 5; ++step) Step(b, step);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1", "1/2", "1/3", "1/4"}));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(Steps()[i].sequence, i + 1);
}

TEST_F(RunBookTest, WhileTheWorldMayStillAppearNobodyIsCountedAbsent) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance(0.5);
  EXPECT_TRUE(Steps().empty());
  Add(b);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].ranks, 2u);
}

TEST_F(RunBookTest, ANodeThatSeesAPartOfTheWorldDoesNotWaitForTheRestForEver) {
  Rank a("run", "1", 0, 16, 1), b("run", "1", 1, 16, 2);
  Add(a);
  Add(b);
  Advance(2.1);
  Step(a, 0);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete) << "complete as far as this node goes";
}

TEST_F(RunBookTest, PipelineRanksWithoutALossAreNotExpected) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  const_cast<ProducerInfo*>(b.info.get())->layout.has_loss = 0;
  Add(a);
  Add(b);
  Step(a, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
}

TEST_F(RunBookTest, ADuplicateIsCountedAndChangesNothing) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 3);
  Advance();
  Step(a, 3);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Snap()->self.duplicate_records, 1u);
  EXPECT_EQ(Run()->ranks[0].totals.steps, 2u) << "the producer's own totals say that it did the work";
}

// observer E1: one record with step 1e9 must not hide the steps that follow.
TEST_F(RunBookTest, AnAbsurdJumpIsFlaggedAndNotAdopted) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 212);
  Step(a, 1'000'000'000);
  Step(a, 213);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/212", "1/213"}));
  EXPECT_EQ(Snap()->self.absurd_steps, 1u);
  EXPECT_EQ(Run()->ranks[0].totals.steps, 3u);
}

TEST_F(RunBookTest, AJobThatReallyWentThereIsFollowed) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 1);
  for (int i = 0; i < 5; ++i) Step(a, 1'000'000'000 + i);
  Advance();
  EXPECT_EQ(Snap()->self.absurd_steps, 2u);
  EXPECT_EQ(Run()->last_step->step, 1'000'000'004);
}

// observer E1: run to 212, resume from 200 in a new attempt.
TEST_F(RunBookTest, AResumedJobIsANewAttemptAndItsReplayIsKept) {
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 212; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  book_->OnEvent(second.Event(LG_EVENT_RESUME, 200, now_));
  for (int step = 201; step <= 220; ++step) Step(second, step);
  Advance();
  const auto run = Run();
  EXPECT_EQ(Steps().size(), 213u + 20u);
  ASSERT_EQ(run->attempts.size(), 2u);
  EXPECT_EQ(run->attempts[0].attempt, "1");
  EXPECT_EQ(run->attempts[0].state, "lost");
  EXPECT_EQ(run->attempts[0].last_step, 212);
  EXPECT_EQ(run->attempts[1].first_step, 201);
  EXPECT_EQ(run->attempts[1].resumed_after_step, 200);
  EXPECT_EQ(run->attempts[1].state, "running");
  EXPECT_EQ(run->last_step->step, 220);
  EXPECT_EQ(run->last_step->sequence, 233u);
  EXPECT_EQ(run->totals.steps, 233u) << "replayed steps are work done";
  EXPECT_EQ(Snap()->self.late_records, 0u);
}

TEST_F(RunBookTest, AnAttemptIsComparedWithTheOneBeforeOverTheStepsThatBothWentThrough) {
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 212; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  EXPECT_FALSE(Run()->attempts[0].comparison);
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 201; step <= 205; ++step) Step(second, step);
  Advance();
  Commit();
  Restart();  // neither what was found nor what it is compared with is lost
  Add(second);
  for (int step = 206; step <= 220; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->with_attempt, "1");
  EXPECT_EQ(comparison->first_step, 201);
  EXPECT_EQ(comparison->last_step, 212);
  EXPECT_EQ(comparison->steps, 12u);
  EXPECT_EQ(comparison->loss, LossMatch::kEqual);
}

// What memory let go of is read from the history; and what a restart forgot, from both.
TEST_F(RunBookTest, AResumeFromFurtherBackThanMemoryIsComparedWithTheHistoryAlsoOverARestart) {
  options_.max_recent_steps = 128;
  MakeBook();
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 999; ++step) Step(first, step);
  Advance();
  Commit();
  Lose(first);
  Advance();
  Snap();  // lets go of old steps
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 500; step <= 510; ++step) Step(second, step);
  Advance();
  Commit();
  Restart();
  Add(second);
  for (int step = 511; step <= 1100; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->with_attempt, "1");
  EXPECT_EQ(comparison->first_step, 500);
  EXPECT_EQ(comparison->last_step, 999);
  EXPECT_EQ(comparison->steps, 500u);
  EXPECT_EQ(comparison->not_compared, 0u) << Describe(*comparison);
  EXPECT_EQ(comparison->loss, LossMatch::kEqual);
}

TEST_F(RunBookTest, WhatIsNeitherInMemoryNorInTheHistoryIsSaidNotToBeCompared) {
  options_.max_recent_steps = 128;
  MakeBook();
  Rank first("run", "1", 0, 1, 1, 100);
  Add(first);
  for (int step = 0; step <= 999; ++step) Step(first, step);
  Advance();
  Lose(first);
  Advance();
  Snap();
  Rank second("run", "2", 0, 1, 2, 200);
  Add(second);
  for (int step = 500; step <= 510; ++step) Step(second, step);
  Advance();
  const auto& comparison = Run()->attempts.at(1).comparison;
  ASSERT_TRUE(comparison);
  EXPECT_EQ(comparison->loss, LossMatch::kUnknown);
  EXPECT_EQ(comparison->not_compared, 11u);
  EXPECT_EQ(Describe(*comparison), "steps 500 to 510 could not be compared with attempt '1' (no longer kept step by step, or without a finite loss)");
}

// observer B8: a wall clock that was set back must not make the job that runs look old.
TEST_F(RunBookTest, AnAttemptThatStartsAfterTheLastOneDiedIsNewerWhateverItsClockSays) {
  Rank first("run", "1", 0, 1, 1, 1000 * kSecond);
  Add(first);
  Step(first, 0);
  Advance();
  Lose(first);
  Advance(10);
  Rank second("run", "2", 0, 1, 2, 5 * kSecond);
  Add(second);
  Step(second, 0);
  Advance();
  EXPECT_EQ(Run()->attempts.back().attempt, "2");
  EXPECT_EQ(Run()->last_step->attempt, "2");
  Lose(second);
  Advance();
  EXPECT_EQ(Run()->attempts.back().attempt, "2");
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "2");
}

TEST_F(RunBookTest, TwoLiveAttemptsAreBothShownToTheJudge) {
  Rank a("run", "1", 0, 1, 1, 100), b("run", "2", 0, 1, 2, 200);
  Add(a);
  Add(b);
  Advance();
  const Presence& presence = judges_.told("run")->presences.back();
  EXPECT_EQ(presence.newest_attempt, "2");
  EXPECT_EQ(presence.producers.size(), 2u);
}

TEST_F(RunBookTest, OfAttemptsThatAreAllOverTheOneThatLivedLastIsJudged) {
  Rank a("run", "1", 0, 1, 1, 100), b("run", "2", 0, 1, 2, 200);
  Add(a);
  Add(b);
  Step(a, 0);
  Step(b, 0);
  Advance();
  End(b);  // ends while the older one goes on
  Advance();
  book_->OnLiveness(a.Look(ProducerState::kLive, now_));
  Advance();
  Lose(a);
  Advance();
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "1");
}

TEST_F(RunBookTest, AnAttemptThatIsOverBeforeItWasSeenAliveIsJudgedAfterOneThatWas) {
  Rank first("run", "1", 0, 1, 1, 100), second("run", "2", 0, 1, 2, 200);
  Add(first);
  Step(first, 0);
  book_->OnLiveness(first.Look(ProducerState::kLive, now_));
  Advance();
  Lose(first);
  Advance(10);
  book_->OnProducer(second.info);
  Step(second, 0);
  Lose(second);
  Advance();
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "2");
}

// observer B6: a second live producer of the same rank is refused; a dead one is succeeded.
TEST_F(RunBookTest, ASecondLiveProducerOfARankIsRefused) {
  Rank a("run", "1", 0, 1, 1), b("run", "1", 0, 1, 2);
  EXPECT_TRUE(Add(a));
  EXPECT_FALSE(Add(b));
  EXPECT_FALSE(Add(b));
  EXPECT_EQ(Snap()->self.runs_refused.at("duplicate_rank"), 1u);
  EXPECT_EQ(Run()->ranks.size(), 1u);
  Lose(a);
  Advance();
  EXPECT_TRUE(Add(b));
  Step(b, 0);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
}

TEST_F(RunBookTest, ARankWithAnotherWorldIsRefused) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 3, 2);
  EXPECT_TRUE(Add(a));
  EXPECT_FALSE(Add(b));
  EXPECT_EQ(Snap()->self.runs_refused.at("layout_mismatch"), 1u);
}

// observer B3: runs are bounded; ended and dead ones make room, living ones never do.
TEST_F(RunBookTest, RunsAreBoundedAndExcessIsCounted) {
  options_.max_runs = 3;
  MakeBook();
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint64_t i = 0; i < 10; ++i) {
    ranks.push_back(std::make_unique<Rank>("run" + std::to_string(i), "1", 0, 1, i + 1));
    EXPECT_EQ(Add(*ranks.back()), i < 3);
  }
  EXPECT_EQ(Snap()->runs.size(), 3u);
  EXPECT_EQ(Snap()->self.runs_refused.at("max_runs"), 7u);
  End(*ranks[1]);
  Advance();
  EXPECT_TRUE(Add(*ranks[5]));
  EXPECT_EQ(FindRun(*Snap(), "run1"), nullptr);
  EXPECT_NE(FindRun(*Snap(), "run0"), nullptr);
}

TEST_F(RunBookTest, AThousandRestartsUnderNewNamesKeepTheBookSmall) {
  options_.max_runs = 8;
  MakeBook();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Rank rank("run" + std::to_string(i), "1", 0, 1, i + 1);
    ASSERT_TRUE(Add(rank)) << i;
    Step(rank, 0);
    Advance();
    Lose(rank);
    Advance();
    if (i % 50 == 0) Commit();
  }
  EXPECT_EQ(Snap()->runs.size(), 8u);
  EXPECT_EQ(Snap()->self.runs_refused.size(), 0u);
}

// observer B1: an ended run is marked at once, dropped after its linger, kept in the store.
TEST_F(RunBookTest, AnEndedRunIsMarkedAtOnceAndDroppedAfterItsLinger) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  End(a);
  Advance();
  EXPECT_TRUE(Run()->ended);
  EXPECT_FALSE(Run()->failed);
  EXPECT_EQ(Run()->phase, "ended");
  EXPECT_EQ(Run()->attempts[0].state, "ended");
  EXPECT_EQ(judges_.told("run")->calls, (std::vector<std::string>{"step 1/0", "event 6"})) << "the end comes after the last step";
  Advance(299);
  EXPECT_NE(Run(), nullptr);
  Advance(2);
  EXPECT_EQ(Run(), nullptr);
  Commit();
  EXPECT_TRUE(book_->FindCursor(a.info->segment).ended);
  const auto steps = store_->reader()->ReadSteps({.run = "run"});
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(steps->size(), 1u);
}

TEST_F(RunBookTest, AJobThatDeclaresItsFailureIsFailed) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  End(a, LG_CLOSE_FAILED);
  Advance();
  EXPECT_TRUE(Run()->ended);
  EXPECT_TRUE(Run()->failed);
  EXPECT_EQ(Run()->attempts[0].state, "failed");
}

TEST_F(RunBookTest, ARunThatComesBackAfterItWasDroppedGoesOnCounting) {
  Rank a("run", "1", 0, 1, 1, 100);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  End(a);
  Advance();
  Advance(400);
  Commit();
  ASSERT_EQ(Run(), nullptr);
  Rank b("run", "2", 0, 1, 2, 200);
  Add(b);
  Step(b, 10);
  Advance();
  EXPECT_EQ(Run()->totals.steps, 11u);
  EXPECT_EQ(Run()->last_step->sequence, 11u);
  EXPECT_EQ(Run()->attempts.size(), 2u);
}

// observer C8 and C9: totals come from the records' own cumulative words.
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

TEST_F(RunBookTest, MemoryOfWaitingRecordsIsBounded) {
  options_.run.join.max_pending = 50;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 200; ++step) Step(a, step);
  Advance();
  EXPECT_EQ(Steps().size(), 150u);
  EXPECT_EQ(Steps()[0].missing_ranks, std::vector<std::uint32_t>{1});
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

TEST_F(RunBookTest, EvaluationBlocksNeverPolluteTheTrainingStep) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  RankSample eval = a.Step(1, now_, 1000);
  eval.record.block = 1;
  book_->OnSample(eval);
  Advance();
  EXPECT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Run()->totals.finite_tokens, 10u);
  EXPECT_EQ(Run()->totals.records_read, 2u);
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

TEST_F(RunBookTest, StepSecondsAreAbsentAcrossAGap) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Step(a, 1);
  Step(a, 5);
  Step(a, 6);
  Advance();
  EXPECT_FALSE(Steps()[0].step_seconds);
  EXPECT_DOUBLE_EQ(*Steps()[1].step_seconds, 0.25);
  EXPECT_FALSE(Steps()[2].step_seconds);
  EXPECT_DOUBLE_EQ(*Steps()[3].step_seconds, 0.25);
}

TEST_F(RunBookTest, ARunThatDiedIsDroppedMuchLater) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Lose(a);
  Advance();
  EXPECT_FALSE(Run()->ended);
  Advance(3500);
  EXPECT_NE(Run(), nullptr);
  Advance(200);
  EXPECT_EQ(Run(), nullptr);
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

TEST_F(RunBookTest, AJobStartedAgainUnderTheSameAttemptNameThatGoesBackIsANewAttempt) {
  Rank a("run", "1", 0, 2, 1, 100), b("run", "1", 1, 2, 2, 100);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Advance();
  Lose(a);
  Lose(b);
  Advance();
  Rank a2("run", "1", 0, 2, 3, 200), b2("run", "1", 1, 2, 4, 200);
  Add(a2);
  Add(b2);
  for (int step = 5; step < 8; ++step) {
    Step(a2, step);
    Step(b2, step);
  }
  Advance();
  ASSERT_EQ(Steps().size(), 13u);
  EXPECT_EQ(Steps()[10].attempt, "1#2");
  EXPECT_EQ(Steps()[10].step, 5);
  EXPECT_TRUE(Steps()[10].complete) << "both ranks' successors are of the new attempt";
  EXPECT_EQ(Snap()->self.late_records, 0u);
  const auto run = Run();
  ASSERT_EQ(run->attempts.size(), 2u);
  EXPECT_EQ(run->attempts[0].state, "lost");
  EXPECT_EQ(run->attempts[0].start_time_ns, 100);
  EXPECT_EQ(run->attempts[1].attempt, "1#2");
  EXPECT_EQ(run->attempts[1].state, "running");
  EXPECT_GT(run->attempts[1].start_time_ns, run->attempts[0].start_time_ns);
  EXPECT_EQ(judges_.told("run")->presences.back().newest_attempt, "1#2");
  EXPECT_EQ(run->ranks[0].producer->attempt, "1#2");

  Commit();
  Restart();
  Add(a2);
  Add(b2);
  Step(a2, 8);
  Step(b2, 8);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/8"}) << "a restart of lossgauged keeps it";
  Lose(a2);
  Lose(b2);
  Rank a3("run", "1", 0, 2, 5, 300), b3("run", "1", 1, 2, 6, 300);
  Add(a3);
  Step(a3, 8);
  Add(b3);
  Step(b3, 8);
  Advance();
  EXPECT_EQ(StepNames().back(), "1#3/8");
  EXPECT_TRUE(Steps().back().complete);
}

TEST_F(RunBookTest, AResumeEventBeforeTheFirstStepBelongsToTheNewAttempt) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  Lose(a);
  Rank a2("run", "1", 0, 1, 2);
  Add(a2);
  book_->OnEvent(a2.Event(LG_EVENT_RESUME, 4, now_));
  Advance();
  ASSERT_EQ(Run()->attempts.size(), 2u);
  EXPECT_FALSE(Run()->attempts[0].resumed_after_step);
  EXPECT_EQ(Run()->attempts[1].resumed_after_step, 4);
}

TEST_F(RunBookTest, ASuccessorThatGoesOnStaysInItsAttempt) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  End(a);
  Rank a2("run", "1", 0, 1, 2);
  Add(a2);
  Step(a2, 10);
  Advance();
  EXPECT_EQ(StepNames().back(), "1/10");
  EXPECT_EQ(Run()->attempts.size(), 1u);
}

TEST_F(RunBookTest, ASuccessorThatARestartFindsBeforeItsFirstStepMayStillGoBack) {
  Rank a("run", "1", 0, 1, 1), a2("run", "1", 0, 1, 2);
  Add(a);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance();
  Lose(a);
  Add(a2);
  Advance();
  Commit();
  Restart();
  Add(a2);
  Step(a2, 3);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/3"});
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

TEST_F(RunBookTest, AnAbsurdFirstRecordDoesNotMakeEveryRealStepLate) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 1'000'000'000);
  Advance();
  for (int step = 0; step < 5; ++step) Step(a, step);
  Advance();
  EXPECT_EQ(StepNames(), (std::vector<std::string>{"1/0", "1/1", "1/2", "1/3", "1/4"}));
  EXPECT_EQ(Snap()->self.absurd_steps, 1u);
  EXPECT_EQ(Snap()->self.late_records, 0u);
}

TEST_F(RunBookTest, AJobThatSaysThatItResumesFarOutIsBelieved) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  book_->OnEvent(a.Event(LG_EVENT_RESUME, 5'000'000, now_));
  Step(a, 5'000'001);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1/5000001"});
}

TEST_F(RunBookTest, AnUnreadableDirectoryConcernsOnlyTheRunsInIt) {
  Rank a("run", "1", 0, 1, 1), b("other", "1", 0, 1, 2);
  Add(a);
  Add(b);
  now_ += kSecond;
  book_->Advance(now_, [&](const ProducerInfo& producer) { return producer.run != "other"; });
  EXPECT_TRUE(judges_.told("run")->presences.back().source_reachable);
  EXPECT_FALSE(judges_.told("other")->presences.back().source_reachable);
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
  const Transaction& waiting = book_->BuildTransaction(now_);
  EXPECT_LE(waiting.cursors.size(), 3u) << "two of dropped runs, one of the living";
  EXPECT_LE(waiting.runs.size(), 3u);
  Commit();
  EXPECT_TRUE(book_->Report({"keep", {}}, &entries).ok());
}

TEST_F(RunBookTest, GoneSegmentsOfARankThatHasANewerOneAreLetGo) {
  for (std::uint64_t i = 1; i <= 20; ++i) {
    Rank rank("run", "1", 0, 1, i);
    Add(rank);
    Step(rank, static_cast<std::int64_t>(i));
    Advance();
    Lose(rank);
    book_->OnProducerGone(rank.info->segment, now_);
  }
  Advance();
  EXPECT_EQ(Steps().size(), 20u);
  EXPECT_EQ(Run()->attempts.size(), 1u);
  EXPECT_EQ(book_->SlotCount("run"), 1u);
}

TEST_F(RunBookTest, ASuccessorIsNotStuckBecauseAPeerWasNotYetKnownToBeDead) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Advance();
  Commit();
  Restart();  // what each rank had reached is not known any more
  Add(a);
  Add(b);
  Lose(a);
  Rank a2("run", "1", 0, 2, 3), b2("run", "1", 1, 2, 4);
  Add(a2);
  Step(a2, 5);
  Advance();
  Lose(b);
  Step(a2, 6);
  Add(b2);
  Step(b2, 6);
  Advance();
  EXPECT_EQ(StepNames(), std::vector<std::string>{"1#2/6"});
}

TEST_F(RunBookTest, ARankThatIsOnlySlowMakesNoNewAttempt) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (int step = 0; step < 10; ++step) Step(a, step);
  Advance(3);
  Advance();
  Commit();
  Restart();
  Add(a);
  Add(b);
  Step(b, 0);
  Advance();
  EXPECT_EQ(Run()->attempts.size(), 1u);
  EXPECT_EQ(Snap()->self.late_records, 1u);
}

// A daemon: whole jobs from many nodes.
class JobBookTest : public RunBookTest {
 protected:
  JobBookTest() {
    options_.run.is_forwarded = options_.run.join.whole_job = true;
    MakeBook();
  }
  std::vector<StepSummary> History() {
    StepQuery query;
    query.run = "run";
    auto steps = store_->reader()->ReadSteps(query);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return *std::move(steps);
  }
};

TEST_F(JobBookTest, WaitsForAllRanksWhileSidecarsComeBack) {
  options_.run.join.hold_until_ns = now_ + 10 * kSecond;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance(5);
  EXPECT_TRUE(Steps().empty()) << "far beyond the join timeout, but the other node may be on its way";
  Add(b);
  Step(b, 0);
  Advance();
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_TRUE(Steps()[0].complete);
  Step(a, 1);
  Advance(3);
  EXPECT_EQ(Steps().size(), 1u);
  Advance(4);
  ASSERT_EQ(Steps().size(), 2u);
  EXPECT_EQ(Steps()[1].missing_ranks, std::vector<std::uint32_t>{1});
}

TEST_F(JobBookTest, CorrectsOnlyAsManyStepsAsItMayKeepOpen) {
  options_.run.join.max_open_bytes = 5000;
  MakeBook();
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (std::int64_t step = 0; step < 20; ++step) Step(a, step);
  Advance(3);
  ASSERT_EQ(Steps().size(), 20u);
  for (std::int64_t step = 0; step < 20; ++step) Step(b, step);
  Advance();
  Commit();
  const auto history = History();
  ASSERT_EQ(history.size(), 20u);
  EXPECT_FALSE(history[0].complete);
  EXPECT_TRUE(history[19].complete);
  EXPECT_EQ(history[19].finite_tokens, 20u);
  EXPECT_EQ(Run()->totals.finite_tokens, 400u) << "totals do not depend on it";
  EXPECT_EQ(Snap()->self.late_records, 20u);
}

// Found by a simulated fleet of 16,384 ranks: with more of them missing than are named, those behind the named ones were left out for good.
TEST_F(JobBookTest, ManyLateRanksAreAllAddedThoughOnlyTheFirstAreNamed) {
  options_.run.join.max_ranks = 4096;
  options_.run.join.max_pending = 1 << 20;
  MakeBook();
  constexpr std::uint32_t kWorld = 1500;
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) ranks.emplace_back("run", "1", rank, kWorld, rank + 1);
  for (Rank& rank : ranks) Add(rank);
  Step(ranks[0], 0);
  Advance(3);
  Commit();
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].missing_ranks.size(), 1024u);
  for (std::uint32_t rank = 1; rank < 1200; ++rank) Step(ranks[rank], 0);
  Advance();
  Commit();
  EXPECT_FALSE(History()[0].complete);
  for (std::uint32_t rank = 1200; rank < kWorld; ++rank) Step(ranks[rank], 0);
  Advance();
  Commit();
  EXPECT_TRUE(History()[0].complete);
  EXPECT_EQ(History()[0].ranks, kWorld);
  EXPECT_EQ(History()[0].finite_tokens, 10u * kWorld);
}

TEST_F(JobBookTest, ALateRecordThatComesTwiceIsAddedOnce) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  Step(a, 0);
  Advance(3);
  const RankSample late = b.Step(0, now_);
  book_->OnSample(late);
  book_->OnSample(late);
  Advance();
  Commit();
  ASSERT_EQ(History().size(), 1u);
  EXPECT_EQ(History()[0].finite_tokens, 20u);
  EXPECT_EQ(History()[0].ranks, 2u);
}

TEST_F(JobBookTest, CursorsOfLiveSegmentsComeBackWithTheirRun) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Add(b);
  for (std::int64_t step = 0; step < 3; ++step) {
    Step(a, step);
    Step(b, step);
  }
  Step(a, 3);  // waits for its other rank
  Advance();
  Commit();
  EXPECT_EQ(store_->LoadCursors()->size(), 0u) << "no row for each rank";
  EXPECT_EQ(book_->FindCommitted(a.info->segment).next_steps_publication, 4u);
  Restart();
  Advance();
  ASSERT_NE(Run(), nullptr);
  EXPECT_EQ(Run()->unreachable_ranks, 0u);
  Add(a);
  Add(b);
  EXPECT_EQ(book_->FindCursor(a.info->segment).next_steps_publication, 4u) << "what waited is to be sent again";
  EXPECT_EQ(book_->FindCursor(b.info->segment).next_steps_publication, 4u);
  now_ += 2 * kSecond;
  book_->Advance(now_, Reachability([](const ProducerInfo& info) { return info.layout.rank == 0; }));
  EXPECT_EQ(Run()->unreachable_ranks, 1u);
}

TEST_F(JobBookTest, AJobOfManyRanksShowsThoseThatAreNotWell) {
  options_.run.max_rank_series = 10;
  MakeBook();
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < 40; ++rank) ranks.emplace_back("run", "1", rank, 40, rank + 1);
  for (Rank& rank : ranks) Add(rank);
  for (Rank& rank : ranks) {
    if (rank.info->layout.rank != 17) Step(rank, 0);
  }
  Advance(3);
  Commit();
  EXPECT_EQ(Run()->ranks_left_out, 39u);
  ASSERT_EQ(Run()->ranks.size(), 1u);
  EXPECT_EQ(Run()->ranks[0].rank, 17u);
  ASSERT_NE(Run()->last_step->spread, nullptr);
  EXPECT_EQ(Run()->last_step->spread->loss_nats.ranks, 39u);
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].rank_steps.size(), 39u) << "the judge sees them all";
  Step(ranks[17], 0);
  Advance();
  Commit();
  EXPECT_EQ(History()[0].spread->loss_nats.ranks, 40u);
  EXPECT_TRUE(History()[0].complete);
  Advance(1);
  EXPECT_TRUE(Run()->ranks.empty());
}

TEST_F(JobBookTest, AJobEndsWhenItsWholeWorldHasEnded) {
  Rank a("run", "1", 0, 2, 1), b("run", "1", 1, 2, 2);
  Add(a);
  Step(a, 0);
  Advance();
  End(a);
  Advance(3);
  EXPECT_FALSE(Run()->ended) << "nobody has told of the other rank";
  Add(b);
  Step(b, 0);
  End(b);
  Advance();
  EXPECT_TRUE(Run()->ended);
}

TEST_F(JobBookTest, AJobThatNobodyTellsOfAnyMoreIsLetGoAndComesBack) {
  Rank a("run", "1", 0, 1, 1);
  Add(a);
  Step(a, 0);
  Advance();
  Commit();
  now_ += 3700 * kSecond;
  Advance();
  Commit();
  EXPECT_EQ(Run(), nullptr);
  EXPECT_FALSE(book_->FindCursor(a.info->segment).ended) << "it was only not heard of";
  EXPECT_TRUE(Add(a));
  EXPECT_EQ(book_->FindCursor(a.info->segment).next_steps_publication, 2u);
  Step(a, 1);
  Advance();
  EXPECT_EQ(Run()->totals.steps, 2u);
}

}  // namespace
}  // namespace lossgauge::state
