#include "server/main/service_access.h"

#include <utility>

#include "server/api/listen_address.h"

namespace lossgauge::main {
namespace {

constexpr std::size_t kEventStreamsPerClient = 16;  // half of what there are

// An address that makes no sense is the server's to refuse; until then nobody may write.
bool IsLoopback(const std::string& listen) {
  const absl::StatusOr<api::ListenAddress> address = api::ParseListenAddress(listen);
  return address.ok() && api::IsLoopback(*address);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceAccess>> ServiceAccess::Make(const ServiceFlags& flags, const std::string& grpc_listen,
                                                                   const std::string& http_listen) {
  std::unique_ptr<ServiceAccess> access(new ServiceAccess);
  if (!flags.tls.cert.empty()) {
    auto tls = transport::ServerTls::Load(flags.tls, &access->counters_);
    if (!tls.ok()) return tls.status();
    access->tls_ = *std::move(tls);
  }
  if (!flags.token_file.empty()) {
    auto tokens = transport::TokenFile::Load("--token_file", flags.token_file);
    if (!tokens.ok()) return tokens.status();
    access->tokens_ = *std::move(tokens);
  }
  access->grpc_guard_.emplace(state::Protocol::kGrpc, access->tokens_.get(), IsLoopback(grpc_listen), &access->counters_);
  access->http_guard_.emplace(state::Protocol::kHttp, access->tokens_.get(), IsLoopback(http_listen), &access->counters_);
  transport::ClientLimits limits;
  limits.calls_per_second = flags.max_calls_per_client;
  limits.max_streams = flags.max_streams_per_client;
  access->grpc_limiter_ = std::make_unique<transport::ClientLimiter>(limits);
  access->http_limiter_ = std::make_unique<transport::ClientLimiter>(limits);
  return access;
}

void ServiceAccess::Fill(rpc::GrpcOptions* options) {
  options->tls = tls_.get();
  options->guard = &*grpc_guard_;
  options->limiter = grpc_limiter_.get();
  options->counters = &counters_;
}

void ServiceAccess::Fill(web::WebOptions* options) {
  options->tls = tls_.get();
  options->guard = &*http_guard_;
  options->limiter = http_limiter_.get();
  options->max_event_streams_per_client = kEventStreamsPerClient;
  options->counters = &counters_;
}

}  // namespace lossgauge::main
