// TLS for gRPC, both ends.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_GRPC_CREDENTIALS_H_
#define LOSSGAUGE_SERVER_TRANSPORT_GRPC_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/transport/secret_file.h"
#include "server/transport/server_tls.h"

namespace lossgauge::transport {

// `tls` outlives the server. Each handshake asks it for what is valid then.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(ServerTls* tls);

struct ClientTlsFiles {
  std::string ca;    // PEM of the authorities that servers are checked against; "" = no TLS, unless use_tls
  std::string cert;  // PEM, for servers that ask for one; with key, or neither
  std::string key;
  bool use_tls = false;  // with ca "": the system's authorities
};

// INVALID_ARGUMENT names file and reason; `prefix` stands before "ca", "cert", "key" in flag names, such as "--tls_". Files are read now: a
// client makes new ones for a new connection after they changed.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const std::string& prefix, const ClientTlsFiles& files);

// Credentials of a client that come anew when their files change. Copyable: each copy looks for itself. Not thread-safe.
class RenewedCredentials {
 public:
  RenewedCredentials(std::string prefix, ClientTlsFiles files);
  // Null: as they were at the call before. Files that cannot be read are logged, leave things as they are, and are read again at the next call.
  std::shared_ptr<grpc::ChannelCredentials> operator()();

 private:
  std::string prefix_;
  ClientTlsFiles files_;
  FileWatch watch_;
  bool is_due_ = true;
  std::string last_error_;
};

}  // namespace lossgauge::transport

#endif  // LOSSGAUGE_SERVER_TRANSPORT_GRPC_CREDENTIALS_H_
