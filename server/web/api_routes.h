// The paths under /api/v1/: query or body in, the call's message as JSON out.
#ifndef LOSSGAUGE_SERVER_WEB_API_ROUTES_H_
#define LOSSGAUGE_SERVER_WEB_API_ROUTES_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/api/api.h"
#include "server/transport/httplib.h"

namespace lossgauge::web {

inline constexpr const char* kAcknowledgePath = "/api/v1/incidents/acknowledge";
inline constexpr const char* kActionsPath = "/api/v1/actions";
inline constexpr const char* kModePath = "/api/v1/mode";

// Answers with {"error": ...} and the HTTP status that fits.
void SetError(const absl::Status& status, httplib::Response& response);
int HttpStatus(absl::StatusCode code);

struct RouteLimits {
  std::chrono::nanoseconds reply_timeout{5'000'000'000};  // of what the drain thread answers
  // Requests that may read history at a time, and comparisons among them: /metrics and health probes are served by the same threads. Others
  // get 429.
  std::size_t max_history = 8;
  std::size_t max_comparisons = 2;
  std::chrono::nanoseconds comparison_time{30'000'000'000};
};

// Thread-safe. The streams are not here: they live on in the server.
class ApiRoutes {
 public:
  // `is_stopping`: what takes long is to end.
  ApiRoutes(const api::Api& api, const RouteLimits& limits, std::function<bool()> is_stopping)
      : api_(api), limits_(limits), is_stopping_(std::move(is_stopping)) {}

  // False if `path` is none of ours.
  bool Get(const std::string& path, const std::string& target_untrusted, httplib::Response& response) const;
  // Runs of the past with them, unless the history is too busy or cannot be read: who asks for what is live gets that.
  absl::StatusOr<v1::ListRunsResponse> RunsAndPast(bool* history_read) const;
  // Waits for the drain thread, at most the reply timeout.
  void Acknowledge(const std::string& body_untrusted, httplib::Response& response) const;
  void ReportAction(const std::string& body_untrusted, httplib::Response& response) const;
  void SetMode(const std::string& body_untrusted, httplib::Response& response) const;

 private:
  void Compare(const std::string& target_untrusted, httplib::Response& response) const;

  const api::Api& api_;
  const RouteLimits limits_;
  const std::function<bool()> is_stopping_;
  mutable std::atomic<std::size_t> history_{0};
  mutable std::atomic<std::size_t> comparisons_{0};
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_API_ROUTES_H_
