#include "tests/bench/fleet/sidecar.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

namespace lossgauge::fleet {
namespace {

constexpr std::uint32_t kStepWords = 76;  // of ring ABI minor 0
constexpr std::size_t kRecentBatches = 3;
constexpr std::int64_t kPauseNs = 200'000'000;
constexpr std::int64_t kBootNs = 1'000'000'000'000;
constexpr std::int64_t kAttemptStartNs = 1'750'000'000'000'000'000;

std::int64_t SystemNs() { return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

std::string SegmentOf(const std::string& run, const std::string& attempt, std::uint32_t rank) {
  std::uint64_t words[2] = {lg_ring_mix(rank + 1), 0x666c656574000000};
  for (const std::string* text : {&run, &attempt}) {
    for (const char c : *text) words[0] = lg_ring_mix(words[0] + static_cast<unsigned char>(c) + 1);
  }
  return {reinterpret_cast<const char*>(words), sizeof words};
}

}  // namespace

// One connection. It holds the request that is being written, and ends itself when the daemon or we break it.
class Sidecar::Stream final : public grpc::ClientBidiReactor<v1::ForwardRequest, v1::ForwardResponse>, public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(Sidecar* owner) : owner_(owner) {
    if (owner->options_.compress) context_.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  }

  void Start(const v1::Hello& hello) {
    auto request = std::make_shared<v1::ForwardRequest>();
    *request->mutable_hello() = hello;
    writing_ = std::move(request);
    owner_->stub_->async()->Forward(&context_, this);
    AddHold();  // writes begin outside of reactions
    StartWrite(writing_.get());
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  // The following with the owner's mutex held.
  bool CanWrite() const { return is_welcome_ && writing_ == nullptr && !broken_; }
  bool broken() const { return broken_; }
  bool done() const { return done_; }
  std::uint64_t sent_sequence = 0;  // the highest
  std::uint64_t max_in_flight = 1;
  void Write(std::shared_ptr<v1::ForwardRequest> request) {
    writing_ = std::move(request);
    StartWrite(writing_.get());
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(owner_->mutex_);
    if (!ok) {
      Break();
      return;
    }
    if (response_.has_welcome()) {
      is_welcome_ = true;
      max_in_flight = std::max<std::uint64_t>(1, response_.welcome().max_batches_in_flight());
    } else {
      const std::uint64_t sequence = response_.acknowledgement().sequence();
      auto& kept = owner_->kept_;
      while (!kept.empty() && kept.front()->batch().sequence() <= sequence) {
        owner_->recent_.push_back(kept.front());
        if (owner_->recent_.size() > kRecentBatches) owner_->recent_.pop_front();
        kept.pop_front();
        ++owner_->counters_->acknowledged;
      }
    }
    StartRead(&response_);
    owner_->Flush();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(owner_->mutex_);
    writing_ = nullptr;
    if (!ok) {
      Break();
      return;
    }
    owner_->Flush();
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(owner_->mutex_);
    if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED) {
      owner_->last_error_ = std::to_string(status.error_code()) + " " + status.error_message();
    }
    done_ = true;
  }

 private:
  void Break() {
    if (std::exchange(broken_, true)) return;
    RemoveHold();
    context_.TryCancel();
  }

