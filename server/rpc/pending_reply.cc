#include "server/rpc/pending_reply.h"

#include "server/rpc/grpc_status.h"

namespace lossgauge::rpc {

void PendingReply::Finish(const absl::Status& status) {
  hub_.Remove(this);
  reactor_->Finish(ToGrpcStatus(status));
}

void PendingReply::Wake(const std::shared_ptr<const state::Snapshot>&) {
  if (clock_.BootNs() < deadline_boot_ns_ || !Claim()) return;
  Finish(absl::UnavailableError("lossgauged did not get to it in time; whether it was recorded is not known: look, then try again"));
}

void PendingReply::End(const absl::Status& status) {
  if (Claim()) Finish(status);
}

}  // namespace lossgauge::rpc
