#include "server/web/api_routes.h"

#include <functional>
#include <future>
#include <memory>
#include <utility>

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

template <typename Request, typename Response>
void Answer(const api::Api& api, absl::StatusOr<Response> (api::Api::*call)(const Request&) const, const std::string& target_untrusted,
            httplib::Response& response) {
  Request request;
  if (absl::Status status = FillFromQuery(QueryOf(target_untrusted), &request); !status.ok()) return SetError(status, response);
  const absl::StatusOr<Response> result = (api.*call)(request);
  if (!result.ok()) return SetError(result.status(), response);
  SetMessage(*result, response);
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
  const absl::StatusOr<Response> result = future.get();
  if (!result.ok()) return SetError(result.status(), response);
  SetMessage(*result, response);
}

}  // namespace

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition: return 400;
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
    Answer(api_, &api::Api::CompareRuns, target_untrusted, response);
  } else if (path == "/api/v1/explain") {
    Answer(api_, &api::Api::Explain, target_untrusted, response);
  } else if (path == "/api/v1/policy") {
    Answer(api_, &api::Api::GetPolicy, target_untrusted, response);
  } else {
    return false;
  }
  return true;
}

void ApiRoutes::Acknowledge(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::AcknowledgeIncidentRequest, v1::Incident>(
      body_untrusted, reply_timeout_, response,
      [this](const auto& request, auto done) { api_.AcknowledgeIncident(request, std::move(done)); });
}

void ApiRoutes::ReportAction(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::ReportActionRequest, v1::ReportActionResponse>(
      body_untrusted, reply_timeout_, response, [this](const auto& request, auto done) { api_.ReportAction(request, std::move(done)); });
}

void ApiRoutes::SetMode(const std::string& body_untrusted, httplib::Response& response) const {
  Ask<v1::SetModeRequest, v1::SetModeResponse>(
      body_untrusted, reply_timeout_, response, [this](const auto& request, auto done) { api_.SetMode(request, std::move(done)); });
}

}  // namespace lossgauge::web
