// What a call has to pass before anything is looked at: its client's rate and streams, and a token if it writes.
#ifndef LOSSGAUGE_SERVER_RPC_CALL_GATE_H_
#define LOSSGAUGE_SERVER_RPC_CALL_GATE_H_

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/service_counters.h"
#include "server/transport/client_limiter.h"
#include "server/transport/token_file.h"

namespace lossgauge::rpc {

// Thread-safe. Pointers may be null: then what they stand for is not checked, or not counted. RESOURCE_EXHAUSTED: the client asks for too much.
class CallGate {
 public:
  CallGate(const transport::WriteGuard* guard, transport::ClientLimiter* limiter, state::ServiceCounters* counters)
      : guard_(guard), limiter_(limiter), counters_(counters) {}

  absl::Status Call(const grpc::ServerContextBase& context) const;
  // Also for what writes: a token, where one is needed.
  absl::Status Write(const grpc::ServerContextBase& context) const;
  // The slot is held until the stream is over.
  absl::StatusOr<std::shared_ptr<void>> Stream(const grpc::ServerContextBase& context) const;
  absl::StatusOr<std::shared_ptr<void>> WritingStream(const grpc::ServerContextBase& context) const;

  state::ServiceCounters* counters() const { return counters_; }

 private:
  absl::StatusOr<std::shared_ptr<void>> Slot(const grpc::ServerContextBase& context) const;
  void Count(state::Refusal refusal) const;

  const transport::WriteGuard* const guard_;
  transport::ClientLimiter* const limiter_;
  state::ServiceCounters* const counters_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_CALL_GATE_H_
