// The daemon's source over a real book and store, fed with batches by hand: links, and ranks whose records go into batches.
#ifndef LOSSGAUGE_TESTS_SERVER_INGEST_FORWARD_SOURCE_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_INGEST_FORWARD_SOURCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/forward_source.h"
#include "server/main/pipeline.h"
#include "server/state/run_book.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::ingest {

inline constexpr std::int64_t kSecond = 1'000'000'000;

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
                                    std::uint32_t step_words = kStepWords, const std::string& client = "10.0.0.1") {
    auto link = std::make_shared<FakeLink>();
    InboxEntry entry;
    entry.kind = InboxEntry::Kind::kOpened;
    entry.link = link;
    entry.client = client;
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
  void AppendNote(const Rank& rank, std::uint64_t publication, v1::Batch* batch) {
    state::ProducerEvent event;
    event.producer = rank.info;
    event.kind = LG_EVENT_NOTE;
    event.publication = publication;
    event.receive_time_ns = clock_.NowNs();
    WriteEvent(event, 1, batch->add_items()->mutable_event());
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

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_TESTS_SERVER_INGEST_FORWARD_SOURCE_FIXTURE_H_
