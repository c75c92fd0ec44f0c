// The part of the command line that says who may connect, and what he may take: the same for every role.
#ifndef LOSSGAUGE_SERVER_MAIN_SERVICE_FLAGS_H_
#define LOSSGAUGE_SERVER_MAIN_SERVICE_FLAGS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "server/transport/grpc_credentials.h"
#include "server/transport/server_tls.h"

namespace lossgauge::main {

struct ServiceFlags {
  transport::ServerTlsFiles tls;  // cert "": no TLS
  std::string token_file;
  double max_calls_per_client = 0;
  std::size_t max_streams_per_client = 0;
  transport::ClientTlsFiles forward_tls;  // ca "": no TLS
  std::string forward_token_file;
};

// After the command line was parsed. INVALID_ARGUMENT names the flag.
absl::StatusOr<ServiceFlags> GetServiceFlags();

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_SERVICE_FLAGS_H_
