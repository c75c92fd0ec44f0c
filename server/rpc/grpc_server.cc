#include "server/rpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/listen_address.h"
#include "server/rpc/bounded_executor.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/handshake_counter.h"
#include "server/rpc/health_service.h"
#include "server/rpc/loss_gauge_service.h"
#include "server/rpc/malformed_counter.h"
#include "server/rpc/post_mortem_service.h"
#include "server/rpc/watch_hub.h"
#include "server/transport/grpc_credentials.h"

namespace lossgauge::rpc {

// Destroyed from the bottom up: the server first, then what its calls used.
struct GrpcServer::Running {
  Running(const GrpcOptions& options, const api::Api& api)
      : hub(api.board(), options.max_streams, options.tick_ns),
        executor(options.history_threads, options.history_queue),
        gate(options.guard, options.limiter, options.counters),
        context{api.board(), api.clock(), hub, executor, gate},
        loss_gauge(api, context, options.reply_timeout_ns),
        post_mortem(api, context),
        health(context, options.ready) {}

  WatchHub hub;
  BoundedExecutor executor;
  CallGate gate;
  StreamContext context;
  LossGaugeService loss_gauge;
  PostMortemService post_mortem;
  HealthService health;
  std::optional<HandshakeCounter> handshakes;            // with TLS
  std::shared_ptr<grpc::ServerCredentials> credentials;  // the server asks them at each handshake
  std::unique_ptr<grpc::Server> server;
};

GrpcServer::GrpcServer(GrpcOptions options, const api::Api& api) : options_(std::move(options)), api_(api) {}

GrpcServer::~GrpcServer() { Shutdown(); }

absl::Status GrpcServer::Start() {
  if (running_) return absl::FailedPreconditionError("the gRPC server runs already");
  const absl::StatusOr<api::ListenAddress> address = api::ParseListenAddress(options_.listen);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat("--grpc_listen: ", address.status().message()));

  // gRPC says that it could not bind, but not why; and it takes a port that another holds with SO_REUSEPORT off only by failing late. So the
  // address is tried with a socket of our own first.
  absl::StatusOr<int> probe = api::OpenListeningSocket(*address, 1, "gRPC", "--grpc_listen");
  if (!probe.ok()) return probe.status();
  close(*probe);

  // Once in a process, before any server is built.
  static const bool reflection = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)reflection;

  auto running = std::make_unique<Running>(options_, api_);
  running->credentials = options_.tls != nullptr ? transport::MakeServerCredentials(options_.tls) : grpc::InsecureServerCredentials();
  if (options_.tls != nullptr) running->handshakes.emplace(options_.counters);
  grpc::ServerBuilder builder;
  int bound_port = 0;
  builder.AddListeningPort(address->host.empty() ? absl::StrCat("[::]:", address->port) : address->Text(), running->credentials,
                           &bound_port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_streams_per_connection);
  // Clients that vanish without a word are found within 50 s; clients may ask for life themselves every 10 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000);
  builder.SetMaxReceiveMessageSize(options_.max_request_bytes);
  grpc::ResourceQuota quota("lossgauged");
  quota.Resize(options_.memory_quota_bytes);
  quota.SetMaxThreads(16);  // of the reflection service only, which is not a callback service
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
  if (options_.counters != nullptr) builder.experimental().SetInterceptorCreators(MakeMalformedCounter(options_.counters));
  builder.RegisterService(&running->loss_gauge);
  builder.RegisterService(&running->post_mortem);
  builder.RegisterService(&running->health);
  for (grpc::Service* service : options_.further_services) builder.RegisterService(service);
  running->server = builder.BuildAndStart();
  if (!running->server || bound_port <= 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address->Text(), " for gRPC: the port was taken by another process just now, "
                                               "or gRPC refused it (its own log says more); choose another with --grpc_listen"));
  }
  const bool exposed = !api::IsLoopback(*address) && options_.tls == nullptr;
  if (options_.counters != nullptr) options_.counters->exposed[static_cast<std::size_t>(state::Protocol::kGrpc)] = exposed ? 1 : 0;
  if (exposed) {
    spdlog::warn("gRPC listens on {} without TLS: whoever is on the way can read what is said, tokens included. Give --tls_cert and --tls_key, "
                 "use a loopback address, or let a network policy guard it",
                 address->Text());
  }
  host_ = address->host;
  port_ = bound_port;
  running_ = std::move(running);
  return absl::OkStatus();
}

void GrpcServer::Shutdown(std::int64_t grace_ns) {
  if (!running_) return;
  running_->health.SetShuttingDown();
  running_->hub.WakeAll();  // health watchers hear of it before their streams end
  running_->hub.Close();
  running_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace_ns));
  running_->server->Wait();
  running_.reset();
  port_ = 0;
}

std::string GrpcServer::address() const {
  return api::ListenAddress{host_, static_cast<std::uint16_t>(port_)}.Text();
}

std::size_t GrpcServer::open_streams() const { return running_ ? running_->hub.size() : 0; }

}  // namespace lossgauge::rpc
