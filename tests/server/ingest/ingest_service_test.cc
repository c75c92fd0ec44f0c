// lossgauge.v1.Ingest over a real connection: greetings, refusals, limits, and a client that finds its daemon again.
#include "server/ingest/ingest_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "server/ingest/forward_client.h"
#include "server/ingest/forward_items.h"
#include "server/ingest/forwarder.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

class IngestServiceTest : public ::testing::Test {
 protected:
  IngestServiceTest() {
    spdlog::set_level(spdlog::level::off);
    options_.max_batch_bytes = 4096;
    options_.max_batches_in_flight = 3;
    options_.instance = "daemon-1";
    Listen();
  }
  ~IngestServiceTest() override { Shut(); }
  void Listen() {
    service_ = std::make_unique<IngestService>(options_, &inbox_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_), grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_GT(port, 0);
    port_ = port;
  }
  void Shut() {
    service_->Close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    server_.reset();
    service_.reset();
  }
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<v1::Ingest::Stub> stub;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream;
    v1::ForwardResponse response;
  };
  std::unique_ptr<Call> Open() {
    auto call = std::make_unique<Call>();
    call->stub = v1::Ingest::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials()));
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    call->context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    call->stream = call->stub->Forward(&call->context);
    return call;
  }
  static v1::ForwardRequest Hello() {
    v1::ForwardRequest request;
    v1::Hello* hello = request.mutable_hello();
    hello->set_protocol(kForwardProtocol);
    hello->set_ring_abi_major(LG_RING_ABI_MAJOR);
    hello->set_ring_abi_minor(LG_RING_ABI_MINOR);
    hello->set_step_words(kStepWords);
    hello->set_sender("0123456789abcdef");
    hello->set_node("node");
    return request;
  }
  static v1::ForwardRequest BatchOf(std::uint64_t sequence, std::size_t bytes = 0) {
    v1::ForwardRequest request;
    request.mutable_batch()->set_sequence(sequence);
    if (bytes > 0) request.mutable_batch()->add_items()->mutable_event()->set_text(std::string(bytes, 'x'));
    return request;
  }
  // How a stream ends that begins with this.
  grpc::Status EndOf(const v1::ForwardRequest& request) {
    auto call = Open();
    call->stream->Write(request);
    while (call->stream->Read(&call->response)) {
    }
    return call->stream->Finish();
  }
  // Bytes as they are behind a hello; the stream's end.
  grpc::Status EndOfBytes(const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials());
    const grpc::internal::RpcMethod method("/lossgauge.v1.Ingest/Forward", grpc::internal::RpcMethod::BIDI_STREAMING);
    const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(channel.get(), method, &context));
    for (const std::string& text : {Hello().SerializeAsString(), bytes}) {
      const grpc::Slice slice(text);
      stream->Write(grpc::ByteBuffer(&slice, 1));
    }
    grpc::ByteBuffer answer;
    while (stream->Read(&answer)) {
    }
    return stream->Finish();
  }
  InboxEntry Take() {
    InboxEntry entry;
    for (int tries = 0; tries < 2000 && !inbox_.Take(&entry); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_NE(entry.link, nullptr);
    return entry;
  }

  IngestServiceOptions options_;
  Inbox inbox_{1 << 20};
  int port_ = 0;
  std::unique_ptr<IngestService> service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(IngestServiceTest, WelcomesAndAcknowledges) {
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(Hello()));
  ASSERT_TRUE(call->stream->Read(&call->response));
  EXPECT_EQ(call->response.welcome().instance(), "daemon-1");
  EXPECT_EQ(call->response.welcome().max_batch_bytes(), 4096u);
  EXPECT_EQ(call->response.welcome().max_batches_in_flight(), 3u);
  EXPECT_EQ(Take().kind, InboxEntry::Kind::kOpened);
  ASSERT_TRUE(call->stream->Write(BatchOf(1)));
  ASSERT_TRUE(call->stream->Write(BatchOf(2)));
  InboxEntry batch = Take();
  EXPECT_EQ(batch.batch->sequence(), 1u);
  batch.link->Taken();
  EXPECT_EQ(Take().batch->sequence(), 2u);
  batch.link->Acknowledge(2);
  ASSERT_TRUE(call->stream->Read(&call->response));
  EXPECT_EQ(call->response.acknowledgement().sequence(), 2u);
  batch.link->End(absl::UnavailableError("enough"));
  EXPECT_FALSE(call->stream->Read(&call->response));
  EXPECT_EQ(call->stream->Finish().error_message(), "enough");
  EXPECT_EQ(Take().kind, InboxEntry::Kind::kClosed);
}

