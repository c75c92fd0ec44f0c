// What senders may say to a daemon: the input is a program of a hostile sender or two, with items of its making and batches of any bytes, against the
// source, the book, the judges and an in-memory store of a real daemon. An honest sender is at work beside them: of its run nothing may be lost, added
// or refused, and pages and answers stay what clients can read.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

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
#include "spdlog/spdlog.h"
#include "tests/server/manual_clock.h"

namespace {

using namespace lossgauge;

constexpr std::size_t kMaxOperations = 200;
constexpr std::size_t kMaxRuns = 4;
constexpr std::size_t kMaxRanks = 16;

void Require(bool holds, int line = __builtin_LINE()) {
  if (holds) return;
  std::fprintf(stderr, "ingest_fuzzer.cc:%d does not hold\n", line);
  std::abort();
}

// The input as numbers; zeros behind its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint64_t Word() {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= std::uint64_t{Byte()} << (8 * i);
    return word;
  }
  // Small ones mostly: only they meet what was said before.
  std::uint64_t Number() {
    const std::uint8_t byte = Byte();
    return byte < 250 ? byte : Word();
  }
  double Double() {
    const std::uint64_t word = Word();
    double value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  std::string Text() {
    std::string text(std::min<std::size_t>(left_, Byte()), '\0');
    for (char& c : text) c = static_cast<char>(Byte());
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

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

state::ProducerInfo Producer(std::uint64_t segment, const std::string& run, std::uint32_t rank, std::uint32_t world) {
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

lg_step_record Record(std::int64_t step) {
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

// A hostile sender; its batch grows by items until it is sent.
class Hostile {
 public:
  Hostile(Daemon* daemon, char name) : daemon_(daemon), id_(16, name) { Connect(0, 0); }

  void Do(Bytes& in) {
    switch (in.Byte() % 12) {
      case 0: return Connect(in.Byte() % 3, in.Byte() % 4);
      case 1: return AddRaw(in);
      case 2:
      case 3: return Tell(in);
      case 4:
      case 5: return AddSteps(in);
      case 6: return AddEvent(in);
      case 7: return AddLost(in);
      case 8: return AddLiveness(in);
      case 9: batch_.add_items()->set_gone(static_cast<std::uint32_t>(in.Number())); return;
      case 10: return Flush(in.Byte());
      default: daemon_->Disconnect(link_); return;
    }
  }
  void Flush(std::uint8_t how) {
    if (how == 255) batch_.set_sent_ns(1);
    daemon_->Send(link_, &batch_, how == 0 ? 0 : ++sequence_);
    batch_.Clear();
  }

 private:
  void Connect(std::uint32_t minor, std::uint32_t further_words) {
    words_ = ingest::kStepWords + further_words;
    link_ = daemon_->Connect(id_, minor, words_);
  }
  void AddRaw(Bytes& in) {
    v1::Batch raw;
    const std::string text = in.Text();
    (void)raw.ParseFromString(text);  // as far as it goes
    for (v1::Item& item : *raw.mutable_items()) batch_.add_items()->Swap(&item);
  }
  void Tell(Bytes& in) {
    static constexpr std::array<const char*, 6> kRuns = {"a", "b", "c", "d", "\xff\n\"", ""};
    const auto number = static_cast<std::uint32_t>(in.Number());
    const std::uint8_t segment = in.Byte();
    // 255: the honest one's own.
    state::ProducerInfo info = Producer(segment == 255 ? 1000 : segment % 32, kRuns[in.Byte() % kRuns.size()], in.Byte() % 8, 1 + in.Byte() % 8);
    info.attempt = std::string(1, static_cast<char>('1' + in.Byte() % 3));
    v1::Item::Producer* item = batch_.add_items()->mutable_producer();
    ingest::WriteProducer(info, number, item);
    const std::uint8_t odd = in.Byte();
    if (odd & 1) item->mutable_layout()->set_sizes(in.Byte() % 5, static_cast<std::uint32_t>(in.Number()));
    if (odd & 2) item->mutable_layout()->set_indices(in.Byte() % 5, static_cast<std::uint32_t>(in.Number()));
    if (odd & 4) item->mutable_layout()->set_shard_columns(static_cast<std::int64_t>(in.Word()));
    if (odd & 8) item->mutable_layout()->set_shard_offset(static_cast<std::int64_t>(in.Word()));
    if (odd & 16) item->mutable_layout()->set_vocab_size(static_cast<std::int64_t>(in.Word()));
    if (odd & 32) item->set_attempt_start_ns(static_cast<std::int64_t>(in.Word()));
    if (odd & 64) item->add_block_names(in.Text());
    if (odd & 128) item->set_run("x" + in.Text());
  }
  void AddSteps(Bytes& in) {
    v1::Item::StepRecords* item = batch_.add_items()->mutable_steps();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    const std::uint64_t first = in.Number();
    item->set_first_publication(first);
    item->set_received_ns(in.Number());
    const int count = 1 + in.Byte() % 4;
    const auto step = static_cast<std::int64_t>(in.Number());
    for (int i = 0; i < count; ++i) {
      lg_step_record record = Record(std::min<std::int64_t>(std::max<std::int64_t>(step, -1), 1 << 20));
      record.step = static_cast<std::int64_t>(static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(i));
      auto* words = reinterpret_cast<char*>(&record) + 8;
      for (int changes = in.Byte() % 8; changes > 0; --changes) {
        const std::size_t place = in.Byte() % ingest::kStepWords;
        const std::uint64_t value = in.Number();
        std::memcpy(words + 8 * place, &value, 8);
      }
      item->mutable_words()->append(words, std::size_t{ingest::kStepWords} * 8);
      item->mutable_words()->append((words_ - ingest::kStepWords) * std::size_t{8}, 'x');
    }
    if (in.Byte() == 255) item->mutable_words()->pop_back();
  }
  void AddEvent(Bytes& in) {
    v1::Item::EventRecord* item = batch_.add_items()->mutable_event();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_publication(in.Number());
    item->set_kind(in.Number());
    item->set_step(static_cast<std::int64_t>(in.Number()));
    item->set_phase(in.Number());
    item->set_value(in.Double());
    item->set_count(in.Number());
    item->set_text(in.Text());
    item->set_wall_ns(static_cast<std::int64_t>(in.Number()));
    item->set_received_ns(in.Number());
  }
  void AddLost(Bytes& in) {
    v1::Item::LostRange* item = batch_.add_items()->mutable_lost();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_events(in.Byte() % 2 == 1);
    item->set_first_publication(in.Number());
    item->set_records(in.Number());
    item->set_reason(in.Byte());
    item->set_noticed_ns(in.Number());
  }
  void AddLiveness(Bytes& in) {
    v1::Item::Liveness* item = batch_.add_items()->mutable_liveness();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_state(in.Byte());
    item->set_closed(in.Byte());
    item->set_drained(in.Byte() % 2 == 1);
    item->set_heartbeat_age_ns(in.Number());
    item->set_enqueued_step(static_cast<std::int64_t>(in.Number()));
    item->set_published_step(static_cast<std::int64_t>(in.Number()));
    item->set_entered_step(static_cast<std::int64_t>(in.Number()));
    item->set_last_call(in.Byte());
    item->set_last_call_age_ns(in.Number());
    item->set_phase(in.Byte());
    item->set_phase_age_ns(in.Number());
    item->set_seen_ns(in.Number());
  }

  Daemon* const daemon_;
  const std::string id_;
  std::uint32_t words_ = 0;
  std::shared_ptr<Link> link_;
  v1::Batch batch_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool quiet = [] {
    google::protobuf::SetLogHandler(nullptr);
    spdlog::set_level(spdlog::level::off);
    setenv("TMPDIR", "/dev/shm", 0);  // the store's: a disk would be most of the time
    return true;
  }();
  Bytes in(data, size);
  Daemon daemon;
  Hostile first(&daemon, 'x'), second(&daemon, 'y');
  for (std::size_t i = 0; i < kMaxOperations && !in.empty(); ++i) {
    const std::uint8_t what = in.Byte();
    if (what < 16) {
      daemon.Cycle(what * 50);
    } else if (what < 32) {
      daemon.HonestStep();
    } else {
      (what % 4 == 0 ? second : first).Do(in);
    }
  }
  first.Flush(1);
  second.Flush(1);
  daemon.Check();
  return 0;
}
