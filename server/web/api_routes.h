// The paths under /api/v1/: query or body in, the call's message as JSON out.
#ifndef LOSSGAUGE_SERVER_WEB_API_ROUTES_H_
#define LOSSGAUGE_SERVER_WEB_API_ROUTES_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "server/api/api.h"
#include "server/web/httplib.h"

namespace lossgauge::web {

inline constexpr const char* kAcknowledgePath = "/api/v1/incidents/acknowledge";
inline constexpr const char* kActionsPath = "/api/v1/actions";
inline constexpr const char* kModePath = "/api/v1/mode";

// Answers with {"error": ...} and the HTTP status that fits.
void SetError(const absl::Status& status, httplib::Response& response);
int HttpStatus(absl::StatusCode code);

// Thread-safe. The streams are not here: they live on in the server.
class ApiRoutes {
 public:
  ApiRoutes(const api::Api& api, std::chrono::nanoseconds reply_timeout) : api_(api), reply_timeout_(reply_timeout) {}

  // False if `path` is none of ours.
  bool Get(const std::string& path, const std::string& target_untrusted, httplib::Response& response) const;
  // Waits for the drain thread, at most the reply timeout.
  void Acknowledge(const std::string& body_untrusted, httplib::Response& response) const;
  void ReportAction(const std::string& body_untrusted, httplib::Response& response) const;
  void SetMode(const std::string& body_untrusted, httplib::Response& response) const;

 private:
  const api::Api& api_;
  const std::chrono::nanoseconds reply_timeout_;
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_API_ROUTES_H_
