// OTLP against a collector of our own.
#include "server/export/otlp_sink.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "opentelemetry/proto/collector/metrics/v1/metrics_service.grpc.pb.h"

namespace lossgauge::export_ {
namespace {

using state::ShipResult;
using ::testing::HasSubstr;
namespace collector = opentelemetry::proto::collector::metrics::v1;

class Collector final : public collector::MetricsService::Service {
 public:
  Collector() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
  }
  grpc::Status Export(grpc::ServerContext*, const collector::ExportMetricsServiceRequest* request,
                      collector::ExportMetricsServiceResponse* response) override {
    const std::lock_guard lock(mutex);
    last = *request;
    if (rejected > 0) {
      response->mutable_partial_success()->set_rejected_data_points(rejected);
      response->mutable_partial_success()->set_error_message("too old");
    }
    return status;
  }
  std::mutex mutex;
  collector::ExportMetricsServiceRequest last;
  grpc::Status status;
  std::int64_t rejected = 0;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

class OtlpSinkTest : public ::testing::Test {
 protected:
  OtlpOptions Options() {
    OtlpOptions options;
    options.endpoint = "127.0.0.1:" + std::to_string(collector_.port);
    options.labels = {{"instance", "n1"}, {"job", "lossgauged"}, {"team", "a"}};
    return options;
  }
  SinkAnswer Send(const OtlpOptions& options) {
    auto sink = OtlpSink::Make(options);
    EXPECT_TRUE(sink.ok()) << sink.status();
    auto step = std::make_shared<state::StepSummary>();
    step->step = 7;
    step->loss_nats = 2.5;
    return (*sink)->Send("r", {{step, 1'000'123}});
  }
  Collector collector_;
};

TEST_F(OtlpSinkTest, EveryValueIsAGaugeAtTheStepsTime) {
  const SinkAnswer answer = Send(Options());
  EXPECT_EQ(answer.result, ShipResult::kTaken) << answer.text;
  ASSERT_EQ(collector_.last.resource_metrics_size(), 1);
  const auto& resource = collector_.last.resource_metrics(0);
  std::map<std::string, std::string> attributes;
  for (const auto& attribute : resource.resource().attributes()) attributes[attribute.key()] = attribute.value().string_value();
  EXPECT_EQ(attributes["service.name"], "lossgauged");
  EXPECT_EQ(attributes["service.instance.id"], "n1");
  EXPECT_EQ(attributes["team"], "a");
  bool found = false;
  for (const auto& metric : resource.scope_metrics(0).metrics()) {
    const auto& point = metric.gauge().data_points(0);
    EXPECT_EQ(point.time_unix_nano(), 1'000'123'000'000u);
    EXPECT_EQ(point.attributes(0).key(), "run");
    EXPECT_EQ(point.attributes(0).value().string_value(), "r");
    if (metric.name() != "lossgauge_by_step_loss_nats") continue;
    found = true;
    EXPECT_EQ(point.as_double(), 2.5);
    EXPECT_EQ(metric.unit(), "nats/token");
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(answer.samples, static_cast<std::uint64_t>(resource.scope_metrics(0).metrics_size()));
}

TEST_F(OtlpSinkTest, AnswersAreSortedAsTheProtocolSays) {
  const auto outcome = [&](grpc::StatusCode code) {
    collector_.status = {code, "as told"};
    return Send(Options()).result;
  };
  EXPECT_EQ(outcome(grpc::StatusCode::RESOURCE_EXHAUSTED), ShipResult::kBusy);
  EXPECT_EQ(outcome(grpc::StatusCode::UNAVAILABLE), ShipResult::kUnreachable);
  EXPECT_EQ(outcome(grpc::StatusCode::INTERNAL), ShipResult::kFailed);
  EXPECT_EQ(outcome(grpc::StatusCode::INVALID_ARGUMENT), ShipResult::kRefused);
  EXPECT_EQ(outcome(grpc::StatusCode::UNIMPLEMENTED), ShipResult::kRefused);
  EXPECT_EQ(outcome(grpc::StatusCode::UNAUTHENTICATED), ShipResult::kRefused);
}

TEST_F(OtlpSinkTest, APartThatWasRefusedIsNotTriedAgain) {
  collector_.rejected = 1;
  const SinkAnswer answer = Send(Options());
  EXPECT_EQ(answer.result, ShipResult::kRefused);
  EXPECT_THAT(answer.text, HasSubstr("too old"));
}

TEST_F(OtlpSinkTest, NobodyThereIsUnreachableAndCancelledIsCancelled) {
  OtlpOptions options = Options();
  collector_.server->Shutdown();
  EXPECT_EQ(Send(options).result, ShipResult::kUnreachable);
  auto sink = OtlpSink::Make(options);
  ASSERT_TRUE(sink.ok());
  (*sink)->Cancel();
  EXPECT_EQ((*sink)->Send("r", {}).result, ShipResult::kUnreachable);
}

}  // namespace
}  // namespace lossgauge::export_
