#include "server/web/api_routes.h"

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/json.h"
#include "server/web/query_string.h"

namespace lossgauge::web {
namespace {

constexpr const char* kJson = "application/json; charset=utf-8";

void SetMessage(const google::protobuf::Message& message, httplib::Response& response) {
  absl::StatusOr<std::string> json = api::ToJson(message);
  if (!json.ok()) return SetError(json.status(), response);
  response.status = 200;
  response.set_content(*json + "\n", kJson);
}

// One of so many places; none if all are taken.
class Place {
 public:
  Place(std::atomic<std::size_t>* taken, std::size_t places) : taken_(taken), has_(taken->fetch_add(1) < places) {}
  ~Place() { taken_->fetch_sub(1); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  bool has() const { return has_; }

 private:
  std::atomic<std::size_t>* const taken_;
  const bool has_;
};

template <typename Request>
bool Fill(const std::string& target_untrusted, Request* request, httplib::Response& response) {
  const absl::Status status = FillFromQuery(QueryOf(target_untrusted), request);
  if (!status.ok()) SetError(status, response);
  return status.ok();
}

template <typename Response>
void Give(const absl::StatusOr<Response>& result, httplib::Response& response) {
  if (!result.ok()) return SetError(result.status(), response);
  SetMessage(*result, response);
}

template <typename Request, typename Response>
void Answer(const api::Api& api, absl::StatusOr<Response> (api::Api::*call)(const Request&) const, const std::string& target_untrusted,
            httplib::Response& response) {
  Request request;
  if (Fill(target_untrusted, &request, response)) Give((api.*call)(request), response);
}

bool ReadsHistory(const std::string& path, const std::string& target_untrusted) {
  if (path == "/api/v1/runs") {
    v1::ListRunsRequest request;
    return FillFromQuery(QueryOf(target_untrusted), &request).ok() && request.include_past();
  }
  return path == "/api/v1/verdicts" || path == "/api/v1/steps" || path == "/api/v1/incidents" || path == "/api/v1/events" ||
         path == "/api/v1/compare" || path == "/api/v1/explain";
}

template <typename Request, typename Response>
void Ask(const std::string& body_untrusted, std::chrono::nanoseconds timeout, httplib::Response& response,
         const std::function<void(const Request&, std::function<void(absl::StatusOr<Response>)>)>& send) {
  Request request;
  if (absl::Status status = api::FromJson(body_untrusted, &request); !status.ok()) return SetError(status, response);
  // Shared with the drain thread, which may answer when nobody waits any more.
  auto answer = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  std::future<absl::StatusOr<Response>> future = answer->get_future();
  send(request, [answer](absl::StatusOr<Response> result) { answer->set_value(std::move(result)); });
  if (future.wait_for(timeout) != std::future_status::ready) {
    return SetError(absl::UnavailableError("lossgauged did not get to it in time; whether it was recorded is not known: look, then try again"),
                    response);
  }
  Give(future.get(), response);
}

}  // namespace

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition: return 400;
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kPermissionDenied: return 403;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists: return 409;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kUnimplemented: return 501;
    case absl::StatusCode::kUnavailable: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    default: return 500;
  }
}

void SetError(const absl::Status& status, httplib::Response& response) {
  response.status = HttpStatus(status.code());
  response.set_content(api::ErrorJson(status) + "\n", kJson);
}

bool ApiRoutes::Get(const std::string& path, const std::string& target_untrusted, httplib::Response& response) const {
  std::optional<Place> place;
  if (ReadsHistory(path, target_untrusted)) {
    place.emplace(&history_, limits_.max_history);
    if (!place->has()) {
      SetError(absl::ResourceExhaustedError(absl::StrCat("all ", limits_.max_history,
                                                         " requests that may read history are under way; try again a little later")),
               response);
      return true;
    }
  }
  if (path == "/api/v1/runs") {
    Answer(api_, &api::Api::ListRuns, target_untrusted, response);
  } else if (path == "/api/v1/run") {
    Answer(api_, &api::Api::GetRun, target_untrusted, response);
  } else if (path == "/api/v1/verdict") {
    Answer(api_, &api::Api::GetVerdict, target_untrusted, response);
  } else if (path == "/api/v1/verdicts") {
    Answer(api_, &api::Api::ListVerdicts, target_untrusted, response);
  } else if (path == "/api/v1/steps") {
    Answer(api_, &api::Api::ListSteps, target_untrusted, response);
  } else if (path == "/api/v1/incidents") {
    Answer(api_, &api::Api::ListIncidents, target_untrusted, response);
  } else if (path == "/api/v1/events") {
    Answer(api_, &api::Api::ListEvents, target_untrusted, response);
  } else if (path == "/api/v1/compare") {
    Compare(target_untrusted, response);
  } else if (path == "/api/v1/explain") {
    Answer(api_, &api::Api::Explain, target_untrusted, response);
  } else if (path == "/api/v1/policy") {
    Answer(api_, &api::Api::GetPolicy, target_untrusted, response);
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<v1::ListRunsResponse> ApiRoutes::RunsAndPast(bool* history_read) const {
  const Place place(&history_, limits_.max_history);
  v1::ListRunsRequest request;
  if (place.has()) {
    request.set_include_past(true);
    auto runs = api_.ListRuns(request);
    *history_read = runs.ok();
    if (runs.ok()) return runs;
  }
  *history_read = false;
  request.set_include_past(false);
  return api_.ListRuns(request);
}

void ApiRoutes::Compare(const std::string& target_untrusted, httplib::Response& response) const {
  v1::CompareRunsRequest request;
  if (!Fill(target_untrusted, &request, response)) return;
  const Place place(&comparisons_, limits_.max_comparisons);
  if (!place.has()) {
    return SetError(absl::ResourceExhaustedError(absl::StrCat(limits_.max_comparisons, " comparisons are under way already; try again a little later")),
                    response);
  }
  const auto end = std::chrono::steady_clock::now() + limits_.comparison_time;
  auto result = api_.CompareRuns(request, [&] { return is_stopping_() || std::chrono::steady_clock::now() >= end; });
  if (absl::IsCancelled(result.status())) {
    result = is_stopping_() ? absl::UnavailableError("lossgauged is shutting down")
                            : absl::DeadlineExceededError("the comparison took too long; give first_step and last_step, or ask over gRPC");
  }
  Give(result, response);
}

void ApiRoutes::Acknowledge(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::AcknowledgeIncidentRequest, v1::Incident>(
      body_untrusted, limits_.reply_timeout, response,
      [this](const auto& request, auto done) { api_.AcknowledgeIncident(request, std::move(done)); });
}

void ApiRoutes::ReportAction(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::ReportActionRequest, v1::ReportActionResponse>(
      body_untrusted, limits_.reply_timeout, response, [this](const auto& request, auto done) { api_.ReportAction(request, std::move(done)); });
}

void ApiRoutes::SetMode(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::SetModeRequest, v1::SetModeResponse>(
      body_untrusted, limits_.reply_timeout, response, [this](const auto& request, auto done) { api_.SetMode(request, std::move(done)); });
}

}  // namespace lossgauge::web
