// absl::Status and grpc::Status have the same codes; only the types differ.
#ifndef LOSSGAUGE_SERVER_RPC_GRPC_STATUS_H_
#define LOSSGAUGE_SERVER_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace lossgauge::rpc {

// The message leaves as valid UTF-8 and at most 1 KiB: it travels in a header.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_GRPC_STATUS_H_
