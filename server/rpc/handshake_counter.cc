#include "server/rpc/handshake_counter.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <mutex>
#include <string_view>

namespace lossgauge::rpc {
namespace {

std::mutex g_mutex;
state::ServiceCounters* g_counters = nullptr;

gpr_log_severity ShownSeverity() {
  const char* asked = std::getenv("GRPC_VERBOSITY");
  const std::string_view text = asked == nullptr ? "" : asked;
  return text == "DEBUG" ? GPR_LOG_SEVERITY_DEBUG : text == "INFO" ? GPR_LOG_SEVERITY_INFO : GPR_LOG_SEVERITY_ERROR;
}

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void Count(std::string_view message) {
  // "Handshake read failed" alone is a connection that was opened and closed again, as probes of load balancers are.
  if (!Contains(message, "Ssl handshake failed") && !Contains(message, "timed out")) return;
  std::uint64_t count = 0;
  {
    const std::lock_guard lock(g_mutex);
    if (g_counters == nullptr) return;
    g_counters->Refuse(state::Protocol::kGrpc, state::Refusal::kTls);
    count = g_counters->Refused(state::Protocol::kGrpc, state::Refusal::kTls);
  }
  if ((count & (count - 1)) == 0) {
    const std::string_view reason = message.substr(0, message.find('{'));  // what follows is for gRPC's makers
    spdlog::warn("a TLS handshake of a gRPC client came to nothing ({} times): {}", count, reason);
  }
}

void Log(gpr_log_func_args* args) {
  static const gpr_log_severity shown = ShownSeverity();
  const std::string_view file = args->file, message = args->message;
  // The server's own word, of each of its connections; a client's failures are said elsewhere.
  if (file.ends_with("chttp2_server.cc") && message.starts_with("Handshaking failed")) Count(message);
  if (args->severity < shown) return;
  // Whoever connects can cause as many of these as he likes: they are counted above.
  if (args->severity == GPR_LOG_SEVERITY_ERROR && file.ends_with("ssl_transport_security.cc") && message.starts_with("Handshake failed")) return;
  spdlog::log(args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::err : spdlog::level::info, "gRPC: {}", message);
}

}  // namespace

HandshakeCounter::HandshakeCounter(state::ServiceCounters* counters) {
  {
    const std::lock_guard lock(g_mutex);
    g_counters = counters;
  }
  gpr_set_log_function(&Log);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

HandshakeCounter::~HandshakeCounter() {
  const std::lock_guard lock(g_mutex);
  g_counters = nullptr;
}

}  // namespace lossgauge::rpc
