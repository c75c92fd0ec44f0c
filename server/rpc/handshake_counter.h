// Counts TLS handshakes with our gRPC server that came to nothing. gRPC 1.51 has no hook for it: it says so in its own log, which is read here.
#ifndef LOSSGAUGE_SERVER_RPC_HANDSHAKE_COUNTER_H_
#define LOSSGAUGE_SERVER_RPC_HANDSHAKE_COUNTER_H_

#include "server/state/service_counters.h"

namespace lossgauge::rpc {

// From its making on, gRPC's log goes through ours, with errors only (or what GRPC_VERBOSITY asks for). One at a time in a process.
class HandshakeCounter {
 public:
  // `counters` outlives it; null: nothing is counted.
  explicit HandshakeCounter(state::ServiceCounters* counters);
  ~HandshakeCounter();
  HandshakeCounter(const HandshakeCounter&) = delete;
  HandshakeCounter& operator=(const HandshakeCounter&) = delete;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_HANDSHAKE_COUNTER_H_
