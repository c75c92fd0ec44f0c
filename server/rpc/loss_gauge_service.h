// lossgauge.v1.LossGauge over api::Api.
#ifndef LOSSGAUGE_SERVER_RPC_LOSS_GAUGE_SERVICE_H_
#define LOSSGAUGE_SERVER_RPC_LOSS_GAUGE_SERVICE_H_

#include <cstdint>
#include <functional>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/api/api.h"
#include "server/rpc/watch_reactor.h"

namespace lossgauge::rpc {

// Thread-safe. Every call passes the context's gate first. Calls that may read history run on the context's executor.
class LossGaugeService final : public v1::LossGauge::CallbackService {
 public:
  // A call that the drain thread answers ends with UNAVAILABLE after `reply_timeout_ns`.
  LossGaugeService(const api::Api& api, const StreamContext& context, std::int64_t reply_timeout_ns)
      : api_(api), context_(context), reply_timeout_ns_(reply_timeout_ns) {}

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context, const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override;
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context, const v1::GetRunRequest* request, v1::Run* response) override;
  grpc::ServerUnaryReactor* GetVerdict(grpc::CallbackServerContext* context, const v1::GetVerdictRequest* request,
                                       v1::Verdict* response) override;
  grpc::ServerWriteReactor<v1::Verdict>* WatchVerdict(grpc::CallbackServerContext* context, const v1::WatchVerdictRequest* request) override;
  grpc::ServerUnaryReactor* ListVerdicts(grpc::CallbackServerContext* context, const v1::ListVerdictsRequest* request,
                                         v1::ListVerdictsResponse* response) override;
  grpc::ServerUnaryReactor* ListSteps(grpc::CallbackServerContext* context, const v1::ListStepsRequest* request,
                                      v1::ListStepsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchStepsResponse>* WatchSteps(grpc::CallbackServerContext* context,
                                                               const v1::WatchStepsRequest* request) override;
  grpc::ServerUnaryReactor* ListIncidents(grpc::CallbackServerContext* context, const v1::ListIncidentsRequest* request,
                                          v1::ListIncidentsResponse* response) override;
  grpc::ServerUnaryReactor* AcknowledgeIncident(grpc::CallbackServerContext* context, const v1::AcknowledgeIncidentRequest* request,
                                                v1::Incident* response) override;
  grpc::ServerUnaryReactor* ReportAction(grpc::CallbackServerContext* context, const v1::ReportActionRequest* request,
                                         v1::ReportActionResponse* response) override;
  grpc::ServerUnaryReactor* SetMode(grpc::CallbackServerContext* context, const v1::SetModeRequest* request, v1::SetModeResponse* response) override;
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context, const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override;
  grpc::ServerUnaryReactor* CompareRuns(grpc::CallbackServerContext* context, const v1::CompareRunsRequest* request,
                                        v1::Comparison* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context, const v1::ExplainRequest* request, v1::Explanation* response) override;
  grpc::ServerUnaryReactor* GetPolicy(grpc::CallbackServerContext* context, const v1::GetPolicyRequest* request, v1::Policy* response) override;

 private:
  // Runs `call` on the executor; it finishes the reactor.
  grpc::ServerUnaryReactor* Later(grpc::CallbackServerContext* context, std::function<void(grpc::ServerUnaryReactor*)> call);
  // Hands `send` a callback for the drain thread's answer.
  template <typename Response, typename Send>
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, Response* response, const Send& send);

  const api::Api& api_;
  const StreamContext context_;
  const std::int64_t reply_timeout_ns_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_LOSS_GAUGE_SERVICE_H_
