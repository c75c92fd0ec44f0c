// A real daemon with an honest sidecar, and beside it whoever speaks lossgauge.v1.Ingest and means no good: what he sends is refused or counted, his
// name stands in the log, and of the honest run no step is lost or added, its verdict is answered all the while, and memory stays bounded.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "lossgauge/v1/ingest.grpc.pb.h"
#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/forward_items.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/main/page_value.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge {
namespace {

using testing::DaemonProcess;
using testing::FakeProducer;
using testing::kToken;
using ::testing::HasSubstr;

state::ProducerInfo Producer(std::uint64_t segment, const std::string& run, std::uint32_t rank, std::uint32_t world, const std::string& attempt = "1") {
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

void AddStep(std::uint32_t number, std::uint64_t publication, std::int64_t step, v1::Batch* batch) {
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

class HostileSendersTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    std::filesystem::create_directory(directory_ / "rings");
    testing::WriteTokenFile(directory_ / "tokens");
    flags.insert(flags.begin(), {"daemon", "--state_dir=" + (directory_ / "daemon"), "--http_listen=127.0.0.1:0", "--grpc_listen=127.0.0.1:0",
                                 "--token_file=" + (directory_ / "tokens")});
    daemon_ = std::make_unique<DaemonProcess>(flags, directory_ / "daemon.log");
    address_ = daemon_->Address("gRPC");
    const std::string http = daemon_->Address("HTTP");
    ASSERT_FALSE(http.empty()) << daemon_->Log();
    http_port_ = testing::PortOf(http);
    testing::FakeProducerOptions options;
    options.directory = directory_ / "rings";
    options.run = "honest";
    options.segment_id[0] = 77;
    options.segment_id[1] = 1;
    producer_ = std::make_unique<FakeProducer>(options);
    sidecar_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"sidecar", "--ring_dir=" + (directory_ / "rings"), "--state_dir=" + (directory_ / "sidecar"), "--http_listen=none",
                                 "--grpc_listen=none", "--forward_to=" + address_, "--forward_token_file=" + (directory_ / "tokens")},
        directory_ / "sidecar.log");
    job_ = std::thread([this] {
      for (std::int64_t step = 0; !stop_; ++step) {
        producer_->PublishStep(step);
        producer_->Beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    lossgauge_ = v1::LossGauge::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
    ASSERT_TRUE(Eventually([&] { return StepShown() > 5; })) << daemon_->Log() << sidecar_->Log();
    memory_ = Memory();
  }
  void TearDown() override {
    stop_ = true;
    if (job_.joinable()) job_.join();
  }
  static bool Eventually(const std::function<bool()>& is_so) {
    for (int tries = 0; tries < 600; ++tries) {
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  std::int64_t StepShown() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetRunRequest request;
    request.set_run("honest");
    v1::Run run;
    return lossgauge_->GetRun(&context, request, &run).ok() ? run.last_step().step() : -1;
  }
  bool VerdictIsAnswered() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetVerdictRequest request;
    request.set_run("honest");
    v1::Verdict verdict;
    return lossgauge_->GetVerdict(&context, request, &verdict).ok() && !verdict.reason().empty();
  }
  double Metric(const std::string& series) { return testing::PageValue(http_port_, series); }
  double Refused(const std::string& cause) { return Metric("lossgauge_ingest_refused_total{cause=\"" + cause + "\"}"); }
  // Of the daemon, in MiB.
  double Memory() {
    std::ifstream status("/proc/" + std::to_string(daemon_->pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
    }
    return -1;
  }
  void ExpectTheHonestRunUnharmed(double memory_growth_mib = 64) {
    EXPECT_TRUE(Eventually([&] { return VerdictIsAnswered(); })) << daemon_->Log();
    EXPECT_LT(Memory(), memory_ + memory_growth_mib);
    stop_ = true;
    job_.join();
    const auto published = static_cast<std::int64_t>(producer_->published());
    EXPECT_TRUE(Eventually([&] { return StepShown() == published - 1; })) << StepShown() << " of " << published << "\n" << daemon_->Log();
    EXPECT_EQ(Metric("lossgauge_steps_total{run=\"honest\",rank=\"0\"}"), static_cast<double>(published));
    EXPECT_EQ(Metric("lossgauge_finite_tokens_total{run=\"honest\",rank=\"0\"}"), static_cast<double>(100 * published));
    for (const char* reason : {"overrun", "torn", "checksum", "invalid", "spool"}) {
      EXPECT_EQ(Metric(std::string("lossgauge_records_lost_total{run=\"honest\",rank=\"0\",reason=\"") + reason + "\"}"), 0) << reason;
    }
  }

  ScratchDirectory directory_;
  std::unique_ptr<DaemonProcess> daemon_, sidecar_;
  std::string address_;
  int http_port_ = 0;
  std::unique_ptr<FakeProducer> producer_;
  std::unique_ptr<v1::LossGauge::Stub> lossgauge_;
  std::atomic<bool> stop_{false};
  std::thread job_;
  double memory_ = 0;
};

TEST_F(HostileSendersTest, OneThatNeverReadsAcknowledgements) {
  Start();
  Hostile deaf(address_, "deaf");
  ASSERT_TRUE(deaf.welcomed());
  v1::Batch batch;
  ingest::WriteProducer(Producer(1, "deaf", 0, 1), 1, batch.add_items()->mutable_producer());
  AddStep(1, 1, 0, &batch);
  ASSERT_TRUE(deaf.Send(std::move(batch)));
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(deaf.Send(v1::Batch()));
    if (i % 1000 == 0) {
      EXPECT_TRUE(VerdictIsAnswered());
    }
  }
  EXPECT_TRUE(deaf.Settled()) << "what it sent was taken, whether it heard so or not";
  EXPECT_EQ(Metric("lossgauge_steps_total{run=\"deaf\",rank=\"0\"}"), 1);
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneThatFloods) {
  Start();
  Hostile flood(address_, "flood");
  ASSERT_TRUE(flood.welcomed());
  v1::Batch told;
  ingest::WriteProducer(Producer(1, "flood", 0, 1), 1, told.add_items()->mutable_producer());
  ASSERT_TRUE(flood.Send(told));
  // Nothing to acknowledge, and so as many at a time as the connection takes; of items that take a hundred times their bytes.
  v1::Batch empty_items;
  for (int i = 0; i < 100'000; ++i) empty_items.add_items();
  double most = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(flood.Send(empty_items, false));
    if (i % 10 == 0) {
      EXPECT_TRUE(VerdictIsAnswered());
      most = std::max(most, Memory());
    }
  }
  EXPECT_LT(most, memory_ + 256);
  told.Clear();
  told.add_items()->mutable_event()->set_text(std::string((1 << 20) + 100, 'x'));
  (void)flood.Send(told);
  EXPECT_EQ(flood.Ending().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return Refused("oversize") == 1; }));
  EXPECT_THAT(daemon_->Log(), HasSubstr("from node \"flood\""));
  ExpectTheHonestRunUnharmed(256);
}

