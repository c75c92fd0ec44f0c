#include "server/rpc/malformed_counter.h"

namespace lossgauge::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;

class Counter final : public grpc::experimental::Interceptor {
 public:
  explicit Counter(state::ServiceCounters* counters) : counters_(counters) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    // gRPC 1.51 answers UNIMPLEMENTED where a request of a method that there is could not be parsed; nothing of ours does.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS) &&
        methods->GetSendStatus().error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      counters_->Refuse(state::Protocol::kGrpc, state::Refusal::kMalformed);
    }
    methods->Proceed();
  }

 private:
  state::ServiceCounters* const counters_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(state::ServiceCounters* counters) : counters_(counters) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo*) override { return new Counter(counters_); }

 private:
  state::ServiceCounters* const counters_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> MakeMalformedCounter(state::ServiceCounters* counters) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<Factory>(counters));
  return creators;
}

}  // namespace lossgauge::rpc
