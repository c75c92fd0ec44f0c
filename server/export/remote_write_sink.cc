#include "server/export/remote_write_sink.h"

#include <snappy.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/remote.pb.h"
#include "server/export/receiver_answer.h"
#include "server/transport/httplib.h"
#include "server/transport/secret_file.h"

namespace lossgauge::export_ {
namespace {

constexpr std::size_t kMaxBodyKept = 4096;
constexpr std::size_t kMaxBodyRead = 64 << 10;

state::TimeNs WallNs() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return state::TimeNs{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

absl::StatusOr<httplib::Headers> ReadHeaders(const RemoteWriteOptions& options) {
  httplib::Headers headers = {{"Content-Encoding", "snappy"},
                              {"Content-Type", "application/x-protobuf"},
                              {"User-Agent", options.user_agent},
                              {"X-Prometheus-Remote-Write-Version", "0.1.0"}};
  if (options.headers_file.empty()) return headers;
  const absl::StatusOr<std::string> text = transport::ReadSmallFile("--remote_write_headers_file", options.headers_file, true);
  if (!text.ok()) return text.status();
  const auto lines = ParseHeaderLines(*text);
  if (!lines.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--remote_write_headers_file: ", options.headers_file, ": ", lines.status().message()));
  }
  for (const auto& [name, value] : *lines) headers.emplace(name, value);
  return headers;
}

}  // namespace

std::string EncodeWriteBody(std::string_view run, const std::vector<TimedStep>& steps, const SinkLabels& labels, std::uint64_t* samples) {
  prompb::WriteRequest request;
  *samples = 0;
  for (const StepSeries& series : AllStepSeries()) {
    prompb::TimeSeries* out = nullptr;
    for (const TimedStep& timed : steps) {
      const std::optional<double> value = series.value(*timed.step);
      if (!value) continue;
      if (out == nullptr) {
        out = request.add_timeseries();
        SinkLabels all = labels;
        all.emplace_back("__name__", series.name);
        all.emplace_back("run", std::string(run));
        std::sort(all.begin(), all.end());
        for (auto& [name, text] : all) {
          prompb::Label* label = out->add_labels();
          label->set_name(name);
          label->set_value(std::move(text));
        }
      }
      prompb::Sample* sample = out->add_samples();
      sample->set_value(*value);
      sample->set_timestamp(timed.timestamp_ms);
      ++*samples;
    }
  }
  const std::string plain = request.SerializeAsString();
  std::string body;
  snappy::Compress(plain.data(), plain.size(), &body);
  return body;
}

struct RemoteWriteSink::Connection {
  std::mutex mutex;  // of `client`, which Cancel reaches from another thread
  std::shared_ptr<httplib::Client> client;
  httplib::Headers headers;
  transport::FileWatch watch;
  std::atomic<bool> cancelled{false};
};

RemoteWriteSink::RemoteWriteSink(RemoteWriteOptions options)
    : options_(std::move(options)),
      connection_(new Connection{{}, nullptr, {}, transport::FileWatch([this] {
                                   std::vector<std::string> files;
                                   for (const std::string* file : {&options_.ca_file, &options_.cert_file, &options_.key_file, &options_.headers_file}) {
                                     if (!file->empty()) files.push_back(*file);
                                   }
                                   return files;
                                 }())}) {}

RemoteWriteSink::~RemoteWriteSink() = default;

absl::StatusOr<std::unique_ptr<RemoteWriteSink>> RemoteWriteSink::Make(RemoteWriteOptions options) {
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("--remote_write_tls_cert and --remote_write_tls_key belong together: give both or neither");
  }
  if (!options.url.tls && !(options.ca_file.empty() && options.cert_file.empty())) {
    return absl::InvalidArgumentError("--remote_write_tls_ca and --remote_write_tls_cert are for an https:// receiver");
  }
  const std::pair<const char*, const std::string*> files[] = {{"--remote_write_tls_ca", &options.ca_file},
                                                              {"--remote_write_tls_cert", &options.cert_file},
                                                              {"--remote_write_tls_key", &options.key_file}};
  for (const auto& [flag, path] : files) {
    if (path->empty()) continue;
    if (const auto text = transport::ReadSmallFile(flag, *path, path == &options.key_file); !text.ok()) return text.status();
  }
  std::unique_ptr<RemoteWriteSink> sink(new RemoteWriteSink(std::move(options)));
  if (const absl::Status status = sink->Connect(); !status.ok()) return status;
  return sink;
}

// Connects when first used. A new client whenever a file has changed: cpp-httplib reads certificates once.
absl::Status RemoteWriteSink::Connect() {
  Connection& connection = *connection_;
  if (!connection.watch.Changed() && connection.client != nullptr) return absl::OkStatus();
  absl::StatusOr<httplib::Headers> headers = ReadHeaders(options_);
  if (!headers.ok()) return headers.status();
  auto client = std::make_shared<httplib::Client>(options_.url.Origin(), options_.cert_file, options_.key_file);
  if (!client->is_valid()) {
    return absl::InvalidArgumentError(absl::StrCat("--remote_write_tls_cert ", options_.cert_file, " and --remote_write_tls_key ", options_.key_file,
                                                   " cannot be used: no PEM, or they do not belong together"));
  }
  if (options_.url.tls) {
    client->enable_server_certificate_verification(true);
    if (!options_.ca_file.empty()) client->set_ca_cert_path(options_.ca_file.c_str());
  }
  client->set_keep_alive(true);
  client->set_follow_location(false);
  client->set_decompress(false);
  client->set_connection_timeout(options_.connect_time);
  client->set_read_timeout(options_.answer_time);
  client->set_write_timeout(options_.answer_time);
  client->set_tcp_nodelay(true);
  const std::lock_guard lock(connection.mutex);
  connection.client = std::move(client);
  connection.headers = *std::move(headers);
  return absl::OkStatus();
}

SinkAnswer RemoteWriteSink::Send(std::string_view run, const std::vector<TimedStep>& steps) {
  SinkAnswer answer;
  if (connection_->cancelled) return answer;
  if (const absl::Status status = Connect(); !status.ok() && connection_->client == nullptr) {
    answer.text = std::string(status.message());
    return answer;
  }
  std::uint64_t samples = 0;
  httplib::Request request;
  request.method = "POST";
  request.path = options_.url.path;
  request.headers = connection_->headers;
  request.body = EncodeWriteBody(run, steps, options_.labels, &samples);
  // The status counts even if the body is cut off: a receiver may not keep us reading.
  int status = 0;
  std::string retry_after;
  std::string body;
  std::size_t read = 0;
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    retry_after = response.get_header_value("Retry-After");
    return true;
  };
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    body.append(data, std::min(size, kMaxBodyKept - std::min(body.size(), kMaxBodyKept)));
    read += size;
    return read <= kMaxBodyRead && !connection_->cancelled;
  };
  std::shared_ptr<httplib::Client> client;
  {
    const std::lock_guard lock(connection_->mutex);
    client = connection_->client;
  }
  const httplib::Result result = client->send(request);
  if (status == 0 && result) status = result->status;  // cpp-httplib calls no handler for 204, which has no body
  if (status == 0) {
    answer.text = absl::StrCat("no answer: ", httplib::to_string(result.error()));
    return answer;
  }
  answer = JudgeAnswer(status, retry_after, body, WallNs());
  answer.samples = samples;
  return answer;
}

void RemoteWriteSink::Cancel() {
  connection_->cancelled = true;
  const std::lock_guard lock(connection_->mutex);
  if (connection_->client != nullptr) connection_->client->stop();
}

}  // namespace lossgauge::export_
