// The certificate that our servers show, replaced while they run: each handshake takes what is valid at that moment, connections that
// stand go on. gRPC and HTTP use the same.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_SERVER_TLS_H_
#define LOSSGAUGE_SERVER_TRANSPORT_SERVER_TLS_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/service_counters.h"
#include "server/transport/secret_file.h"

namespace lossgauge::transport {

struct ServerTlsFiles {
  std::string cert;       // --tls_cert: PEM, the server's certificate, then those of its chain
  std::string key;        // --tls_key: PEM, without a password; not readable by everybody
  std::string client_ca;  // --tls_client_ca: PEM; "" = clients show no certificate
};

// One consistent set of files. Immutable.
struct TlsMaterial {
  std::uint64_t generation = 0;  // rises with each reload
  std::string cert_pem;
  std::string key_pem;
  std::string client_ca_pem;
  std::int64_t not_after_s = 0;  // of the certificate; seconds since the epoch
  std::shared_ptr<SSL_CTX> context;  // TLS 1.2 at least
};

// Thread-safe.
class ServerTls {
 public:
  // INVALID_ARGUMENT names flag, file and reason: not readable, no PEM, key and certificate that do not belong together. One that has expired is
  // taken with an error in the log: a monitor that does not start helps nobody.
  // `counters` outlives it. `look_every`: how often at most files are looked at.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Load(ServerTlsFiles files, state::ServiceCounters* counters,
                                                         std::chrono::milliseconds look_every = std::chrono::milliseconds(1000));

  // What is valid now. Files that were replaced are taken if they belong together and have not expired; else the old ones stay, which is
  // counted and logged once, and the files are tried again at the next look.
  std::shared_ptr<const TlsMaterial> Current();

  bool asks_clients() const { return !files_.client_ca.empty(); }

 private:
  ServerTls(ServerTlsFiles files, state::ServiceCounters* counters, std::chrono::milliseconds look_every);
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> Read(std::uint64_t generation) const;

  const ServerTlsFiles files_;
  state::ServiceCounters* const counters_;
  std::mutex mutex_;
  FileWatch watch_;
  Pace pace_;
  bool failed_ = false;
  std::string last_error_;
  std::shared_ptr<const TlsMaterial> current_;
};

}  // namespace lossgauge::transport

#endif  // LOSSGAUGE_SERVER_TRANSPORT_SERVER_TLS_H_
