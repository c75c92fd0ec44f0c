#include "server/main/service_flags.h"

#include <cstdint>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with the certificate of our servers and its chain; with --tls_key it switches TLS on, for gRPC and HTTP. Both are read again when they "
          "change, without a restart.");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the private key of --tls_cert, without a password and not readable by everybody.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file with the authorities of clients: whoever connects must then show a certificate that one of them signed (mutual TLS).");
ABSL_FLAG(std::string, token_file, "",
          "File with bearer tokens, one a line, any of which whoever writes must send (acknowledge, report an action, set a mode; forwarded records). Read "
          "again when it changes. Without it only a server on a loopback address takes what writes, any other is read-only.");
ABSL_FLAG(std::string, forward_tls_ca, "", "PEM file with the authorities that daemons of --forward_to are checked against: switches TLS on. Read again, as the other two, when it changes. Default: plain text.");
ABSL_FLAG(std::string, forward_tls_cert, "", "PEM file with our certificate for daemons that ask for one; with --forward_tls_key.");
ABSL_FLAG(std::string, forward_tls_key, "", "PEM file with the private key of --forward_tls_cert.");
ABSL_FLAG(std::string, forward_token_file, "", "File whose first token daemons of --forward_to are shown: one of their --token_file. Read again for each connection.");
ABSL_FLAG(std::int64_t, max_calls_per_client, 2000,
          "gRPC calls and HTTP requests that one address may make in a second, on average over two; more are refused and counted. 0: no limit.");
ABSL_FLAG(std::int64_t, max_streams_per_client, 128,
          "gRPC streams, those of sidecars included, and HTTP connections, that one address may hold at a time; of the HTTP ones 16 may be event streams. 0: no "
          "limit.");

namespace lossgauge::main {
namespace {

constexpr std::int64_t kMaxCount = 1'000'000;

absl::Status CheckCount(const char* name, std::int64_t value) {
  if (value >= 0 && value <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, "=", value, " is out of range: 0 to ", kMaxCount));
}

}  // namespace

absl::StatusOr<ServiceFlags> GetServiceFlags() {
  ServiceFlags flags;
  flags.tls = {absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key), absl::GetFlag(FLAGS_tls_client_ca)};
  if (flags.tls.cert.empty() != flags.tls.key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key belong together: give both or neither");
  }
  if (flags.tls.cert.empty() && !flags.tls.client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca needs --tls_cert and --tls_key: without them there is no TLS");
  }
  flags.token_file = absl::GetFlag(FLAGS_token_file);
  flags.forward_tls = {absl::GetFlag(FLAGS_forward_tls_ca), absl::GetFlag(FLAGS_forward_tls_cert), absl::GetFlag(FLAGS_forward_tls_key)};
  flags.forward_token_file = absl::GetFlag(FLAGS_forward_token_file);
  const std::int64_t calls = absl::GetFlag(FLAGS_max_calls_per_client);
  const std::int64_t streams = absl::GetFlag(FLAGS_max_streams_per_client);
  if (absl::Status status = CheckCount("max_calls_per_client", calls); !status.ok()) return status;
  if (absl::Status status = CheckCount("max_streams_per_client", streams); !status.ok()) return status;
  flags.max_calls_per_client = static_cast<double>(calls);
  flags.max_streams_per_client = static_cast<std::size_t>(streams);
  return flags;
}

}  // namespace lossgauge::main
