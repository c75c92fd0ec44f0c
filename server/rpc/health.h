// What the health service says of a name. Pure, so that a liveness probe's every answer can be tested.
#ifndef LOSSGAUGE_SERVER_RPC_HEALTH_H_
#define LOSSGAUGE_SERVER_RPC_HEALTH_H_

#include <string>

#include "absl/status/statusor.h"
#include "grpc/health/v1/health.pb.h"
#include "server/state/snapshot.h"

namespace lossgauge::rpc {

using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

// ""                  this server: NOT_SERVING while it shuts down, or is not ready.
// "run/RUN/restart"   for a liveness probe on the trainer: NOT_SERVING only while the verdict is RESTART and the run is not in shadow mode.
//                     SERVING for a run that is not known (yet): no data must never kill a job.
// "run/RUN"           for people: NOT_SERVING on RESTART or HALT. SERVICE_UNKNOWN for a run that is not known.
// Anything else       SERVICE_UNKNOWN.
// RUN is the run's name as it is, slashes included. "run/A/restart" means run A, even if a run is called "A/restart".
ServingStatus HealthOf(const std::string& service_untrusted, const state::Snapshot& snapshot, state::TimeNs now_ns, bool is_ready);

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_HEALTH_H_