TEST_F(HostileSendersTest, OneThatOpensMoreStreamsThanOneMayHold) {
  Start({"--max_streams_per_client=8"});
  std::vector<std::unique_ptr<Hostile>> streams;
  int welcomed = 0;
  for (int i = 0; i < 20; ++i) {
    streams.push_back(std::make_unique<Hostile>(address_, "many" + std::to_string(i)));
    welcomed += streams.back()->welcomed() ? 1 : 0;
  }
  EXPECT_EQ(welcomed, 7) << "the honest sidecar has the eighth";
  EXPECT_EQ(Metric("lossgauge_requests_refused_total{protocol=\"grpc\",cause=\"streams\"}"), 13);
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneThatTakesAllRunsUnderManyNames) {
  Start({"--max_runs=8"});
  std::vector<std::unique_ptr<Hostile>> names;
  for (std::uint32_t i = 0; i < 8; ++i) {
    names.push_back(std::make_unique<Hostile>(address_, "name" + std::to_string(i)));
    v1::Batch batch;
    ingest::WriteProducer(Producer(20 + i, "taken" + std::to_string(i), 0, 1), 1, batch.add_items()->mutable_producer());
    AddStep(1, 1, 0, &batch);
    ASSERT_TRUE(names.back()->Send(std::move(batch)) && names.back()->Settled()) << daemon_->Log();
  }
  EXPECT_TRUE(Eventually([&] { return Refused("max_runs_per_client") >= 3; })) << "three quarters of 8 are 6, of which the honest run is one";
  EXPECT_TRUE(Eventually([&] { return Metric("lossgauge_steps_total{run=\"taken4\",rank=\"0\"}") == 1; }));
  EXPECT_EQ(Metric("lossgauge_steps_total{run=\"taken5\",rank=\"0\"}"), -1);
  EXPECT_THAT(daemon_->Log(), HasSubstr("6 runs of senders at 127.0.0.1 are not over, and that is as many as one may have (--max_runs_per_client)"));
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneThatCallsMoreOftenThanOneMay) {
  Start({"--max_calls_per_client=10"});
  int refused = 0;
  for (int i = 0; i < 300; ++i) refused += Hostile(address_, "often").welcomed() ? 0 : 1;
  EXPECT_GT(refused, 0);
  EXPECT_GE(Metric("lossgauge_requests_refused_total{protocol=\"grpc\",cause=\"rate\"}"), refused);  // this test's own questions, too
  // One address here, so that whoever asks has to wait until there are calls again; the sidecar's stream stands.
  EXPECT_TRUE(Eventually([&] { return VerdictIsAnswered(); }));
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneWithoutTheToken) {
  Start();
  Hostile stranger(address_, "stranger", {}, "wrong-wrong-wrong-wrong");
  EXPECT_FALSE(stranger.welcomed());
  EXPECT_EQ(stranger.Ending().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Metric("lossgauge_requests_refused_total{protocol=\"grpc\",cause=\"token\"}"), 1);
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneThatSpeaksAnotherVersion) {
  Start();
  Hostile other(address_, "other-major", [](v1::Hello* hello) { hello->set_ring_abi_major(LG_RING_ABI_MAJOR + 1); });
  EXPECT_FALSE(other.welcomed());
  EXPECT_EQ(other.Ending().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Eventually([&] { return Refused("bad_hello") == 1; }));
  EXPECT_THAT(daemon_->Log(), HasSubstr("from node \"other-major\""));
  Hostile newer(address_, "newer-minor", [](v1::Hello* hello) { hello->set_ring_abi_minor(LG_RING_ABI_MINOR + 1); });
  ASSERT_TRUE(newer.welcomed());
  v1::Batch batch;
  ingest::WriteProducer(Producer(1, "newer", 0, 1), 1, batch.add_items()->mutable_producer());
  AddStep(1, 1, 0, &batch);
  ASSERT_TRUE(newer.Send(std::move(batch)) && newer.Settled());
  EXPECT_TRUE(Eventually([&] { return Refused("newer_minor") == 1; }));
  EXPECT_THAT(daemon_->Log(), HasSubstr("from node \"newer-minor\""));
  EXPECT_TRUE(Eventually([&] { return Metric("lossgauge_steps_total{run=\"newer\",rank=\"0\"}") == 1; })) << "its known words are taken";
  ExpectTheHonestRunUnharmed();
}

