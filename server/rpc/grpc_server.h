// The gRPC server of lossgauged.
#ifndef LOSSGAUGE_SERVER_RPC_GRPC_SERVER_H_
#define LOSSGAUGE_SERVER_RPC_GRPC_SERVER_H_

#include <cstddef>
#include <cstdint>
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

namespace grpc {
class Service;
}  // namespace grpc

namespace lossgauge::rpc {

struct GrpcOptions {
  std::string listen = "127.0.0.1:9789";  // host:port, port 0 = any free one
  std::size_t max_streams = 256;          // open watches and pending calls over all clients
  int max_streams_per_connection = 100;
  int max_request_bytes = 64 << 10;       // requests hold names and numbers only
  std::size_t memory_quota_bytes = std::size_t{64} << 20;
  std::size_t history_threads = 2;
  std::size_t history_queue = 64;
  std::int64_t tick_ns = 250'000'000;     // how late a deadline, or a verdict that ran out, is noticed
  std::int64_t reply_timeout_ns = 5'000'000'000;
  std::vector<grpc::Service*> further_services;  // must outlive the server
  // An error: health of "" is NOT_SERVING. Called from several threads; unset: always OK.
  std::function<absl::Status()> ready;
  // All of these outlive the server. Null: plain text; whoever connects may write; no limit for a client; nothing is counted.
  transport::ServerTls* tls = nullptr;
  const transport::WriteGuard* guard = nullptr;
  transport::ClientLimiter* limiter = nullptr;
  state::ServiceCounters* counters = nullptr;
};

// Start and Shutdown from one thread; everything else is thread-safe.
class GrpcServer {
 public:
  GrpcServer(GrpcOptions options, const api::Api& api);
  ~GrpcServer();  // shuts down

  // INVALID_ARGUMENT for a listen address that makes no sense; UNAVAILABLE with address, reason and errno if it cannot be had. May be
  // tried again after an error.
  absl::Status Start();

  // Health says NOT_SERVING, streams end with UNAVAILABLE; who has not read his last message within `grace_ns` is cut off.
  void Shutdown(std::int64_t grace_ns = 2'000'000'000);

  int port() const { return port_; }  // 0 before Start
  std::string address() const;        // as bound, for people and clients
  std::size_t open_streams() const;

 private:
  struct Running;

  const GrpcOptions options_;
  const api::Api& api_;
  std::string host_;
  int port_ = 0;
  std::unique_ptr<Running> running_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_GRPC_SERVER_H_
