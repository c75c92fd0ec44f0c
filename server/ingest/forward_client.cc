#include "server/ingest/forward_client.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{256} << 10;  // frames are gathered up to about this
constexpr std::int64_t kWelcomeWithinNs = 10'000'000'000;
constexpr std::chrono::seconds kEndWithin(1);
constexpr std::uint32_t kLeastInFlight = 1;

std::string StatusText(const grpc::Status& status) {
  return absl::StrCat(status.error_code() == grpc::StatusCode::OK ? "the daemon ended the stream" : status.error_message(), " [",
                      static_cast<int>(status.error_code()), "]");
}

}  // namespace

struct ForwardClient::Session {
  std::unique_ptr<Stream> stream;
  std::uint64_t next = 1;                  // sequence to be sent
  std::uint64_t max_batch_bytes = kMessageBytes;
  std::uint32_t max_in_flight = kLeastInFlight;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> in_flight;  // sequence and records; guarded by mutex_
  bool broken = false;                     // guarded by mutex_
  state::TimeNs next_send_ns = 0;
  state::TimeNs next_liveness_ns = 0;
};

ForwardClient::ForwardClient(ForwardClientOptions options, Spool* spool, const Forwarder* forwarder, state::Clock* clock)
    : options_(std::move(options)), spool_(spool), forwarder_(forwarder), clock_(clock) {
  if (!options_.renew_credentials) Connect(grpc::InsecureChannelCredentials());
}

void ForwardClient::Connect(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // A daemon that is cut off is noticed within 15 s, also while there is nothing to send.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The pauses are ours. gRPC's own growing ones would refuse to connect at the end of ours, which then grow once more: a daemon that is away for half a
  // second was called again after five.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(options_.first_pause_ns / 2'000'000));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(options_.first_pause_ns / 2'000'000));
  stub_ = v1::Ingest::NewStub(grpc::CreateCustomChannel(options_.address, credentials, arguments));
}

ForwardClient::~ForwardClient() { Stop(0); }

void ForwardClient::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void ForwardClient::Wake() {
  {
    const std::lock_guard lock(mutex_);
    has_frame_ = true;
  }
  wake_.notify_all();
}

bool ForwardClient::Pause(std::int64_t ns) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return stop_; });
}

void ForwardClient::Loop() {
  std::int64_t pause_ns = options_.first_pause_ns;
  std::string last_reason;
  for (;;) {
    const std::uint64_t acknowledged_before = stats().acknowledged;
    const std::string reason = RunSession();
    {
      const std::lock_guard lock(mutex_);
      context_ = nullptr;
      stats_.connected = false;
      if (stop_) return;
      ++stats_.failures;
      if (stats_.acknowledged > acknowledged_before) pause_ns = options_.first_pause_ns;
    }
    if (reason != last_reason) spdlog::warn("forwarding to {}: {}; trying again, records are kept meanwhile", options_.address, reason);
    last_reason = reason;
    if (!Pause(pause_ns)) return;
    pause_ns = std::min(pause_ns * 2, options_.longest_pause_ns);
  }
}

