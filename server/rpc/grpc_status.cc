#include "server/rpc/grpc_status.h"

#include <string>

#include "server/api/text.h"

namespace lossgauge::rpc {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  constexpr std::size_t kMaxBytes = 1024;
  return {static_cast<grpc::StatusCode>(status.code()), api::ValidUtf8(std::string(status.message().substr(0, kMaxBytes)))};
}

}  // namespace lossgauge::rpc
