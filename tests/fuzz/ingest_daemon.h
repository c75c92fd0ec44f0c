// The source, the book, the judges and an in-memory store of a real daemon in this process, with an honest sender at work, and what must hold of it whatever
// others send.
#ifndef LOSSGAUGE_TESTS_FUZZ_INGEST_DAEMON_H_
#define LOSSGAUGE_TESTS_FUZZ_INGEST_DAEMON_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/api/api.h"
#include "server/api/json.h"
#include "server/api/text.h"
#include "server/detect/judge.h"
#include "server/detect/policy.h"
#include "server/export/metrics_page.h"
#include "server/ingest/forward_items.h"
#include "server/ingest/forward_source.h"
#include "server/ingest/inbox.h"
#include "server/main/pipeline.h"
#include "server/state/board.h"
#include "server/state/run_book.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::fuzz {

inline constexpr std::size_t kMaxRuns = 4;
inline constexpr std::size_t kMaxRanks = 16;

inline void Require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d does not hold\n", file, line);
  std::abort();
}

class Link final : public ingest::SenderLink {
 public:
  void Acknowledge(std::uint64_t sequence) override {
    Require(!ended_);
    acknowledged_ = std::max(acknowledged_, sequence);
  }
  void Taken() override {}
  void End(const absl::Status& status) override {
    Require(!status.ok() && !status.message().empty());
    ended_ = true;
  }
  std::uint64_t acknowledged() const { return acknowledged_; }
  bool ended() const { return ended_; }

 private:
  std::uint64_t acknowledged_ = 0;
  bool ended_ = false;
};

inline state::ProducerInfo Producer(std::uint64_t segment, const std::string& run, std::uint32_t rank, std::uint32_t world) {
  state::ProducerInfo info;
  info.segment.words[0] = segment;
  info.segment.words[1] = 1;
  info.run = run;
  info.attempt = "1";
  info.attempt_start_ns = 1;
  info.layout.world_size = world;
  info.layout.rank = rank;
  info.layout.dp = {world, std::min(rank, world)};
  info.layout.tp = info.layout.pp = info.layout.cp = info.layout.ep = {1, 0};
  info.layout.has_loss = 1;
  return info;
}

inline lg_step_record Record(std::int64_t step) {
  lg_step_record record{};
  record.present = LG_HAS_LOSS;
  record.step = step;
  record.tokens = record.unmasked_tokens = record.finite_tokens = 10;
  record.nll_sum = lg_fixed128_from_double(25);
  record.total_steps = static_cast<std::uint64_t>(step) + 1;
  record.total_tokens = record.total_unmasked_tokens = record.total_finite_tokens = 10 * record.total_steps;
  record.total_nll_sum = lg_fixed128_from_double(25 * static_cast<double>(record.total_steps));
  return record;
}

class Daemon {
 public:
  Daemon() {
    auto store = state::Store::Open({});
    Require(store.ok());
    store_ = *std::move(store);
    state::RunBookOptions options;
    options.run.is_forwarded = options.run.join.whole_job = true;
    options.run.join.max_ranks = kMaxRanks;
    options.run.max_rank_series = 4;
    options.max_runs = kMaxRuns;
    book_ = std::make_unique<state::RunBook>(options, &judges_, store_.get(), clock_.NowNs());
    Require(book_->Load(clock_.NowNs()).ok());
    ingest::ForwardSourceOptions source;
    source.max_senders = 4;
    source.max_producers = 32;
    source_ = std::make_unique<ingest::ForwardSource>(source, &inbox_, &clock_);
    pipeline_ = std::make_unique<main::Pipeline>(main::PipelineOptions{}, &clock_, book_.get(), store_.get(), &board_, &mailbox_,
                                                 std::vector<state::RecordSource*>{source_.get()});
    api_ = std::make_unique<api::Api>(board_, mailbox_, store_->reader(), clock_);
    honest_ = Connect("honest__________", 0, ingest::kStepWords);
    state::ProducerInfo info = Producer(1000, "honest", 0, 1);
    v1::Batch batch;
    ingest::WriteProducer(info, 1, batch.add_items()->mutable_producer());
    Send(honest_, &batch, 1);
    HonestStep();
    Cycle(20);
  }

