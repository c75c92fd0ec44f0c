// A sender of lossgauge.v1.Ingest that says whatever a test makes it say.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_HOSTILE_SENDER_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_HOSTILE_SENDER_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lossgauge/v1/ingest.grpc.pb.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/forward_items.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge::testing {

inline state::ProducerInfo Producer(std::uint64_t segment, const std::string& run, std::uint32_t rank, std::uint32_t world, const std::string& attempt = "1") {
  state::ProducerInfo info;
  info.segment.words[0] = segment;
  info.segment.words[1] = 1;
  info.run = run;
  info.attempt = attempt;
  info.attempt_start_ns = 1;
  info.layout.world_size = world;
  info.layout.rank = rank;
  info.layout.dp = {world, rank};
  info.layout.tp = info.layout.pp = info.layout.cp = info.layout.ep = {1, 0};
  info.layout.has_loss = 1;
  return info;
}

inline void AddStep(std::uint32_t number, std::uint64_t publication, std::int64_t step, v1::Batch* batch) {
  state::RankSample sample;
  sample.publication = publication;
  sample.receive_time_ns = 1;
  sample.record.present = LG_HAS_LOSS;
  sample.record.step = step;
  sample.record.tokens = sample.record.unmasked_tokens = sample.record.finite_tokens = 10;
  sample.record.nll_sum = lg_fixed128_from_double(25);
  sample.record.total_steps = publication;
  ingest::AppendSample(sample, number, batch);
}

// A stream of his own, on a connection of his own.
class Hostile {
 public:
  Hostile(const std::string& address, const std::string& node, const std::function<void(v1::Hello*)>& change = {}, const std::string& token = kToken) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Ingest::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(200));
    context_.AddMetadata("authorization", "Bearer " + token);
    stream_ = stub_->Forward(&context_);
    v1::ForwardRequest request;
    v1::Hello* hello = request.mutable_hello();
    hello->set_protocol(ingest::kForwardProtocol);
    hello->set_ring_abi_major(LG_RING_ABI_MAJOR);
    hello->set_ring_abi_minor(LG_RING_ABI_MINOR);
    hello->set_step_words(ingest::kStepWords);
    std::string sender = node;
    sender.resize(16, '-');
    hello->set_sender(sender);
    hello->set_node(node);
    if (change) change(hello);
    welcomed_ = stream_->Write(request) && stream_->Read(&response_) && response_.has_welcome();
  }
  ~Hostile() {
    if (stream_ != nullptr) (void)Finish();
  }
  bool welcomed() const { return welcomed_; }
  bool Send(v1::Batch batch, bool numbered = true) {
    v1::ForwardRequest request;
    *request.mutable_batch() = std::move(batch);
    request.mutable_batch()->set_sent_ns(2);
    if (numbered) request.mutable_batch()->set_sequence(++sequence_);
    return stream_->Write(request);
  }
  // Waits until all that was sent is acknowledged; false if the stream ends instead.
  bool Settled() {
    while (acknowledged_ < sequence_) {
      if (!stream_->Read(&response_)) return false;
      acknowledged_ = response_.acknowledgement().sequence();
    }
    return true;
  }
  // Why the daemon ended the stream.
  grpc::Status Ending() {
    while (stream_->Read(&response_)) {
    }
    return std::exchange(stream_, nullptr)->Finish();
  }
  grpc::Status Finish() {
    context_.TryCancel();
    return Ending();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Ingest::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream_;
  v1::ForwardResponse response_;
  bool welcomed_ = false;
  std::uint64_t sequence_ = 0;
  std::uint64_t acknowledged_ = 0;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_HOSTILE_SENDER_H_
