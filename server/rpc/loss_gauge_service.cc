#include "server/rpc/loss_gauge_service.h"

#include <memory>
#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/rpc/pending_reply.h"

namespace lossgauge::rpc {
namespace {

template <typename Response>
void Answer(absl::StatusOr<Response> result, Response* response, grpc::ServerUnaryReactor* reactor) {
  if (result.ok()) *response = std::move(*result);
  reactor->Finish(ToGrpcStatus(result.status()));
}

// True: the call is answered with it.
bool Refused(const absl::Status& status, grpc::ServerUnaryReactor* reactor) {
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return !status.ok();
}

}  // namespace

grpc::ServerUnaryReactor* LossGaugeService::ListRuns(grpc::CallbackServerContext* context, const v1::ListRunsRequest* request,
                                                     v1::ListRunsResponse* response) {
  if (request->include_past()) {
    return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.ListRuns(*request), response, reactor); });
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Call(*context), reactor)) return reactor;
  Answer(api_.ListRuns(*request), response, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* LossGaugeService::GetRun(grpc::CallbackServerContext* context, const v1::GetRunRequest* request,
                                                   v1::Run* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Call(*context), reactor)) return reactor;
  Answer(api_.GetRun(*request), response, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* LossGaugeService::GetVerdict(grpc::CallbackServerContext* context, const v1::GetVerdictRequest* request,
                                                       v1::Verdict* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Call(*context), reactor)) return reactor;
  Answer(api_.GetVerdict(*request), response, reactor);
  return reactor;
}

grpc::ServerWriteReactor<v1::Verdict>* LossGaugeService::WatchVerdict(grpc::CallbackServerContext* context,
                                                                      const v1::WatchVerdictRequest* request) {
  return WatchReactor<api::VerdictWatch>::Open(context_, context_.gate.Stream(*context), api_.WatchVerdict(*request));
}

grpc::ServerWriteReactor<v1::WatchStepsResponse>* LossGaugeService::WatchSteps(grpc::CallbackServerContext* context,
                                                                               const v1::WatchStepsRequest* request) {
  return WatchReactor<api::StepWatch>::Open(context_, context_.gate.Stream(*context), api_.WatchSteps(*request));
}

grpc::ServerUnaryReactor* LossGaugeService::ListVerdicts(grpc::CallbackServerContext* context, const v1::ListVerdictsRequest* request,
                                                         v1::ListVerdictsResponse* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.ListVerdicts(*request), response, reactor); });
}

grpc::ServerUnaryReactor* LossGaugeService::ListSteps(grpc::CallbackServerContext* context, const v1::ListStepsRequest* request,
                                                      v1::ListStepsResponse* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.ListSteps(*request), response, reactor); });
}

grpc::ServerUnaryReactor* LossGaugeService::ListIncidents(grpc::CallbackServerContext* context, const v1::ListIncidentsRequest* request,
                                                          v1::ListIncidentsResponse* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.ListIncidents(*request), response, reactor); });
}

grpc::ServerUnaryReactor* LossGaugeService::ListEvents(grpc::CallbackServerContext* context, const v1::ListEventsRequest* request,
                                                       v1::ListEventsResponse* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.ListEvents(*request), response, reactor); });
}

grpc::ServerUnaryReactor* LossGaugeService::CompareRuns(grpc::CallbackServerContext* context, const v1::CompareRunsRequest* request,
                                                        v1::Comparison* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) {
    Answer(api_.CompareRuns(*request, [context] { return context->IsCancelled(); }), response, reactor);
  });
}

grpc::ServerUnaryReactor* LossGaugeService::Explain(grpc::CallbackServerContext* context, const v1::ExplainRequest* request,
                                                    v1::Explanation* response) {
  return Later(context, [=, this](grpc::ServerUnaryReactor* reactor) { Answer(api_.Explain(*request), response, reactor); });
}

grpc::ServerUnaryReactor* LossGaugeService::GetPolicy(grpc::CallbackServerContext* context, const v1::GetPolicyRequest* request,
                                                      v1::Policy* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Call(*context), reactor)) return reactor;
  Answer(api_.GetPolicy(*request), response, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* LossGaugeService::AcknowledgeIncident(grpc::CallbackServerContext* context,
                                                                const v1::AcknowledgeIncidentRequest* request, v1::Incident* response) {
  return Ask(context, response, [&](std::function<void(absl::StatusOr<v1::Incident>)> done) {
    api_.AcknowledgeIncident(*request, std::move(done));
  });
}

grpc::ServerUnaryReactor* LossGaugeService::ReportAction(grpc::CallbackServerContext* context, const v1::ReportActionRequest* request,
                                                         v1::ReportActionResponse* response) {
  return Ask(context, response, [&](std::function<void(absl::StatusOr<v1::ReportActionResponse>)> done) {
    api_.ReportAction(*request, std::move(done));
  });
}

grpc::ServerUnaryReactor* LossGaugeService::SetMode(grpc::CallbackServerContext* context, const v1::SetModeRequest* request,
                                                    v1::SetModeResponse* response) {
  return Ask(context, response, [&](std::function<void(absl::StatusOr<v1::SetModeResponse>)> done) { api_.SetMode(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* LossGaugeService::Later(grpc::CallbackServerContext* context,
                                                  std::function<void(grpc::ServerUnaryReactor*)> call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Call(*context), reactor)) return reactor;
  // Request, response and context live until the reactor is finished, so the task may use them.
  const auto run = [call = std::move(call), context, reactor] {
    if (!context->IsCancelled()) return call(reactor);
    reactor->Finish({grpc::StatusCode::CANCELLED, "the call ended while it waited for history"});  // for nobody, but the reactor must finish
  };
  if (!context_.executor.TryPost(run)) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls are waiting for history; try again a little later"});
  }
  return reactor;
}

template <typename Response, typename Send>
grpc::ServerUnaryReactor* LossGaugeService::Ask(grpc::CallbackServerContext* context, Response* response, const Send& send) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(context_.gate.Write(*context), reactor)) return reactor;
  auto reply = std::make_shared<PendingReply>(reactor, context_.hub, context_.clock, context_.clock.BootNs() + reply_timeout_ns_);
  if (absl::Status status = context_.hub.Add(reply); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  // The answer may come long after the call was ended by its deadline or by the server: then it is dropped.
  send([reply, response](absl::StatusOr<Response> result) {
    if (!reply->Claim()) return;
    if (result.ok()) *response = std::move(*result);
    reply->Finish(result.status());
  });
  return reactor;
}

}  // namespace lossgauge::rpc
