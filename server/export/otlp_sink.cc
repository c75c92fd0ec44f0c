#include "server/export/otlp_sink.h"

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "opentelemetry/proto/collector/metrics/v1/metrics_service.grpc.pb.h"

namespace lossgauge::export_ {
namespace {

namespace collector = opentelemetry::proto::collector::metrics::v1;
namespace otlp = opentelemetry::proto::metrics::v1;

// How OpenTelemetry's protocol sorts gRPC's codes: some are worth another try, the others say that this request will never be taken.
SinkAnswer JudgeStatus(const grpc::Status& status) {
  SinkAnswer answer;
  answer.text = absl::StrCat("gRPC code ", static_cast<int>(status.error_code()), " ", status.error_message().substr(0, 200));
  switch (status.error_code()) {
    case grpc::StatusCode::OK: answer.result = state::ShipResult::kTaken; break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED: answer.result = state::ShipResult::kBusy; break;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED: answer.result = state::ShipResult::kUnreachable; break;
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::DATA_LOSS:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN: answer.result = state::ShipResult::kFailed; break;
    case grpc::StatusCode::OUT_OF_RANGE:
      answer.result = state::ShipResult::kRefused;
      answer.reason = state::ShipDrop::kOutOfWindow;
      break;
    default: answer.result = state::ShipResult::kRefused;
  }
  return answer;
}

}  // namespace

struct OtlpSink::Connection {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::unique_ptr<collector::MetricsService::Stub> stub;
  std::mutex mutex;  // of what follows
  grpc::ClientContext* under_way = nullptr;
  bool cancelled = false;
};

OtlpSink::OtlpSink(OtlpOptions options, std::unique_ptr<Connection> connection) : options_(std::move(options)), connection_(std::move(connection)) {}
OtlpSink::~OtlpSink() = default;

absl::StatusOr<std::unique_ptr<OtlpSink>> OtlpSink::Make(OtlpOptions options) {
  auto credentials = transport::MakeChannelCredentials("--otlp_tls_", options.tls);
  if (!credentials.ok()) return credentials.status();
  auto connection = std::make_unique<Connection>();
  connection->credentials = *std::move(credentials);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 30'000);
  arguments.SetMaxReceiveMessageSize(64 << 10);
  arguments.SetUserAgentPrefix("lossgauged");
  connection->stub = collector::MetricsService::NewStub(grpc::CreateCustomChannel(options.endpoint, connection->credentials, arguments));
  return std::unique_ptr<OtlpSink>(new OtlpSink(std::move(options), std::move(connection)));
}

SinkAnswer OtlpSink::Send(std::string_view run, const std::vector<TimedStep>& steps) {
  collector::ExportMetricsServiceRequest request;
  otlp::ResourceMetrics* resource = request.add_resource_metrics();
  const auto add = [](auto* attributes, const std::string& key, std::string value) {
    auto* attribute = attributes->Add();
    attribute->set_key(key);
    attribute->mutable_value()->set_string_value(std::move(value));
  };
  for (const auto& [key, value] : options_.labels) {
    // OpenTelemetry's own names for what Prometheus calls job and instance.
    add(resource->mutable_resource()->mutable_attributes(), key == "job" ? "service.name" : key == "instance" ? "service.instance.id" : key, value);
  }
  otlp::ScopeMetrics* scope = resource->add_scope_metrics();
  scope->mutable_scope()->set_name("lossgauge");
  std::uint64_t samples = 0;
  for (const StepSeries& series : AllStepSeries()) {
    otlp::Metric* metric = nullptr;
    for (const TimedStep& timed : steps) {
      const std::optional<double> value = series.value(*timed.step);
      if (!value) continue;
      if (metric == nullptr) {
        metric = scope->add_metrics();
        metric->set_name(series.name);
        metric->set_description(series.help);
        metric->set_unit(series.unit);
      }
      otlp::NumberDataPoint* point = metric->mutable_gauge()->add_data_points();
      point->set_time_unix_nano(static_cast<std::uint64_t>(timed.timestamp_ms) * 1'000'000);
      point->set_as_double(*value);
      add(point->mutable_attributes(), "run", std::string(run));
      ++samples;
    }
  }

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options_.answer_time);
  {
    const std::lock_guard lock(connection_->mutex);
    if (connection_->cancelled) return {};
    connection_->under_way = &context;
  }
  collector::ExportMetricsServiceResponse response;
  const grpc::Status status = connection_->stub->Export(&context, request, &response);
  {
    const std::lock_guard lock(connection_->mutex);
    connection_->under_way = nullptr;
  }
  SinkAnswer answer = JudgeStatus(status);
  answer.samples = samples;
  // A part that was refused is not to be sent again, says the protocol.
  const std::int64_t rejected = status.ok() ? response.partial_success().rejected_data_points() : 0;
  if (rejected > 0) {
    answer.result = state::ShipResult::kRefused;
    answer.text = absl::StrCat(rejected, " of ", samples, " points refused: ", response.partial_success().error_message().substr(0, 200));
  }
  return answer;
}

void OtlpSink::Cancel() {
  const std::lock_guard lock(connection_->mutex);
  connection_->cancelled = true;
  if (connection_->under_way != nullptr) connection_->under_way->TryCancel();
}

}  // namespace lossgauge::export_
