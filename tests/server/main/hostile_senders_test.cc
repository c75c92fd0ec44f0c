// A real daemon with an honest sidecar, and beside it whoever speaks lossgauge.v1.Ingest and means no good: what he sends is refused or counted, his
// name stands in the log, and of the honest run no step is lost or added, its verdict is answered all the while, and memory stays bounded.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lossgauge/v1/ingest.grpc.pb.h"
#include "server/ingest/forward_items.h"
#include "tests/server/main/honest_run_fixture.h"
#include "tests/server/main/hostile_sender.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge {
namespace {

using testing::AddStep;
using testing::BesideAnHonestRun;
using testing::Hostile;
using testing::Producer;
using testing::kToken;
using ::testing::HasSubstr;

using HostileSendersTest = BesideAnHonestRun;

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
