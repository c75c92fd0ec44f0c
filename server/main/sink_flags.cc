#include "server/main/sink_flags.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/api/listen_address.h"

ABSL_FLAG(std::string, remote_write_url, "",
          "URL of a Prometheus-compatible receiver (http:// or https://, such as http://127.0.0.1:9090/api/v1/write): every step is sent to it as samples "
          "with the step's own time. \"\": off.");
ABSL_FLAG(std::string, remote_write_headers_file, "",
          "File with headers for the receiver, one \"Name: value\" a line, such as Authorization or X-Scope-OrgID. Not readable by everybody; read again when "
          "it changes.");
ABSL_FLAG(std::string, remote_write_tls_ca, "", "PEM file with the authorities that an https:// receiver is checked against. Default: the system's.");
ABSL_FLAG(std::string, remote_write_tls_cert, "", "PEM file with our certificate for a receiver that asks for one; with --remote_write_tls_key.");
ABSL_FLAG(std::string, remote_write_tls_key, "", "PEM file with the private key of --remote_write_tls_cert.");
ABSL_FLAG(std::string, otlp_endpoint, "", "HOST:PORT of an OpenTelemetry collector's gRPC receiver: every step is sent to it as gauges. \"\": off.");
ABSL_FLAG(std::string, otlp_tls_ca, "", "PEM file with the authorities that the collector is checked against: switches TLS on. Default: plain text.");
ABSL_FLAG(std::string, otlp_tls_cert, "", "PEM file with our certificate for a collector that asks for one; with --otlp_tls_key.");
ABSL_FLAG(std::string, otlp_tls_key, "", "PEM file with the private key of --otlp_tls_cert.");
ABSL_FLAG(std::string, sink_labels, "",
          "Labels of every sample sent, NAME=VALUE separated by commas. job=lossgauged and instance=<host name> are added where they are not given, so that "
          "two senders of one run are two series.");
ABSL_FLAG(absl::Duration, sink_max_age, absl::Hours(1),
          "A step that could not be sent for so long is dropped and counted: receivers take no samples from farther back. 1m to 48h.");
ABSL_FLAG(std::int64_t, sink_max_pending, 1'000'000,
          "Steps of a run that may wait in the history to be sent; beyond it the oldest are dropped and counted. 1000 to 100000000.");

namespace lossgauge::main {
namespace {

absl::Status FlagError(const char* flag, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", status.message()));
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof name) == 0 && name[0] != '\0' ? name : "unknown";
}

void AddDefault(const std::string& name, std::string value, export_::SinkLabels* labels) {
  if (std::any_of(labels->begin(), labels->end(), [&](const auto& label) { return label.first == name; })) return;
  labels->emplace_back(name, std::move(value));
}

}  // namespace

absl::StatusOr<SinkFlags> GetSinkFlags() {
  SinkFlags flags;
  absl::StatusOr<export_::SinkLabels> labels = export_::ParseLabels(absl::GetFlag(FLAGS_sink_labels));
  if (!labels.ok()) return FlagError("sink_labels", labels.status());
  AddDefault("job", "lossgauged", &*labels);
  AddDefault("instance", HostName(), &*labels);
  std::sort(labels->begin(), labels->end());

  if (const std::string url = absl::GetFlag(FLAGS_remote_write_url); !url.empty()) {
    absl::StatusOr<export_::ReceiverUrl> receiver = export_::ParseReceiverUrl(url);
    if (!receiver.ok()) return FlagError("remote_write_url", receiver.status());
    export_::RemoteWriteOptions options;
    options.url = *std::move(receiver);
    options.ca_file = absl::GetFlag(FLAGS_remote_write_tls_ca);
    options.cert_file = absl::GetFlag(FLAGS_remote_write_tls_cert);
    options.key_file = absl::GetFlag(FLAGS_remote_write_tls_key);
    options.headers_file = absl::GetFlag(FLAGS_remote_write_headers_file);
    options.labels = *labels;
    options.user_agent = "lossgauged/" LOSSGAUGE_VERSION;
    flags.remote_write = std::move(options);
  }
  if (const std::string endpoint = absl::GetFlag(FLAGS_otlp_endpoint); !endpoint.empty()) {
    const absl::StatusOr<api::ListenAddress> address = api::ParseListenAddress(endpoint);
    if (!address.ok() || address->host.empty() || address->port == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--otlp_endpoint=", endpoint, " is not HOST:PORT, such as 127.0.0.1:4317"));
    }
    export_::OtlpOptions options;
    options.endpoint = endpoint;
    options.tls = {absl::GetFlag(FLAGS_otlp_tls_ca), absl::GetFlag(FLAGS_otlp_tls_cert), absl::GetFlag(FLAGS_otlp_tls_key)};
    options.labels = *labels;
    flags.otlp = std::move(options);
  }
  const absl::Duration age = absl::GetFlag(FLAGS_sink_max_age);
  if (age < absl::Minutes(1) || age > absl::Hours(48)) {
    return absl::InvalidArgumentError(absl::StrCat("--sink_max_age=", absl::FormatDuration(age), " is out of range: 1m to 48h"));
  }
  flags.max_age_ns = absl::ToInt64Nanoseconds(age);
  const std::int64_t pending = absl::GetFlag(FLAGS_sink_max_pending);
  if (pending < 1000 || pending > 100'000'000) {
    return absl::InvalidArgumentError(absl::StrCat("--sink_max_pending=", pending, " is out of range: 1000 to 100000000"));
  }
  flags.max_pending_steps = static_cast<std::uint64_t>(pending);
  return flags;
}

}  // namespace lossgauge::main