std::string ForwardClient::RunSession() {
  if (options_.renew_credentials) {
    if (const auto credentials = options_.renew_credentials(); credentials != nullptr) Connect(credentials);
    if (stub_ == nullptr) return "certificates or key cannot be read";
  }
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  context.set_wait_for_ready(false);
  if (options_.prepare) options_.prepare(&context);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return "stopping";
    context_ = &context;
  }
  Session session;
  session.next = stats().acknowledged + 1;
  session.stream = stub_->Forward(&context);
  v1::ForwardRequest request;
  v1::Hello* hello = request.mutable_hello();
  hello->set_protocol(kForwardProtocol);
  hello->set_ring_abi_major(LG_RING_ABI_MAJOR);
  hello->set_ring_abi_minor(LG_RING_ABI_MINOR);
  hello->set_step_words(kStepWords);
  hello->set_sender(options_.sender);
  hello->set_node(options_.node);
  const std::uint64_t newest = spool_->newest();
  hello->set_newest_sequence(newest >= session.next ? newest : 0);

  // A daemon that takes the connection and says nothing must not hold us for ever.
  std::mutex welcome_mutex;
  std::condition_variable welcome_seen;
  bool welcomed = false, silent = false;
  std::thread watchdog([&] {
    std::unique_lock lock(welcome_mutex);
    silent = !welcome_seen.wait_for(lock, std::chrono::nanoseconds(kWelcomeWithinNs), [&] { return welcomed; });
    if (silent) context.TryCancel();
  });
  v1::ForwardResponse response;
  const bool answered = session.stream->Write(request) && session.stream->Read(&response);
  {
    const std::lock_guard lock(welcome_mutex);
    welcomed = true;
  }
  welcome_seen.notify_all();
  watchdog.join();
  if (!answered) {  // it has ended: cancelling it would put a status of our own in the place of the one that says why
    const grpc::Status status = session.stream->Finish();
    return silent ? absl::StrCat("no answer within ", kWelcomeWithinNs / 1'000'000'000, " s") : StatusText(status);
  }
  if (!response.has_welcome()) {
    context.TryCancel();
    session.stream->Finish();
    return "its first answer is no Welcome";
  }
  session.max_batch_bytes = std::max<std::uint64_t>(response.welcome().max_batch_bytes(), 1024);
  session.max_in_flight = std::max(response.welcome().max_batches_in_flight(), kLeastInFlight);
  {
    const std::lock_guard lock(mutex_);
    stats_.connected = true;
    ++stats_.connects;
  }
  spdlog::info("forwarding to {} (instance {})", options_.address, response.welcome().instance());

  std::thread acknowledgements([&] {
    v1::ForwardResponse message;
    while (session.stream->Read(&message)) {
      if (!message.has_acknowledgement()) continue;
      const std::uint64_t sequence = message.acknowledgement().sequence();
      {
        const std::lock_guard lock(mutex_);
        stats_.acknowledged = std::max(stats_.acknowledged, std::min(sequence, spool_->newest()));
        while (!session.in_flight.empty() && session.in_flight.front().first <= sequence) {
          stats_.records_acknowledged += session.in_flight.front().second;
          session.in_flight.pop_front();
        }
      }
      spool_->Release(options_.reader, std::min(sequence, spool_->newest()));
      wake_.notify_all();
    }
    {
      const std::lock_guard lock(mutex_);
      session.broken = true;
    }
    wake_.notify_all();
  });

  bool stands = SendDefinitions(&session);
  while (stands) {
    stands = SendFrames(&session) && SendLiveness(&session);
    std::unique_lock lock(mutex_);
    stands = stands && !session.broken && !stop_;
    if (!stands) break;
    const state::TimeNs now = clock_->NowNs();
    const bool has_room = session.in_flight.size() < session.max_in_flight;
    const bool has_more = session.next <= spool_->newest();
    // With something to send and room for it, until its time; else until an acknowledgement, a frame or the next word of liveness.
    const std::int64_t until = has_more && has_room ? session.next_send_ns : session.next_liveness_ns;
    has_frame_ = false;
    if (flushing_ && has_more && has_room) continue;
    const std::size_t in_flight = session.in_flight.size();
    wake_.wait_for(lock, std::chrono::nanoseconds(std::clamp<std::int64_t>(until - now, 1'000'000, options_.liveness_every_ns)), [&] {
      return stop_ || session.broken || (flushing_ && has_more && has_room) || (has_frame_ && !has_more) ||
             (!has_room && session.in_flight.size() < in_flight);
    });
  }
  {
    std::unique_lock lock(mutex_);
    // Where nothing can be written any more, the end with its reason is on the way.
    wake_.wait_for(lock, kEndWithin, [&] { return stop_ || session.broken; });
    if (!session.broken) context.TryCancel();
  }
  acknowledgements.join();
  const grpc::Status status = session.stream->Finish();
  return StatusText(status);
}

