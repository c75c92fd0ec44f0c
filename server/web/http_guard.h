// What is refused before anything is looked at. Pure.
#ifndef LOSSGAUGE_SERVER_WEB_HTTP_GUARD_H_
#define LOSSGAUGE_SERVER_WEB_HTTP_GUARD_H_

#include <optional>
#include <string>
#include <vector>

#include "server/transport/httplib.h"

namespace lossgauge::web {

struct GuardOptions {
  // On loopback only: a page from elsewhere may point its own name at 127.0.0.1 (DNS rebinding) and then read what we answer. So the Host
  // header must be an IP address, "localhost" or one of `allowed_hosts`. Where we listen wider, names are not ours to know.
  bool check_host = true;
  std::vector<std::string> allowed_hosts;  // lower case, without port
};

struct Refusal {
  int http_status = 400;
  std::string message;
};

// nullopt: go on. Refuses foreign hosts and origins, other methods than GET, HEAD and POST, POST without JSON, compressed bodies and
// bodies of GET.
std::optional<Refusal> CheckRequest(const httplib::Request& request, const GuardOptions& options);

// Headers of every answer.
void SetSecurityHeaders(httplib::Response& response);

// The host of a Host or Origin authority: lower case, without port and brackets. nullopt if it is none.
std::optional<std::string> HostOf(const std::string& authority_untrusted);

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_HTTP_GUARD_H_
