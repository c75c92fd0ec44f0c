// A run book over a store in memory, its clock and its judges, and ranks whose records are handed to it.
#ifndef LOSSGAUGE_TESTS_SERVER_STATE_RUN_BOOK_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_STATE_RUN_BOOK_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/run_book.h"
#include "tests/server/fake_judge.h"

namespace lossgauge::state {

inline constexpr std::int64_t kSecond = 1'000'000'000;

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

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_TESTS_SERVER_STATE_RUN_BOOK_FIXTURE_H_
