#include "server/transport/server_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lossgauge::transport {
namespace {

template <auto free>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

Bio Memory(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::string OpenSslError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown reason" : reason;
}

// OpenSSL would ask on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

std::vector<Certificate> ParseCertificates(const std::string& pem) {
  std::vector<Certificate> found;
  const Bio bio = Memory(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) found.emplace_back(certificate);
  ERR_clear_error();  // the end of the text is an error to it
  return found;
}

std::int64_t Seconds(const ASN1_TIME* time) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<std::int64_t>(timegm(&parts)) : 0;
}

absl::Status Error(const std::string& flag, const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", why));
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const ServerTlsFiles& files, const std::vector<Certificate>& chain, const std::string& key_pem,
                                                     const std::string& client_ca_pem) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (!context) return absl::InternalError(absl::StrCat("TLS: ", OpenSslError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate(context.get(), chain.front().get()) != 1) return Error("--tls_cert", files.cert, OpenSslError());
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) != 1) return Error("--tls_cert", files.cert, OpenSslError());
  }
  const Key key(PEM_read_bio_PrivateKey(Memory(key_pem).get(), nullptr, NoPassword, nullptr));
  if (!key) return Error("--tls_key", files.key, absl::StrCat("no private key without a password stands in it (", OpenSslError(), ")"));
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 || SSL_CTX_check_private_key(context.get()) != 1) {
    return Error("--tls_key", files.key, absl::StrCat("does not belong to --tls_cert ", files.cert, " (", OpenSslError(), ")"));
  }
  if (files.client_ca.empty()) return context;
  const std::vector<Certificate> authorities = ParseCertificates(client_ca_pem);
  if (authorities.empty()) return Error("--tls_client_ca", files.client_ca, "no certificate in PEM stands in it");
  for (const Certificate& authority : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get()) != 1 || SSL_CTX_add_client_CA(context.get(), authority.get()) != 1) {
      return Error("--tls_client_ca", files.client_ca, OpenSslError());
    }
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session would not be checked against a CA file that was replaced.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  return context;
}

}  // namespace

ServerTls::ServerTls(ServerTlsFiles files, state::ServiceCounters* counters, std::chrono::milliseconds look_every)
    : files_(std::move(files)),
      counters_(counters),
      watch_(files_.client_ca.empty() ? std::vector<std::string>{files_.cert, files_.key}
                                      : std::vector<std::string>{files_.cert, files_.key, files_.client_ca}),
      pace_(look_every) {}

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Load(ServerTlsFiles files, state::ServiceCounters* counters, std::chrono::milliseconds look_every) {
  std::unique_ptr<ServerTls> tls(new ServerTls(std::move(files), counters, look_every));
  tls->watch_.Changed();
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> material = tls->Read(1);
  if (!material.ok()) return material.status();
  if ((*material)->not_after_s < std::time(nullptr)) spdlog::error("--tls_cert: {} has expired: clients that check it will not connect", tls->files_.cert);
  tls->current_ = *std::move(material);
  counters->certificate_expiry_s = tls->current_->not_after_s;
  return tls;
}

absl::StatusOr<std::shared_ptr<const TlsMaterial>> ServerTls::Read(std::uint64_t generation) const {
  auto material = std::make_shared<TlsMaterial>();
  material->generation = generation;
  absl::StatusOr<std::string> cert = ReadSmallFile("--tls_cert", files_.cert, false);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadSmallFile("--tls_key", files_.key, true);
  if (!key.ok()) return key.status();
  material->cert_pem = *std::move(cert);
  material->key_pem = *std::move(key);
  if (!files_.client_ca.empty()) {
    absl::StatusOr<std::string> client_ca = ReadSmallFile("--tls_client_ca", files_.client_ca, false);
    if (!client_ca.ok()) return client_ca.status();
    material->client_ca_pem = *std::move(client_ca);
  }
  const std::vector<Certificate> chain = ParseCertificates(material->cert_pem);
  if (chain.empty()) return Error("--tls_cert", files_.cert, "no certificate in PEM stands in it");
  material->not_after_s = Seconds(X509_get0_notAfter(chain.front().get()));
  absl::StatusOr<std::shared_ptr<SSL_CTX>> context = MakeContext(files_, chain, material->key_pem, material->client_ca_pem);
  if (!context.ok()) return context.status();
  material->context = *std::move(context);
  return material;
}

std::shared_ptr<const TlsMaterial> ServerTls::Current() {
  const std::lock_guard lock(mutex_);
  if (!pace_.Due()) return current_;
  // What failed is tried again unchanged: it may have been read while it was being written.
  if (!watch_.Changed() && !failed_) return current_;
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> material = Read(current_->generation + 1);
  absl::Status status = material.status();
  if (status.ok() && (*material)->not_after_s < std::time(nullptr)) status = Error("--tls_cert", files_.cert, "has expired");
  failed_ = !status.ok();
  if (!status.ok()) {
    const std::string error(status.message());
    if (error != last_error_) {
      ++counters_->tls_reload_errors;
      spdlog::error("the certificate stays as it is: {}", error);
    }
    last_error_ = error;
    return current_;
  }
  last_error_.clear();
  current_ = *std::move(material);
  counters_->certificate_expiry_s = current_->not_after_s;
  ++counters_->tls_reloads;
  spdlog::info("--tls_cert: {} read again", files_.cert);
  return current_;
}

}  // namespace lossgauge::transport