  std::shared_ptr<Link> Connect(const std::string& sender, std::uint32_t minor, std::uint32_t step_words) {
    ingest::InboxEntry entry;
    entry.kind = ingest::InboxEntry::Kind::kOpened;
    auto link = std::make_shared<Link>();
    entry.link = link;
    entry.hello.set_sender(sender);
    entry.hello.set_node(sender);
    entry.hello.set_ring_abi_major(LG_RING_ABI_MAJOR);
    entry.hello.set_ring_abi_minor(minor);
    entry.hello.set_step_words(step_words);
    inbox_.Push(std::move(entry));
    return link;
  }
  void Disconnect(const std::shared_ptr<Link>& link) {
    ingest::InboxEntry entry;
    entry.kind = ingest::InboxEntry::Kind::kClosed;
    entry.link = link;
    inbox_.Push(std::move(entry));
  }
  void Send(const std::shared_ptr<Link>& link, v1::Batch* batch, std::uint64_t sequence) {
    ingest::InboxEntry entry;
    entry.link = link;
    entry.bytes = batch->ByteSizeLong();
    entry.batch = std::make_unique<v1::Batch>();
    entry.batch->Swap(batch);
    entry.batch->set_sequence(sequence);
    if (entry.batch->sent_ns() == 0) entry.batch->set_sent_ns(static_cast<std::uint64_t>(clock_.NowNs()));
    inbox_.Push(std::move(entry));
  }
  void HonestStep() {
    v1::Batch batch;
    state::RankSample sample;
    sample.record = Record(steps_);
    sample.publication = static_cast<std::uint64_t>(++steps_);
    sample.receive_time_ns = clock_.NowNs();
    ingest::AppendSample(sample, 1, &batch);
    Send(honest_, &batch, static_cast<std::uint64_t>(steps_) + 1);
  }
  void Cycle(std::int64_t milliseconds) {
    clock_.Advance(milliseconds * 1'000'000);
    for (int i = 0; pipeline_->RunCycle() == 0; ++i) Require(i < 1000);
  }
  // What must hold whatever anybody sent.
  void Check() {
    HonestStep();
    Cycle(20);
    Cycle(5000);
    Require(!honest_->ended() && honest_->acknowledged() == static_cast<std::uint64_t>(steps_) + 1);
    const auto snapshot = board_.Get();
    Require(snapshot->runs.size() <= kMaxRuns);
    const auto run = state::FindRun(*snapshot, "honest");
    Require(run != nullptr && run->ranks.size() == 1 && run->last_step->step == steps_ - 1);
    const auto steps = static_cast<std::uint64_t>(steps_);
    const state::RankTotals& totals = run->ranks[0].totals;
    Require(totals.steps == steps && totals.records_read == steps && totals.tokens == 10 * steps);
    Require(std::all_of(totals.records_lost.begin(), totals.records_lost.end(), [](std::uint64_t lost) { return lost == 0; }));
    Require(run->attempts.size() == 1 && run->unreachable_ranks == 0);
    for (const auto& shown : snapshot->runs) {
      Require(api::IsValidUtf8(shown->run) && shown->ranks.size() <= 16 * kMaxRanks);
      v1::GetRunRequest request;
      request.set_run(shown->run);
      const auto answer = api_->GetRun(request);
      Require(answer.ok());
      v1::Run copy;
      Require(copy.ParseFromString(answer->SerializeAsString()) && api::ToJson(*answer).ok());
      v1::GetVerdictRequest verdict;
      verdict.set_run(shown->run);
      const auto judged = api_->GetVerdict(verdict);
      Require(judged.ok() && !judged->reason().empty());
    }
    const std::string page = metrics_.Render(*snapshot);
    Require(api::IsValidUtf8(page) && page.find("lossgauge_run_step{run=\"honest\"} ") != std::string::npos);
  }

 private:
  testing::ManualClock clock_;
  detect::DetectorJudgeFactory judges_{detect::DefaultPolicies()};
  std::unique_ptr<state::Store> store_;
  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::unique_ptr<state::RunBook> book_;
  ingest::Inbox inbox_{1 << 20};
  std::unique_ptr<ingest::ForwardSource> source_;
  std::unique_ptr<main::Pipeline> pipeline_;
  std::unique_ptr<api::Api> api_;
  export_::MetricsPage metrics_;
  std::shared_ptr<Link> honest_;
  std::int64_t steps_ = 0;
};

}  // namespace lossgauge::fuzz

#endif  // LOSSGAUGE_TESTS_FUZZ_INGEST_DAEMON_H_
