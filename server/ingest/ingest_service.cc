#include "server/ingest/ingest_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/ingest/forward_items.h"
#include "server/ingest/text_repair.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

constexpr std::size_t kSenderBytes = 16;
constexpr std::size_t kBatchFrameBytes = 16;  // around a batch in its message

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status CheckHello(const v1::Hello& hello) {
  if (hello.protocol() != kForwardProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("protocol ", hello.protocol(), " of lossgauge.v1.Ingest is not spoken here, ", kForwardProtocol,
                                                      " is: use a sidecar and a daemon of one release"));
  }
  if (hello.ring_abi_major() != LG_RING_ABI_MAJOR) {
    return absl::FailedPreconditionError(absl::StrCat("records of ring ABI ", hello.ring_abi_major(), ".", hello.ring_abi_minor(),
                                                      " are not known here, those of ", LG_RING_ABI_MAJOR, ".", LG_RING_ABI_MINOR, " are"));
  }
  if (hello.step_words() < kStepWords || hello.step_words() > kMaxStepWords) {
    return absl::InvalidArgumentError(absl::StrCat("hello.step_words: expected ", kStepWords, " to ", kMaxStepWords, ", got ", hello.step_words()));
  }
  if (hello.sender().size() != kSenderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("hello.sender: expected ", kSenderBytes, " bytes, got ", hello.sender().size()));
  }
  return absl::OkStatus();
}

}  // namespace

