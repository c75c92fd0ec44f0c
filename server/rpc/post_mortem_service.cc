#include "server/rpc/post_mortem_service.h"

#include "server/rpc/bounded_executor.h"
#include "server/rpc/grpc_status.h"

namespace lossgauge::rpc {
namespace {

// Request and response live until the reactor is finished, so the task may use them.
template <class Request, class Response>
grpc::ServerUnaryReactor* Later(grpc::CallbackServerContext* context, const StreamContext& stream_context, const api::Api& api,
                                absl::StatusOr<Response> (api::Api::*call)(const Request&) const, const Request* request, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status status = stream_context.gate.Call(*context); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  const auto run = [&api, call, context, request, response, reactor] {
    if (context->IsCancelled()) return reactor->Finish({grpc::StatusCode::CANCELLED, "the call ended while it waited for history"});
    absl::StatusOr<Response> result = (api.*call)(*request);
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpcStatus(result.status()));
  };
  if (!stream_context.executor.TryPost(run)) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls are waiting for history; try again a little later"});
  }
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* PostMortemService::ListJournal(grpc::CallbackServerContext* context, const v1::ListJournalRequest* request,
                                                         v1::ListJournalResponse* response) {
  return Later(context, context_, api_, &api::Api::ListJournal, request, response);
}

grpc::ServerUnaryReactor* PostMortemService::ListPolicies(grpc::CallbackServerContext* context, const v1::ListPoliciesRequest* request,
                                                          v1::ListPoliciesResponse* response) {
  return Later(context, context_, api_, &api::Api::ListPolicies, request, response);
}

}  // namespace lossgauge::rpc
