#include "server/web/http_guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/api/text.h"
#include "server/web/page_assets.h"

namespace lossgauge::web {
namespace {

bool IsIpAddress(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

bool IsJson(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  return absl::AsciiStrToLower(std::string(absl::StripAsciiWhitespace(type))) == "application/json";
}

}  // namespace

std::optional<std::string> HostOf(const std::string& authority_untrusted) {
  std::string host = absl::AsciiStrToLower(authority_untrusted);
  std::string port;
  if (!host.empty() && host.front() == '[') {
    const std::size_t close = host.find(']');
    if (close == std::string::npos) return std::nullopt;
    port = host.substr(close + 1);
    host = host.substr(1, close - 1);
    if (!port.empty() && port.front() != ':') return std::nullopt;
    if (!port.empty()) port.erase(0, 1);
  } else if (const std::size_t colon = host.find(':'); colon != std::string::npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  if (host.empty() || host.find('\0') != std::string::npos) return std::nullopt;
  if (port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5) return std::nullopt;
  return host;
}

std::optional<Refusal> CheckRequest(const httplib::Request& request, const GuardOptions& options) {
  if (request.method != "GET" && request.method != "HEAD" && request.method != "POST") {
    return Refusal{405, absl::StrCat("method ", api::Quoted(request.method, 20), " is not served; use GET, or POST where the API says so")};
  }
  if (request.get_header_value_count("Host") > 1) return Refusal{400, "more than one Host header"};
  const std::string authority = request.get_header_value("Host");
  if (options.check_host) {
    const std::optional<std::string> host = HostOf(authority);
    const bool known = host && (IsIpAddress(*host) || *host == "localhost" ||
                                std::find(options.allowed_hosts.begin(), options.allowed_hosts.end(), *host) != options.allowed_hosts.end());
    if (!known) {
      return Refusal{421, absl::StrCat("Host ", api::Quoted(authority), " is not a name of this server, which listens on loopback only; "
                                       "use 127.0.0.1 or localhost, or name the host with --http_allowed_hosts")};
    }
  }
  const std::string origin = request.get_header_value("Origin");
  if (!origin.empty() && origin != "null") {
    const std::size_t scheme = origin.find("://");
    if (scheme == std::string::npos || absl::AsciiStrToLower(origin.substr(scheme + 3)) != absl::AsciiStrToLower(authority)) {
      return Refusal{403, absl::StrCat("Origin ", api::Quoted(origin), " is not this server; pages of other sites are not served")};
    }
  } else if (origin == "null") {
    return Refusal{403, "Origin null is not this server; pages of other sites are not served"};
  }
  if (request.has_header("Content-Encoding")) return Refusal{415, "Content-Encoding: send the body uncompressed"};
  if (request.method == "POST") {
    if (!IsJson(request.get_header_value("Content-Type"))) return Refusal{415, "Content-Type: send the body as application/json"};
  } else if (request.has_header("Transfer-Encoding") || (request.has_header("Content-Length") && request.get_header_value("Content-Length") != "0")) {
    return Refusal{400, absl::StrCat(request.method, " takes no body; send its fields in the query")};
  }
  return std::nullopt;
}

void SetSecurityHeaders(httplib::Response& response) {
  response.set_header("Content-Security-Policy", std::string(kPageContentSecurityPolicy));
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("X-Frame-Options", "DENY");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
}

}  // namespace lossgauge::web
