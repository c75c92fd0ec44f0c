#include "server/rpc/health_service.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/text.h"
#include "server/rpc/health.h"

namespace lossgauge::rpc {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// The status first, then each change.
class HealthWatch {
 public:
  using Message = HealthCheckResponse;
  HealthWatch(std::string service, const HealthService& of) : service_(std::move(service)), of_(&of) {}

  bool NeedsHistory(const state::Snapshot&) const { return false; }
  absl::StatusOr<bool> Next(const state::Snapshot& snapshot, state::TimeNs now_ns, Message* message) {
    const ServingStatus status = HealthOf(service_, snapshot, now_ns, of_->IsReady());
    if (sent_ == status) return false;
    sent_ = status;
    message->set_status(status);
    return true;
  }

 private:
  std::string service_;
  const HealthService* of_;
  std::optional<ServingStatus> sent_;
};

}  // namespace

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status status = context_.gate.Call(*context); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  const ServingStatus status = HealthOf(request->service(), *context_.board.Get(), context_.clock.NowNs(), IsReady());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish({grpc::StatusCode::NOT_FOUND,
                     absl::StrCat("service: ", api::Quoted(request->service()), R"( is not known; ask for "", "run/RUN" or "run/RUN/restart")")});
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext* context, const HealthCheckRequest* request) {
  return WatchReactor<HealthWatch>::Open(context_, context_.gate.Stream(*context), HealthWatch(request->service(), *this));
}

}  // namespace lossgauge::rpc
