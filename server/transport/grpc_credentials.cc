#include "server/transport/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/transport/secret_file.h"
#include "spdlog/spdlog.h"

namespace lossgauge::transport {
namespace {

// gRPC's C++ interface reloads certificates only by looking at files itself, with whatever stands in them; its C interface asks at each
// handshake. So the files are read and checked in one place, for gRPC and HTTP alike.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(ServerTls* tls) : tls_(tls) {
    const auto ask = tls->asks_clients() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(ask, &ReloadingCredentials::Fetch, this));
  }
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // At each handshake, from gRPC's threads.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadingCredentials*>(self)->Fetch(config);
  }
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsMaterial> material = tls_->Current();
    const std::lock_guard lock(mutex_);
    if (material->generation == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material->key_pem.c_str(), material->cert_pem.c_str()};
    // gRPC 1.51 aborts without authorities, also where it asks no client for a certificate; it then checks nothing against them.
    const std::string& authorities = tls_->asks_clients() ? material->client_ca_pem : material->cert_pem;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    given_ = material->generation;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  ServerTls* const tls_;
  grpc_server_credentials* credentials_ = nullptr;
  std::mutex mutex_;
  std::uint64_t given_ = 0;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(ServerTls* tls) { return std::make_shared<ReloadingCredentials>(tls); }

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const std::string& prefix, const ClientTlsFiles& files) {
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "cert and ", prefix, "key belong together; give both or neither"));
  }
  if (files.ca.empty() && !files.use_tls) {
    if (!files.cert.empty()) return absl::InvalidArgumentError(absl::StrCat(prefix, "cert needs ", prefix, "ca: without it there is no TLS"));
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  const auto read = [&](const char* name, const std::string& path, bool secret, std::string* text) -> absl::Status {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> content = ReadSmallFile(absl::StrCat(prefix, name), path, secret);
    if (!content.ok()) return content.status();
    if (content->find("-----BEGIN ") == std::string::npos) return absl::InvalidArgumentError(absl::StrCat(prefix, name, ": ", path, ": no PEM stands in it"));
    *text = *std::move(content);
    return absl::OkStatus();
  };
  for (const absl::Status& status : {read("ca", files.ca, false, &options.pem_root_certs), read("cert", files.cert, false, &options.pem_cert_chain),
                                     read("key", files.key, true, &options.pem_private_key)}) {
    if (!status.ok()) return status;
  }
  return grpc::SslCredentials(options);
}

RenewedCredentials::RenewedCredentials(std::string prefix, ClientTlsFiles files)
    : prefix_(std::move(prefix)), files_(std::move(files)), watch_([this] {
        std::vector<std::string> paths;
        for (const std::string* path : {&files_.ca, &files_.cert, &files_.key}) {
          if (!path->empty()) paths.push_back(*path);
        }
        return paths;
      }()) {}

std::shared_ptr<grpc::ChannelCredentials> RenewedCredentials::operator()() {
  if (watch_.Changed()) is_due_ = true;
  if (!is_due_) return nullptr;
  auto credentials = MakeChannelCredentials(prefix_, files_);
  if (!credentials.ok()) {
    const std::string error(credentials.status().message());
    if (error != last_error_) spdlog::error("{}; going on with what was read before", error);
    last_error_ = error;
    return nullptr;
  }
  last_error_.clear();
  is_due_ = false;
  return *std::move(credentials);
}

}  // namespace lossgauge::transport
