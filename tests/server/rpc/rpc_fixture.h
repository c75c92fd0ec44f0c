// A gRPC server on a free port over hand-made state, and clients for it.
#ifndef LOSSGAUGE_TESTS_SERVER_RPC_RPC_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_RPC_RPC_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/rpc/grpc_server.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::testing {

class RpcFixture : public ::testing::Test {
 protected:
  static rpc::GrpcOptions Options() {
    rpc::GrpcOptions options;
    options.listen = "127.0.0.1:0";
    options.tick_ns = 5'000'000;
    return options;
  }

  void StartServer(rpc::GrpcOptions options = Options()) {
    server_ = std::make_unique<rpc::GrpcServer>(std::move(options), api_);
    const absl::Status status = server_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  void Publish(std::vector<std::shared_ptr<const state::RunSnapshot>> runs) { board_.Publish(MakeSnapshot(++version_, std::move(runs))); }

  // A connection of its own each time.
  std::shared_ptr<grpc::Channel> Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt("test.connection", ++connections_);
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<v1::LossGauge::Stub> Client() { return v1::LossGauge::NewStub(Connect()); }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  api::Api api_{board_, mailbox_, history_, clock_};
  std::unique_ptr<rpc::GrpcServer> server_;
  std::uint64_t version_ = 0;
  int connections_ = 0;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_RPC_RPC_FIXTURE_H_
