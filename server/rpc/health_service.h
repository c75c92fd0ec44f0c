// grpc.health.v1.Health over the newest snapshot (see health.h for the names it knows).
#ifndef LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_
#define LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_

#include <atomic>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/watch_reactor.h"

namespace lossgauge::rpc {

// Thread-safe.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(const StreamContext& context) : context_(context) {}

  void SetShuttingDown() { shutting_down_ = true; }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  const StreamContext context_;
  std::atomic<bool> shutting_down_{false};
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_HEALTH_SERVICE_H_
