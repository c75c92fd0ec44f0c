// Prometheus remote write 0.1.0: one run's steps a request, protobuf compressed with snappy.
#ifndef LOSSGAUGE_SERVER_EXPORT_REMOTE_WRITE_SINK_H_
#define LOSSGAUGE_SERVER_EXPORT_REMOTE_WRITE_SINK_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/export/receiver_url.h"
#include "server/export/step_sink.h"

namespace lossgauge::export_ {

struct RemoteWriteOptions {
  ReceiverUrl url;
  std::string ca_file;    // authorities that the receiver is checked against; "" = the system's
  std::string cert_file;  // ours, for a receiver that asks for one; with key_file or neither
  std::string key_file;
  std::string headers_file;  // "" = none; read again for each new connection
  SinkLabels labels;         // sorted by name
  std::chrono::milliseconds connect_time{3'000};
  std::chrono::milliseconds answer_time{10'000};
  std::string user_agent = "lossgauged";
};

// The request's body, compressed. `run`: valid UTF-8, not empty; `labels` as of ParseLabels.
std::string EncodeWriteBody(std::string_view run, const std::vector<TimedStep>& steps, const SinkLabels& labels, std::uint64_t* samples);

class RemoteWriteSink final : public StepSink {
 public:
  // INVALID_ARGUMENT names flag, file and reason.
  static absl::StatusOr<std::unique_ptr<RemoteWriteSink>> Make(RemoteWriteOptions options);
  ~RemoteWriteSink() override;

  SinkAnswer Send(std::string_view run, const std::vector<TimedStep>& steps) override;
  void Cancel() override;
  std::string name() const override { return options_.url.Text(); }

 private:
  struct Connection;
  explicit RemoteWriteSink(RemoteWriteOptions options);
  absl::Status Connect();

  const RemoteWriteOptions options_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_REMOTE_WRITE_SINK_H_