// Each with a name of his own, which the log then has.
TEST_F(HostileSendersTest, OneThatSaysWhatMakesNoSense) {
  Start({"--max_runs=8", "--max_runs_per_sender=3"});
  struct Lie {
    const char* node;
    const char* cause;
    std::function<void(v1::Batch*)> add;
    bool ends_the_stream = false;
  };
  const auto tell = [](v1::Batch* batch, std::uint32_t number, const state::ProducerInfo& info) {
    ingest::WriteProducer(info, number, batch->add_items()->mutable_producer());
    AddStep(number, 1, 0, batch);
  };
  const std::vector<Lie> lies = {
      {"beyond-world", "bad_producer", [&](v1::Batch* batch) { tell(batch, 1, Producer(10, "liar", 9, 2)); }},
      {"other-layout", "producer",
       [&](v1::Batch* batch) {
         tell(batch, 1, Producer(11, "two", 0, 2));
         tell(batch, 2, Producer(12, "two", 1, 4));
       }},
      {"honest-layout", "producer", [&](v1::Batch* batch) { tell(batch, 1, Producer(13, "honest", 1, 2)); }},
      {"second-claim", "producer", [&](v1::Batch* batch) { tell(batch, 1, Producer(14, "honest", 0, 1)); }},
      {"second-sender", "second_sender",
       [&](v1::Batch* batch) {
         tell(batch, 1, Producer(77, "honest", 0, 1));
         AddStep(1, 1'000'000, 1'000'000, batch);
       }},
      {"all-runs", "max_runs_per_sender",
       [&](v1::Batch* batch) {
         for (std::uint32_t i = 1; i <= 8; ++i) tell(batch, i, Producer(20 + i, "taken" + std::to_string(i), 0, 1));
       }},
      {"odd-record", "bad_record",
       [&](v1::Batch* batch) {
         tell(batch, 1, Producer(40, "odd", 0, 1));
         AddStep(1, 2, -7, batch);
       }},
      {"untold", "bad_batch", [&](v1::Batch* batch) { AddStep(5, 1, 0, batch); }, true},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.node);
    Hostile liar(address_, lie.node);
    ASSERT_TRUE(liar.welcomed());
    const double before = Refused(lie.cause);
    v1::Batch batch;
    lie.add(&batch);
    ASSERT_TRUE(liar.Send(std::move(batch)));
    EXPECT_TRUE(Eventually([&] { return Refused(lie.cause) > before; })) << daemon_->Log();
    EXPECT_THAT(daemon_->Log(), HasSubstr(std::string("from node \"") + lie.node + "\""));
    if (lie.ends_the_stream) {
      EXPECT_EQ(liar.Ending().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
    EXPECT_TRUE(VerdictIsAnswered());
  }
  EXPECT_GE(Metric("lossgauge_runs_refused_total{cause=\"duplicate_rank\"}"), 1);
  EXPECT_GE(Metric("lossgauge_runs_refused_total{cause=\"layout_mismatch\"}"), 2);
  EXPECT_EQ(Metric("lossgauge_steps_total{run=\"taken3\",rank=\"0\"}"), 1) << "three runs it has";
  EXPECT_EQ(Metric("lossgauge_steps_total{run=\"taken4\",rank=\"0\"}"), -1) << "and no fourth";
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneWhoseStepsAreAbsurd) {
  Start();
  Hostile absurd(address_, "absurd");
  ASSERT_TRUE(absurd.welcomed());
  v1::Batch batch;
  ingest::WriteProducer(Producer(1, "absurd", 0, 1), 1, batch.add_items()->mutable_producer());
  AddStep(1, 1, 5, &batch);
  AddStep(1, 2, 1'000'000'000'000, &batch);
  AddStep(1, 3, 6, &batch);
  ASSERT_TRUE(absurd.Send(std::move(batch)) && absurd.Settled());
  EXPECT_TRUE(Eventually([&] { return Metric("lossgauge_run_step{run=\"absurd\"}") == 6; }));
  EXPECT_EQ(Metric("lossgauge_absurd_steps_total"), 1);
  ExpectTheHonestRunUnharmed();
}

TEST_F(HostileSendersTest, OneWhoseBytesAreNoMessage) {
  Start();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.AddMetadata("authorization", std::string("Bearer ") + kToken);
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method("/lossgauge.v1.Ingest/Forward", grpc::internal::RpcMethod::BIDI_STREAMING);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(channel.get(), method, &context));
  const grpc::Slice slice(std::string("\x0a\xff\xff\xff\xff\x7f", 6));
  stream->Write(grpc::ByteBuffer(&slice, 1));
  grpc::ByteBuffer answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return Refused("malformed") == 1; }));
  ExpectTheHonestRunUnharmed();
}

}  // namespace
}  // namespace lossgauge