TEST_F(IngestServiceTest, ReadsNoMoreThanItMayHoldUnacknowledged) {
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(Hello()));
  InboxEntry opened = Take();
  for (std::uint64_t sequence = 1; sequence <= 5; ++sequence) ASSERT_TRUE(call->stream->Write(BatchOf(sequence)));
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    EXPECT_EQ(Take().batch->sequence(), sequence);
    opened.link->Taken();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  InboxEntry none;
  EXPECT_FALSE(inbox_.Take(&none)) << "three are on the way";
  opened.link->Acknowledge(1);
  EXPECT_EQ(Take().batch->sequence(), 4u);
}

// Acknowledgements come from the drain thread while gRPC's threads read: none of them may overtake a batch with the next one.
TEST_F(IngestServiceTest, BatchesStayInOrderWhileOthersAcknowledge) {
  constexpr std::uint64_t kBatches = 300;
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(Hello()));
  InboxEntry opened = Take();
  std::uint64_t next = 1;
  bool in_order = true;
  std::thread drain([&] {
    while (next <= kBatches) {
      InboxEntry entry;
      if (!inbox_.Take(&entry)) {
        std::this_thread::yield();
        continue;
      }
      if (entry.kind != InboxEntry::Kind::kBatch) break;
      in_order = in_order && entry.batch->sequence() == next;
      next = std::max(next, entry.batch->sequence()) + 1;
      opened.link->Acknowledge(entry.batch->sequence());
      opened.link->Taken();
    }
  });
  std::thread acknowledgements([&] {
    while (call->stream->Read(&call->response)) {
    }
  });
  for (std::uint64_t sequence = 1; sequence <= kBatches; ++sequence) {
    if (!call->stream->Write(BatchOf(sequence))) break;
  }
  drain.join();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(next, kBatches + 1);
  call->context.TryCancel();
  acknowledgements.join();
}