class IngestService::Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                    public SenderLink,
                                    public std::enable_shared_from_this<Stream> {
 public:
  Stream(IngestService* service, std::string peer, std::string client, std::shared_ptr<void> slot)
      : service_(service), peer_(std::move(peer)), client_(std::move(client)), slot_(std::move(slot)) {}

  void Begin() { StartRead(&received_); }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the sender ended the stream"));
    // Before it is parsed: of an empty batch as large as this the parts would take much more memory than their bytes.
    if (received_.Length() > service_->options_.max_batch_bytes + kBatchFrameBytes) return RefuseSize(received_.Length());
    const std::size_t length = received_.Length();
    request_.Clear();
    if (!grpc::SerializationTraits<v1::ForwardRequest>::Deserialize(&received_, &request_).ok()) {
      return Refuse(StreamRefusal::kMalformed, absl::InvalidArgumentError(absl::StrCat("a message of ", length, " bytes is no ForwardRequest")));
    }
    if (!greeted_) return Greet();
    if (!request_.has_batch()) return Refuse(StreamRefusal::kMalformed, absl::InvalidArgumentError("after the hello come batches only"));
    const std::size_t bytes = request_.batch().ByteSizeLong();
    if (bytes > service_->options_.max_batch_bytes) return RefuseSize(bytes);
    InboxEntry entry;
    entry.link = shared_from_this();
    entry.batch.reset(request_.release_batch());
    entry.bytes = entry.batch->SpaceUsedLong();  // many times its bytes on the wire where somebody sends nothing but empty items
    {
      const std::lock_guard lock(mutex_);
      ++untaken_;
      if (entry.batch->sequence() != 0) in_flight_.push_back(entry.batch->sequence());
    }
    service_->inbox_->Push(std::move(entry));
    DoneReading();
    ReadOn();
  }

  void Acknowledge(std::uint64_t sequence) override {
    {
      const std::lock_guard lock(mutex_);
      while (!in_flight_.empty() && in_flight_.front() <= sequence) in_flight_.pop_front();
      acknowledged_ = std::max(acknowledged_, sequence);
    }
    WriteOn();
    ReadOn();
  }

  void Taken() override {
    {
      const std::lock_guard lock(mutex_);
      --untaken_;
    }
    ReadOn();
  }

  void End(const absl::Status& status) override {
    {
      const std::lock_guard lock(mutex_);
      if (!ending_) ending_ = status;
    }
    FinishIfIdle();
  }

  void OnWriteDone(bool) override {
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
    }
    FinishIfIdle();
    WriteOn();
  }

  void OnCancel() override { End(absl::CancelledError("cancelled")); }

  void OnDone() override {
    const auto keep = shared_from_this();
    if (greeted_) {
      InboxEntry entry;
      entry.kind = InboxEntry::Kind::kClosed;
      entry.link = keep;
      service_->inbox_->Push(std::move(entry));
    }
    const std::lock_guard lock(service_->mutex_);
    service_->streams_.erase(keep);
  }

  void Refuse(StreamRefusal cause, const absl::Status& status) {
    const std::uint64_t count = service_->inbox_->Refuse(cause);
    if ((count & (count - 1)) == 0) {
      spdlog::warn("from node \"{}\" at {}: {} [{}, {} times]", node_, peer_, std::string(status.message()), kStreamRefusalNames[static_cast<std::size_t>(cause)], count);
    }
    End(status);
  }

 private:
  void RefuseSize(std::size_t bytes) {
    Refuse(StreamRefusal::kOversize,
           absl::ResourceExhaustedError(absl::StrCat("a batch of ", bytes, " bytes, at most ", service_->options_.max_batch_bytes, " are taken")));
  }

  void Greet() {
    if (!request_.has_hello()) return Refuse(StreamRefusal::kBadHello, absl::InvalidArgumentError("the first message is to be a hello"));
    node_ = RepairName(request_.hello().node(), kMaxRunBytes).name;
    if (const absl::Status status = CheckHello(request_.hello()); !status.ok()) return Refuse(StreamRefusal::kBadHello, status);
    InboxEntry entry;
    entry.kind = InboxEntry::Kind::kOpened;
    entry.link = shared_from_this();
    entry.hello = request_.hello();
    entry.client = client_;
    {
      const std::lock_guard lock(mutex_);
      greeted_ = true;
      welcome_ = true;
    }
    service_->inbox_->Push(std::move(entry));
    DoneReading();
    WriteOn();
    ReadOn();
  }

  // Only once the message is in the inbox: the drain thread reads on, too (Taken, Acknowledge), and a batch that overtook its predecessor would be a
  // gap, and the predecessor a repetition.
  void DoneReading() {
    const std::lock_guard lock(mutex_);
    reading_ = false;
  }

  // Reads another message if there is room for it. Who has nothing in the inbox may always add one: that bounds it by the number of senders.
  void ReadOn() {
    {
      const std::lock_guard lock(mutex_);
      if (ending_ || reading_ || in_flight_.size() >= service_->options_.max_batches_in_flight) return;
      if (untaken_ > 0 && !service_->inbox_->HasRoom()) return;
      reading_ = true;
      ++starting_;
    }
    StartRead(&received_);
    Started();
  }

  void WriteOn() {
    {
      const std::lock_guard lock(mutex_);
      if (ending_ || writing_) return;
      if (welcome_) {
        v1::Welcome* welcome = response_.mutable_welcome();
        welcome->set_instance(service_->options_.instance);
        welcome->set_max_batch_bytes(service_->options_.max_batch_bytes);
        welcome->set_max_batches_in_flight(service_->options_.max_batches_in_flight);
        welcome_ = false;
      } else if (acknowledged_ > told_) {
        response_.mutable_acknowledgement()->set_sequence(acknowledged_);
        told_ = acknowledged_;
      } else {
        return;
      }
      writing_ = true;
      ++starting_;
    }
    bool own_buffer = false;
    (void)grpc::SerializationTraits<v1::ForwardResponse>::Serialize(response_, &sent_, &own_buffer);
    StartWrite(&sent_);
    Started();
  }

  void Started() {
    {
      const std::lock_guard lock(mutex_);
      --starting_;
    }
    FinishIfIdle();
  }

  // gRPC wants nothing to be started after Finish, and no write to be on its way: whoever is the last at work finishes.
  void FinishIfIdle() {
    absl::Status status;
    {
      const std::lock_guard lock(mutex_);
      if (!ending_ || finished_ || writing_ || starting_ > 0) return;
      finished_ = true;
      status = *ending_;
    }
    Finish(ToGrpc(status));
  }

  IngestService* const service_;
  const std::string peer_;
  const std::string client_;
  const std::shared_ptr<void> slot_;
  std::string node_ = "unknown";
  grpc::ByteBuffer received_;
  grpc::ByteBuffer sent_;
  v1::ForwardRequest request_;
  v1::ForwardResponse response_;
  std::mutex mutex_;
  bool greeted_ = false;
  bool reading_ = true;
  bool writing_ = false;
  int starting_ = 0;  // threads within StartRead or StartWrite
  bool finished_ = false;
  bool welcome_ = false;
  std::optional<absl::Status> ending_;
  std::size_t untaken_ = 0;
  std::deque<std::uint64_t> in_flight_;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t told_ = 0;
};

IngestService::IngestService(const IngestServiceOptions& options, Inbox* inbox) : options_(options), inbox_(inbox) {}
IngestService::~IngestService() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* IngestService::Forward(grpc::CallbackServerContext* context) {
  absl::StatusOr<std::shared_ptr<void>> admitted = options_.admit ? options_.admit(*context) : std::shared_ptr<void>();
  auto stream = std::make_shared<Stream>(this, context->peer(), options_.client_of ? options_.client_of(*context) : context->peer(), admitted.ok() ? *std::move(admitted) : nullptr);
  bool closed = false, full = false;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
    full = streams_.size() >= options_.max_streams;
    streams_.insert(stream);  // OnDone takes it out
  }
  if (closed) {
    stream->End(absl::UnavailableError("the daemon shuts down"));
  } else if (!admitted.ok()) {
    stream->End(admitted.status());
  } else if (full) {
    stream->Refuse(StreamRefusal::kMaxStreams, absl::ResourceExhaustedError(absl::StrCat("already ", options_.max_streams, " streams")));
  } else {
    stream->Begin();
  }
  return stream.get();
}

void IngestService::Close() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->End(absl::UnavailableError("the daemon shuts down"));
}

}  // namespace lossgauge::ingest
