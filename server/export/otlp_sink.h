// OpenTelemetry metrics over gRPC: one run's steps a call, as gauges, each point at the step's own time.
#ifndef LOSSGAUGE_SERVER_EXPORT_OTLP_SINK_H_
#define LOSSGAUGE_SERVER_EXPORT_OTLP_SINK_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/export/step_sink.h"
#include "server/transport/grpc_credentials.h"

namespace lossgauge::export_ {

struct OtlpOptions {
  std::string endpoint;  // HOST:PORT
  transport::ClientTlsFiles tls;
  SinkLabels labels;
  std::chrono::milliseconds answer_time{10'000};
};

class OtlpSink final : public StepSink {
 public:
  // INVALID_ARGUMENT names flag, file and reason. Connects when first used.
  static absl::StatusOr<std::unique_ptr<OtlpSink>> Make(OtlpOptions options);
  ~OtlpSink() override;

  SinkAnswer Send(std::string_view run, const std::vector<TimedStep>& steps) override;
  void Cancel() override;
  std::string name() const override { return "otlp://" + options_.endpoint; }

 private:
  struct Connection;
  OtlpSink(OtlpOptions options, std::unique_ptr<Connection> connection);

  const OtlpOptions options_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_OTLP_SINK_H_