TEST_F(IngestServiceTest, RefusesWhatItDoesNotSpeakAndNamesBothVersions) {
  v1::ForwardRequest request = Hello();
  request.mutable_hello()->set_protocol(2);
  grpc::Status status = EndOf(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("protocol 2"), std::string::npos);
  request = Hello();
  request.mutable_hello()->set_ring_abi_major(9);
  status = EndOf(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("ABI 9.0"), std::string::npos);
  EXPECT_NE(status.error_message().find("1.0"), std::string::npos);
  request = Hello();
  request.mutable_hello()->set_step_words(kStepWords - 1);
  EXPECT_EQ(EndOf(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Hello();
  request.mutable_hello()->set_sender("short");
  EXPECT_EQ(EndOf(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(EndOf(BatchOf(1)).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "no hello";
  InboxEntry none;
  EXPECT_FALSE(inbox_.Take(&none)) << "the drain thread hears nothing of all that";
  EXPECT_EQ(inbox_.refused(StreamRefusal::kBadHello), 5u);
}

TEST_F(IngestServiceTest, ABatchBeyondTheLimitEndsItsStream) {
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(Hello()));
  ASSERT_TRUE(call->stream->Write(BatchOf(1, 5000)));
  while (call->stream->Read(&call->response)) {
  }
  const grpc::Status status = call->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("at most 4096"), std::string::npos);
  EXPECT_EQ(inbox_.refused(StreamRefusal::kOversize), 1u);
}

TEST_F(IngestServiceTest, BytesThatAreNoMessageEndTheirStreamAndAreCounted) {
  const grpc::Status status = EndOfBytes(std::string("\x12\xff\xff\xff\xff\x7f", 6));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("no ForwardRequest"), std::string::npos);
  EXPECT_EQ(EndOfBytes("").error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "neither hello nor batch";
  EXPECT_EQ(inbox_.refused(StreamRefusal::kMalformed), 2u);
  EXPECT_EQ(EndOfBytes(std::string(5000, '\x7f')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "the size is looked at first";
  EXPECT_EQ(inbox_.refused(StreamRefusal::kOversize), 1u);
}

// A batch of nothing but empty items takes a hundred times its bytes on the wire: what it takes is what fills the inbox.
TEST_F(IngestServiceTest, TheInboxCountsMemoryAndNotBytesOnTheWire) {
  v1::ForwardRequest request = BatchOf(1);
  for (int i = 0; i < 1000; ++i) request.mutable_batch()->add_items();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(Hello()));
  ASSERT_TRUE(call->stream->Write(request));
  EXPECT_EQ(Take().kind, InboxEntry::Kind::kOpened);
  const InboxEntry batch = Take();
  ASSERT_NE(batch.batch, nullptr);
  EXPECT_GT(batch.bytes, 16 * request.ByteSizeLong());
  call->context.TryCancel();
}

TEST_F(IngestServiceTest, WhatAdmitsAStreamIsHeldForAsLongAsItLasts) {
  Shut();
  std::weak_ptr<void> held;
  options_.admit = [&held](const grpc::ServerContextBase&) -> absl::StatusOr<std::shared_ptr<void>> {
    if (!held.expired()) return absl::ResourceExhaustedError("one at a time");
    const std::shared_ptr<void> slot = std::make_shared<int>(1);
    held = slot;
    return slot;
  };
  options_.max_streams = 1;
  Listen();
  auto first = Open();
  ASSERT_TRUE(first->stream->Write(Hello()));
  ASSERT_TRUE(first->stream->Read(&first->response));
  EXPECT_EQ(EndOf(Hello()).error_message(), "one at a time");
  first->context.TryCancel();
  while (first->stream->Read(&first->response)) {
  }
  (void)first->stream->Finish();
  // Until gRPC tells the service that the stream is over, and the inbox has let go of its link.
  for (int tries = 0; tries < 2000 && !held.expired(); ++tries) {
    InboxEntry entry;
    while (inbox_.Take(&entry)) entry = {};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(held.expired());
}

// The client against the service, with a drain thread that acknowledges everything: the daemon goes and comes back.
TEST_F(IngestServiceTest, AClientFindsItsDaemonAgainAndSendsWhatWasNotAcknowledged) {
  auto spool = Spool::Open({});
  ASSERT_TRUE(spool.ok());
  Forwarder forwarder({}, spool->get(), [] {});
  state::SystemClock clock;
  ForwardClientOptions options;
  options.address = "127.0.0.1:" + std::to_string(port_);
  options.sender = "0123456789abcdef";
  options.node = "node";
  options.send_every_ns = 1'000'000;
  ForwardClient client(options, spool->get(), &forwarder, &clock);
  client.Start();
  EXPECT_EQ(Take().kind, InboxEntry::Kind::kOpened);
  const auto append = [&](const std::string& text) {
    v1::Batch batch;
    batch.add_items()->mutable_event()->set_text(text);
    EXPECT_TRUE((*spool)->Append(batch.SerializeAsString(), 1, [] { return ""; }).ok());
    client.Wake();
  };
  const auto take_batch = [&] {
    for (;;) {
      InboxEntry entry = Take();
      if (entry.link == nullptr) return entry;
      if (entry.kind != InboxEntry::Kind::kBatch) continue;
      entry.link->Taken();
      if (entry.batch->sequence() != 0) return entry;
    }
  };
  append("first");
  InboxEntry first = take_batch();
  ASSERT_NE(first.batch, nullptr);
  EXPECT_EQ(first.batch->items(0).event().text(), "first");
  first.link->Acknowledge(first.batch->sequence());
  append("second");
  InboxEntry second = take_batch();
  ASSERT_NE(second.batch, nullptr);
  EXPECT_EQ(second.batch->items(0).event().text(), "second");
  Shut();  // before it was acknowledged
  append("third");
  Listen();
  std::vector<std::string> texts;
  std::uint64_t last = 0;
  while (last < 3) {
    InboxEntry again = take_batch();
    ASSERT_NE(again.batch, nullptr);
    for (const v1::Item& item : again.batch->items()) texts.push_back(item.event().text());
    last = again.batch->sequence();
    again.link->Acknowledge(last);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"second", "third"})) << "from behind what was acknowledged";
  client.Stop(10'000'000'000);
  EXPECT_EQ(client.stats().acknowledged, 3u);
  EXPECT_GE(client.stats().failures, 1u);
}

}  // namespace
}  // namespace lossgauge::ingest