bool ForwardClient::Send(Session* session, v1::Batch* batch) {
  v1::ForwardRequest request;
  request.mutable_batch()->Swap(batch);
  request.mutable_batch()->set_sent_ns(static_cast<std::uint64_t>(clock_->NowNs()));
  return session->stream->Write(request);
}

// The stream begins in the middle of a file: what was told of producers before that place.
bool ForwardClient::SendDefinitions(Session* session) {
  std::map<std::uint32_t, v1::Item> told;
  for (const SpoolFrame& frame : spool_->Before(session->next)) {
    v1::Batch batch;
    if (!batch.ParseFromString(frame.bytes)) continue;
    for (v1::Item& item : *batch.mutable_items()) {
      if (item.has_producer()) told[item.producer().number()] = std::move(item);
    }
  }
  v1::Batch batch;
  for (auto& [number, item] : told) {
    *batch.add_items() = std::move(item);
    if (batch.items_size() < 256) continue;
    if (!Send(session, &batch)) return false;
    batch.Clear();
  }
  return batch.items_size() == 0 || Send(session, &batch);
}

// All frames that may go now.
bool ForwardClient::SendFrames(Session* session) {
  bool is_flushing = false;
  {
    const std::lock_guard lock(mutex_);
    is_flushing = flushing_;
  }
  if (clock_->NowNs() < session->next_send_ns && !is_flushing) return true;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_ || session->broken || session->in_flight.size() >= session->max_in_flight) return !stop_ && !session->broken;
    }
    v1::Batch batch;
    std::size_t bytes = 0;
    std::uint64_t records = 0, last = 0;
    const std::size_t limit = std::min<std::size_t>(kMessageBytes, session->max_batch_bytes / 2);
    while (bytes < limit) {
      const std::optional<SpoolFrame> frame = spool_->Read(session->next);
      if (!frame || (bytes > 0 && bytes + frame->bytes.size() > session->max_batch_bytes - 64)) break;
      session->next = frame->sequence + 1;
      last = frame->sequence;
      // Items add up. A frame that cannot be read back is a gap, as if it had been dropped.
      if (!batch.MergeFromString(frame->bytes)) continue;
      bytes += frame->bytes.size();
      records += frame->records;
    }
    if (last == 0) return true;
    batch.set_sequence(last);
    {
      const std::lock_guard lock(mutex_);
      session->in_flight.emplace_back(last, records);
      ++stats_.batches_sent;
      stats_.records_sent += records;
      stats_.bytes_sent += bytes;
    }
    session->next_send_ns = clock_->NowNs() + options_.send_every_ns;
    if (!Send(session, &batch)) return false;
    if (bytes < limit) return true;  // that was all there was
  }
}

bool ForwardClient::SendLiveness(Session* session) {
  if (clock_->NowNs() < session->next_liveness_ns) return true;
  session->next_liveness_ns = clock_->NowNs() + options_.liveness_every_ns;
  const std::shared_ptr<const v1::Batch> liveness = forwarder_->liveness();
  v1::Batch batch;
  // Who lacks records would hear of an end before it; an empty word says at least that this node is there.
  if (session->next > spool_->newest()) batch = *liveness;
  return Send(session, &batch);
}

void ForwardClient::Stop(std::int64_t limit_ns) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    flushing_ = true;
    wake_.notify_all();
    const std::uint64_t newest = spool_->newest();
    const auto is_sent = [&] { return !stats_.connected || stats_.acknowledged >= newest; };
    // What is not acknowledged stays in the spool; waiting only spares sending it again.
    for (std::int64_t waited = 0; waited < limit_ns && !is_sent(); waited += 20'000'000) wake_.wait_for(lock, std::chrono::milliseconds(20));
    stop_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  wake_.notify_all();
  thread_.join();
}

ForwardClientStats ForwardClient::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace lossgauge::ingest
