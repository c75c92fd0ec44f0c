// Counts requests that gRPC could not parse: none of our code hears of them otherwise.
#ifndef LOSSGAUGE_SERVER_RPC_MALFORMED_COUNTER_H_
#define LOSSGAUGE_SERVER_RPC_MALFORMED_COUNTER_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/state/service_counters.h"

namespace lossgauge::rpc {

// For ServerBuilder. `counters` outlives the server.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> MakeMalformedCounter(state::ServiceCounters* counters);

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_MALFORMED_COUNTER_H_
