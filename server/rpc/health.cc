#include "server/rpc/health.h"

#include <string_view>

#include "server/api/convert_verdict.h"

namespace lossgauge::rpc {

using grpc::health::v1::HealthCheckResponse;

ServingStatus HealthOf(const std::string& service_untrusted, const state::Snapshot& snapshot, state::TimeNs now_ns, bool is_ready) {
  if (service_untrusted.empty()) return is_ready ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  constexpr std::string_view kPrefix = "run/";
  constexpr std::string_view kRestart = "/restart";
  std::string_view name = service_untrusted;
  if (name.substr(0, kPrefix.size()) != kPrefix) return HealthCheckResponse::SERVICE_UNKNOWN;
  name.remove_prefix(kPrefix.size());
  const bool restart_only = name.size() >= kRestart.size() && name.substr(name.size() - kRestart.size()) == kRestart;
  if (restart_only) name.remove_suffix(kRestart.size());
  const auto run = state::FindRun(snapshot, std::string(name));
  if (run == nullptr) return restart_only ? HealthCheckResponse::SERVING : HealthCheckResponse::SERVICE_UNKNOWN;
  const state::Verdict verdict = api::CurrentVerdict(*run, now_ns);
  const bool calm = run->mode != "advise" || verdict.mode != "advise";
  const bool bad = verdict.action == state::Action::kRestart || (!restart_only && verdict.action == state::Action::kHalt);
  return bad && !calm ? HealthCheckResponse::NOT_SERVING : HealthCheckResponse::SERVING;
}

}  // namespace lossgauge::rpc
