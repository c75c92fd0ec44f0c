#include "server/rpc/call_gate.h"

#include <grpcpp/server_context.h>

#include <string_view>

namespace lossgauge::rpc {

void CallGate::Count(state::Refusal refusal) const {
  if (counters_ != nullptr) counters_->Refuse(state::Protocol::kGrpc, refusal);
}

absl::Status CallGate::Call(const grpc::ServerContextBase& context) const {
  if (limiter_ == nullptr || limiter_->AdmitCall(transport::ClientOfPeer(context.peer()))) return absl::OkStatus();
  Count(state::Refusal::kRate);
  return absl::ResourceExhaustedError("this client makes more calls than it may (--max_calls_per_client); watch instead of asking, or ask less often");
}

absl::Status CallGate::Write(const grpc::ServerContextBase& context) const {
  if (absl::Status status = Call(context); !status.ok()) return status;
  if (guard_ == nullptr) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  return guard_->Check(found == metadata.end() ? std::string_view() : std::string_view(found->second.data(), found->second.size()));
}

absl::StatusOr<std::shared_ptr<void>> CallGate::Stream(const grpc::ServerContextBase& context) const {
  if (absl::Status status = Call(context); !status.ok()) return status;
  return Slot(context);
}

absl::StatusOr<std::shared_ptr<void>> CallGate::WritingStream(const grpc::ServerContextBase& context) const {
  if (absl::Status status = Write(context); !status.ok()) return status;
  return Slot(context);
}

absl::StatusOr<std::shared_ptr<void>> CallGate::Slot(const grpc::ServerContextBase& context) const {
  if (limiter_ == nullptr) return std::shared_ptr<void>();
  if (std::shared_ptr<void> slot = limiter_->AdmitStream(transport::ClientOfPeer(context.peer()))) return slot;
  Count(state::Refusal::kStreams);
  return absl::ResourceExhaustedError("this client holds as many streams as it may (--max_streams_per_client); close some");
}

}  // namespace lossgauge::rpc
