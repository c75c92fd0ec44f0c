// lossgauge.v1.PostMortem over api::Api.
#ifndef LOSSGAUGE_SERVER_RPC_POST_MORTEM_SERVICE_H_
#define LOSSGAUGE_SERVER_RPC_POST_MORTEM_SERVICE_H_

#include "lossgauge/v1/post_mortem.grpc.pb.h"
#include "server/api/api.h"
#include "server/rpc/watch_reactor.h"

namespace lossgauge::rpc {

// Thread-safe. Both calls read history, on the context's executor.
class PostMortemService final : public v1::PostMortem::CallbackService {
 public:
  PostMortemService(const api::Api& api, const StreamContext& context) : api_(api), context_(context) {}

  grpc::ServerUnaryReactor* ListJournal(grpc::CallbackServerContext* context, const v1::ListJournalRequest* request,
                                        v1::ListJournalResponse* response) override;
  grpc::ServerUnaryReactor* ListPolicies(grpc::CallbackServerContext* context, const v1::ListPoliciesRequest* request,
                                         v1::ListPoliciesResponse* response) override;

 private:
  const api::Api& api_;
  const StreamContext context_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_POST_MORTEM_SERVICE_H_