  Sidecar* const owner_;
  grpc::ClientContext context_;
  v1::ForwardResponse response_;
  std::shared_ptr<v1::ForwardRequest> writing_;
  bool is_welcome_ = false;
  bool broken_ = false;
  bool done_ = false;
};

Sidecar::Sidecar(const SidecarOptions& options, const Job& job, SidecarCounters* counters)
    : options_(options), job_(job), counters_(counters), start_ns_(NowNs()), alive_(options.ranks, true) {
  const std::uint64_t words[2] = {lg_ring_mix(options.node + 1), lg_ring_mix(std::random_device()())};
  sender_.assign(reinterpret_cast<const char*>(words), sizeof words);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  channel_ = grpc::CreateCustomChannel(options.daemon, grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::Ingest::NewStub(channel_);
}

Sidecar::~Sidecar() {
  BreakConnection();
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (std::all_of(ended_.begin(), ended_.end(), [](const auto& stream) { return stream->done(); })) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::int64_t Sidecar::NowNs() const { return SystemNs() + static_cast<std::int64_t>(options_.skew_seconds * 1e9); }

void Sidecar::AddProducers(v1::Batch* batch) const {
  for (std::uint32_t i = 0; i < options_.ranks; ++i) {
    const lg_layout layout = job_.LayoutOf(options_.first_rank + i);
    v1::Item::Producer& producer = *batch->add_items()->mutable_producer();
    producer.set_number(i + 1);
    producer.set_segment(SegmentOf(job_.options().run, job_.options().attempt, layout.rank));
    producer.set_run(job_.options().run);
    producer.set_attempt(job_.options().attempt);
    producer.set_attempt_start_ns(kAttemptStartNs);
    v1::Item::Layout& out = *producer.mutable_layout();
    out.set_world_size(layout.world_size);
    out.set_rank(layout.rank);
    for (const lg_axis& axis : {layout.dp, layout.tp, layout.pp, layout.cp, layout.ep}) {
      out.add_sizes(axis.size);
      out.add_indices(axis.index);
    }
    out.set_has_loss(layout.has_loss != 0);
    out.set_gradient_reduction(layout.gradient_reduction);
    out.set_shard_offset(layout.shard_offset);
    out.set_shard_columns(layout.shard_columns);
    out.set_vocab_size(layout.vocab_size);
    producer.add_block_names("train");
  }
}

namespace {

void FillLiveness(std::uint32_t number, bool alive, std::int64_t step, std::int64_t now_ns, v1::Item::Liveness* out) {
  out->set_producer(number);
  out->set_state(alive ? 0 : 2);
  out->set_drained(!alive);
  out->set_heartbeat_age_ns(alive ? 100'000'000 : 3'000'000'000);
  out->set_enqueued_step(step);
  out->set_published_step(step);
  out->set_entered_step(step);
  out->set_last_call(LG_CALL_PUBLISH);
  out->set_last_call_age_ns(1'000'000);
  out->set_phase(LG_PHASE_TRAIN);
  out->set_seen_ns(static_cast<std::uint64_t>(now_ns));
}

}  // namespace

void Sidecar::Publish(Job& job, std::int64_t step, bool twice, bool shuffled, bool late) {
  const std::int64_t now = NowNs();
  v1::Batch batch;
  for (std::uint32_t i = 0; i < options_.ranks; ++i) {
    const std::uint32_t rank = options_.first_rank + i;
    if (job.Publishes(rank)) {
      lg_step_record record = job.RecordOf(rank);
      record.boot_ns = kBootNs + step * options_.step_ns;
      record.wall_ns = start_ns_ + step * options_.step_ns;
      v1::Item::StepRecords& steps = *batch.add_items()->mutable_steps();
      steps.set_producer(i + 1);
      steps.set_first_publication(job.published(rank));
      steps.set_words(reinterpret_cast<const char*>(&record) + 8, kStepWords * 8);
      steps.set_received_ns(static_cast<std::uint64_t>(now));
    }
    if (alive_[i] && !job.IsAlive(rank)) {
      alive_[i] = false;
      FillLiveness(i + 1, false, step - 1, now, batch.add_items()->mutable_liveness());
    }
  }
  if (shuffled) {
    auto& items = *batch.mutable_items();
    for (int i = items.size() - 1; i > 0; --i) {
      items.SwapElements(i, static_cast<int>(lg_ring_mix(static_cast<std::uint64_t>(step) * 977 + static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(i + 1)));
    }
  }
  const std::lock_guard lock(mutex_);
  Keep(std::move(batch));
  if (twice) outgoing_.push_back(kept_.back());
  if (late) {
    late_.push_back(outgoing_.back());
    outgoing_.pop_back();
    return;
  }
  if (!late_.empty()) outgoing_.insert(outgoing_.end() - (twice ? 2 : 1), late_.begin(), late_.end());
  late_.clear();
  Flush();
}

void Sidecar::TellLiveness(const Job& job, std::int64_t step) {
  auto request = std::make_shared<v1::ForwardRequest>();
  v1::Batch& batch = *request->mutable_batch();
  for (std::uint32_t i = 0; i < options_.ranks; ++i) {
    if (job.IsAlive(options_.first_rank + i)) FillLiveness(i + 1, true, step, NowNs(), batch.add_items()->mutable_liveness());
  }
  const std::lock_guard lock(mutex_);
  liveness_ = std::move(request);
  Flush();
}

void Sidecar::End(const Job& job, std::int64_t step) {
  const std::int64_t now = NowNs();
  v1::Batch batch;
  for (std::uint32_t i = 0; i < options_.ranks; ++i) {
    if (!job.IsAlive(options_.first_rank + i)) continue;
    v1::Item::EventRecord& event = *batch.add_items()->mutable_event();
    event.set_producer(i + 1);
    event.set_publication(1);
    event.set_kind(LG_EVENT_END);
    event.set_step(step);
    event.set_count(LG_CLOSE_FINISHED);
    event.set_wall_ns(now);
    event.set_received_ns(static_cast<std::uint64_t>(now));
    v1::Item::Liveness& life = *batch.add_items()->mutable_liveness();
    FillLiveness(i + 1, true, step, now, &life);
    life.set_state(3);
    life.set_closed(LG_CLOSE_FINISHED);
    life.set_drained(true);
  }
  const std::lock_guard lock(mutex_);
  liveness_ = nullptr;
  Keep(std::move(batch));
  Flush();
}

void Sidecar::Keep(v1::Batch batch) {
  auto request = std::make_shared<v1::ForwardRequest>();
  batch.set_sequence(next_sequence_++);
  *request->mutable_batch() = std::move(batch);
  kept_.push_back(request);
  outgoing_.push_back(std::move(request));
  std::uint64_t most = counters_->most_unacknowledged;
  while (kept_.size() > most && !counters_->most_unacknowledged.compare_exchange_weak(most, kept_.size())) {
  }
}

void Sidecar::BreakConnection() {
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr) return;
  stream_->Cancel();
  ended_.push_back(std::move(stream_));
  stream_ = nullptr;
}

void Sidecar::Restart() {
  BreakConnection();
  const std::lock_guard lock(mutex_);
  std::deque<std::shared_ptr<v1::ForwardRequest>> again = std::move(recent_);
  again.insert(again.end(), kept_.begin(), kept_.end());
  recent_.clear();
  kept_.clear();
  late_.clear();
  outgoing_.clear();
  for (const auto& request : again) Keep(request->batch());
}

void Sidecar::Tick() {
  std::vector<std::shared_ptr<Stream>> gone;  // destroyed without the mutex
  const std::lock_guard lock(mutex_);
  if (stream_ != nullptr && stream_->broken()) {
    ended_.push_back(std::move(stream_));
    stream_ = nullptr;
  }
  const auto is_done = [](const auto& stream) { return stream->done(); };
  std::copy_if(ended_.begin(), ended_.end(), std::back_inserter(gone), is_done);
  ended_.erase(std::remove_if(ended_.begin(), ended_.end(), is_done), ended_.end());
  if (stream_ == nullptr && SystemNs() >= next_connect_ns_) Connect();
}

void Sidecar::Connect() {
  next_connect_ns_ = SystemNs() + kPauseNs;
  // What was on the way comes again, and the daemon hears of the producers first: their numbers are this stream's.
  outgoing_.assign(kept_.begin(), kept_.end() - static_cast<std::ptrdiff_t>(late_.size()));
  auto producers = std::make_shared<v1::ForwardRequest>();
  AddProducers(producers->mutable_batch());
  outgoing_.push_front(std::move(producers));
  v1::Hello hello;
  hello.set_protocol(1);
  hello.set_ring_abi_major(LG_RING_ABI_MAJOR);
  hello.set_ring_abi_minor(LG_RING_ABI_MINOR);
  hello.set_step_words(kStepWords);
  hello.set_sender(sender_);
  hello.set_node("node" + std::to_string(options_.node));
  hello.set_newest_sequence(kept_.empty() ? 0 : kept_.back()->batch().sequence());
  stream_ = std::make_shared<Stream>(this);
  ++counters_->connections;
  stream_->Start(hello);
}

void Sidecar::Flush() {
  if (stream_ == nullptr || !stream_->CanWrite()) return;
  std::shared_ptr<v1::ForwardRequest> request;
  const std::uint64_t acknowledged = (kept_.empty() ? next_sequence_ : kept_.front()->batch().sequence()) - 1;
  if (!outgoing_.empty() && (outgoing_.front()->batch().sequence() == 0 || stream_->sent_sequence < acknowledged + stream_->max_in_flight)) {
    request = outgoing_.front();
    outgoing_.pop_front();
    stream_->sent_sequence = std::max(stream_->sent_sequence, request->batch().sequence());
  } else if (liveness_ != nullptr && outgoing_.empty()) {
    request = std::exchange(liveness_, nullptr);
  } else {
    return;
  }
  request->mutable_batch()->set_sent_ns(static_cast<std::uint64_t>(NowNs()));
  ++counters_->batches;
  counters_->bytes += request->ByteSizeLong();
  stream_->Write(std::move(request));
}

std::size_t Sidecar::unacknowledged() {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

std::string Sidecar::last_error() {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

}  // namespace lossgauge::fleet
