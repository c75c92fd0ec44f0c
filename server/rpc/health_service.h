// grpc.health.v1.Health over the newest snapshot (see health.h for the names it knows).
#ifndef LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_
#define LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_

#include <atomic>
#include <functional>
#include <utility>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/watch_reactor.h"

namespace lossgauge::rpc {

// Thread-safe.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `ready` outlives the service and is called from any thread; unset: always.
  HealthService(const StreamContext& context, std::function<absl::Status()> ready) : context_(context), ready_(std::move(ready)) {}

  void SetShuttingDown() { shutting_down_ = true; }
  bool IsReady() const { return !shutting_down_ && (!ready_ || ready_().ok()); }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  const StreamContext context_;
  const std::function<absl::Status()> ready_;
  std::atomic<bool> shutting_down_{false};
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_
