// What the servers of every role share: TLS, tokens, limits of a client, and what they count. Made before the servers, and outlives them.
#ifndef LOSSGAUGE_SERVER_MAIN_SERVICE_ACCESS_H_
#define LOSSGAUGE_SERVER_MAIN_SERVICE_ACCESS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/main/flags.h"
#include "server/rpc/grpc_server.h"
#include "server/state/service_counters.h"
#include "server/transport/client_limiter.h"
#include "server/transport/server_tls.h"
#include "server/transport/token_file.h"
#include "server/web/web_server.h"

namespace lossgauge::main {

class ServiceAccess {
 public:
  // An error names the flag and the file. `grpc_listen`, `http_listen`: as the flags have them, "none" included.
  static absl::StatusOr<std::unique_ptr<ServiceAccess>> Make(const ServiceFlags& flags, const std::string& grpc_listen, const std::string& http_listen);

  void Fill(rpc::GrpcOptions* options);
  void Fill(web::WebOptions* options);
  // For services that are not rpc's own.
  const transport::WriteGuard& grpc_guard() const { return *grpc_guard_; }
  transport::ClientLimiter& grpc_limiter() { return *grpc_limiter_; }
  state::ServiceCounters& counters() { return counters_; }

 private:
  ServiceAccess() = default;

  state::ServiceCounters counters_;
  std::unique_ptr<transport::ServerTls> tls_;
  std::unique_ptr<transport::TokenFile> tokens_;
  std::optional<transport::WriteGuard> grpc_guard_;
  std::optional<transport::WriteGuard> http_guard_;
  std::unique_ptr<transport::ClientLimiter> grpc_limiter_;
  std::unique_ptr<transport::ClientLimiter> http_limiter_;
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_SERVICE_ACCESS_H_
