// The HTTP server of lossgauged: /metrics, /-/healthy, /-/ready, /api/v1/ and the status page at /.
#ifndef LOSSGAUGE_SERVER_WEB_WEB_SERVER_H_
#define LOSSGAUGE_SERVER_WEB_WEB_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/api.h"
#include "server/state/service_counters.h"
#include "server/transport/client_limiter.h"
#include "server/transport/server_tls.h"
#include "server/transport/token_file.h"

namespace lossgauge::web {

struct WebOptions {
  std::string listen = "127.0.0.1:9788";   // host:port, port 0 = any free one
  std::vector<std::string> allowed_hosts;  // further names that the Host header may carry while we listen on loopback
  std::size_t request_threads = 16;
  std::size_t max_event_streams = 32;      // each takes a thread of its own
  std::size_t max_history_requests = 8;    // of the request threads; further ones get 429
  std::size_t max_waiting = 256;           // accepted connections without a thread
  std::chrono::milliseconds request_time{10'000};
  std::chrono::milliseconds hurried_time{500};  // instead of request_time while others wait
  std::chrono::milliseconds idle_time{5'000};
  std::chrono::milliseconds write_stall{5'000};
  std::chrono::nanoseconds heartbeat{15'000'000'000};
  std::chrono::nanoseconds reply_timeout{5'000'000'000};
  // Text of /metrics in Prometheus' format; called from several threads. Unset: 404.
  std::function<std::string()> render_metrics;
  // What /-/ready says; unset: ready once a snapshot has been published.
  std::function<absl::Status()> ready;
  // What /-/healthy says: an error only where a new process would help. Unset: it lives if it answers. Both are called from several threads.
  std::function<absl::Status()> healthy;
  // All of these outlive the server. Null: plain text; whoever connects may write; no limit for a client; nothing is counted. With `tls` the
  // process ignores SIGPIPE.
  transport::ServerTls* tls = nullptr;
  const transport::WriteGuard* guard = nullptr;
  transport::ClientLimiter* limiter = nullptr;      // its streams are connections here
  std::size_t max_event_streams_per_client = 0;     // 0: as many as there are
  state::ServiceCounters* counters = nullptr;
};

// Start and Shutdown from one thread; everything else is thread-safe.
class WebServer {
 public:
  WebServer(WebOptions options, const api::Api& api);
  ~WebServer();  // shuts down

  // INVALID_ARGUMENT for a listen address that makes no sense; UNAVAILABLE with address, reason and errno if it cannot be had. May be
  // tried again after an error.
  absl::Status Start();

  // Event streams are told, requests under way are finished; done within a second even if clients do not read.
  void Shutdown();

  int port() const { return port_; }  // 0 before Start
  std::string address() const;        // as bound
  std::size_t open_event_streams() const;

 private:
  struct Running;

  const WebOptions options_;
  const api::Api& api_;
  std::string host_;
  int port_ = 0;
  std::unique_ptr<Running> running_;
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_WEB_SERVER_H_
