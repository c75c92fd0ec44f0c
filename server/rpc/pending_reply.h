// A call whose answer comes from the drain thread: finished once, by the answer, by its deadline, or by the server's end.
#ifndef LOSSGAUGE_SERVER_RPC_PENDING_REPLY_H_
#define LOSSGAUGE_SERVER_RPC_PENDING_REPLY_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/rpc/watch_hub.h"
#include "server/state/clock.h"

namespace lossgauge::rpc {

class PendingReply final : public Watcher {
 public:
  // `reactor` must be finished by nobody else. After `deadline_ns` on the clock's boot time it ends with UNAVAILABLE.
  PendingReply(grpc::ServerUnaryReactor* reactor, WatchHub& hub, state::Clock& clock, std::int64_t deadline_boot_ns)
      : reactor_(reactor), hub_(hub), clock_(clock), deadline_boot_ns_(deadline_boot_ns) {}

  // True for the first caller only: it may write the response, and must call Finish. For the others the call, the hub and the server may be
  // gone already.
  bool Claim() { return !claimed_.exchange(true); }
  void Finish(const absl::Status& status);  // also leaves the hub

  void Wake(const std::shared_ptr<const state::Snapshot>& snapshot) override;
  void End(const absl::Status& status) override;

 private:
  grpc::ServerUnaryReactor* const reactor_;  // not to be touched after Finish
  WatchHub& hub_;  // outlives every call
  state::Clock& clock_;
  const std::int64_t deadline_boot_ns_;
  std::atomic<bool> claimed_{false};
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_PENDING_REPLY_H_
