#include "server/web/web_server.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/listen_address.h"
#include "server/api/text.h"
#include "server/web/api_routes.h"
#include "server/web/connection_pool.h"
#include "server/web/connection_stream.h"
#include "server/web/event_stream.h"
#include "server/web/http_guard.h"
#include "server/transport/httplib.h"
#include "server/web/page_assets.h"
#include "server/web/plain_page.h"
#include "server/web/query_string.h"

namespace lossgauge::web {
namespace {

constexpr int kListenBacklog = 128;
constexpr int kRequestsPerConnection = 200;
constexpr std::size_t kMaxBodyBytes = 64 << 10;
constexpr const char* kPlainText = "text/plain; charset=utf-8";

// cpp-httplib's parser and writer; sockets, threads and limits are ours.
class RequestEngine final : public httplib::Server {
 public:
  RequestEngine() { svr_sock_ = 0; }  // cpp-httplib ends chunked answers early if it thinks that it does not listen
  ~RequestEngine() override { svr_sock_ = INVALID_SOCKET; }

  // One request. False: the connection is not to be used again.
  bool Serve(ConnectionStream& stream, bool last) {
    bool closed = false;
    const bool ok = process_request(stream, last, closed, [&](httplib::Request& request) {
      // Ranges could be made to repeat a page a thousand times, and Brotli at its default level takes longer than the page is worth.
      request.ranges.clear();
      request.headers.erase("Range");
      const bool gzip = request.get_header_value("Accept-Encoding").find("gzip") != std::string::npos;
      request.headers.erase("Accept-Encoding");
      if (gzip) request.headers.emplace("Accept-Encoding", "gzip");
      // A body that was refused is still in the connection, where it would be taken for the next request.
      if (request.method == "POST" || request.has_header("Content-Length") || request.has_header("Transfer-Encoding")) {
        closed = true;
        request.headers.erase("Connection");
        request.headers.emplace("Connection", "close");  // cpp-httplib answers likewise
      }
    });
    return ok && !closed;
  }
};

}  // namespace

struct WebServer::Running {
  Running(const WebOptions& web_options, const api::Api& web_api, bool loopback)
      : options(web_options),
        api(web_api),
        guard{loopback, {}},
        routes(web_api, Limits(web_options), [this] { return pool.stopping().load(); }),
        pool(web_options.request_threads + web_options.max_event_streams, web_options.max_waiting, [this](int socket) { ServeConnection(socket); }) {
    for (const std::string& host : options.allowed_hosts) guard.allowed_hosts.push_back(absl::AsciiStrToLower(host));
    engine.set_payload_max_length(kMaxBodyBytes);
    // Not used by our connections, but said in every answer.
    engine.set_keep_alive_max_count(kRequestsPerConnection);
    engine.set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(options.idle_time).count());
    engine.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return Route(request, response) ? httplib::Server::HandlerResponse::Handled : httplib::Server::HandlerResponse::Unhandled;
    });
    engine.Post(kAcknowledgePath, [this](const httplib::Request& request, httplib::Response& response) { routes.Acknowledge(request.body, response); });
    engine.Post(kActionsPath, [this](const httplib::Request& request, httplib::Response& response) { routes.ReportAction(request.body, response); });
    engine.Post(kModePath, [this](const httplib::Request& request, httplib::Response& response) { routes.SetMode(request.body, response); });
    engine.set_post_routing_handler([](const httplib::Request&, httplib::Response& response) { SetSecurityHeaders(response); });
    pool.set_encrypted(options.tls != nullptr);
    if (options.limiter != nullptr) {
      pool.set_admit([this](int socket) {
        std::shared_ptr<void> slot = options.limiter->AdmitStream(PeerAddress(socket));
        if (slot == nullptr) Count(state::Refusal::kStreams);
        return slot;
      });
    }
    engine.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      // What cpp-httplib refuses by itself: malformed, too long, too large.
      if (response.body.empty() && response.status == 400) Count(state::Refusal::kMalformed);
      if (response.body.empty() && (response.status == 413 || response.status == 414)) Count(state::Refusal::kTooLarge);
      if (response.body.empty()) response.set_content(absl::StrCat("HTTP status ", response.status, "\n"), kPlainText);
    });
    engine.set_exception_handler([](const httplib::Request& request, httplib::Response& response, std::exception_ptr thrown) {
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& error) {
        spdlog::error("HTTP {} {} failed: {}", request.method, api::Quoted(request.path), error.what());
      } catch (...) {
        spdlog::error("HTTP {} {} failed", request.method, api::Quoted(request.path));
      }
      SetError(absl::InternalError("internal error; lossgauged's log says more"), response);
    });
  }

  static RouteLimits Limits(const WebOptions& options) {
    RouteLimits limits;
    limits.reply_timeout = options.reply_timeout;
    limits.max_history = options.max_history_requests;
    return limits;
  }

  void ServeConnection(int socket) {
    ConnectionLimits limits;
    limits.request_time = options.request_time;
    limits.hurried_time = options.hurried_time;
    limits.idle_time = options.idle_time;
    limits.write_stall = options.write_stall;
    const std::shared_ptr<SSL_CTX> tls = options.tls != nullptr ? options.tls->Current()->context : nullptr;
    ConnectionStream stream(socket, limits, pool.stopping(), [this] { return pool.others_wait(); }, tls);
    Serve(stream);
    if (stream.HandshakeFailed()) Count(state::Refusal::kTls);
  }

  void Serve(ConnectionStream& stream) {
    for (int served = 1; served <= kRequestsPerConnection; ++served) {
      const Head head = stream.WaitForHead();
      if (head == Head::kNone) return;
      if (head != Head::kComplete) return RefuseHead(head, stream);
      if (!engine.Serve(stream, served == kRequestsPerConnection)) return;
    }
  }

  // cpp-httplib would close or say 400 without a reason.
  void RefuseHead(Head head, ConnectionStream& stream) const {
    Count(state::Refusal::kTooLarge);
    const bool line = head == Head::kLineTooLong;
    httplib::Response response;
    SetError(absl::InvalidArgumentError(line ? "the request line is longer than 8 KiB" : "a header is longer than 8 KiB, or all of them than 64 KiB"),
             response);
    SetSecurityHeaders(response);
    std::string text = absl::StrCat("HTTP/1.1 ", line ? "414 URI Too Long" : "431 Request Header Fields Too Large", "\r\nConnection: close\r\n");
    for (const auto& [name, value] : response.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
    absl::StrAppend(&text, "Content-Length: ", response.body.size(), "\r\n\r\n", response.body);
    if (stream.write(text.data(), text.size()) > 0) stream.TakeRest();
  }

  void Count(state::Refusal refusal) const {
    if (options.counters != nullptr) options.counters->Refuse(state::Protocol::kHttp, refusal);
  }

  // False: a POST that cpp-httplib is to read the body of.
  bool Route(const httplib::Request& request, httplib::Response& response) {
    if (options.limiter != nullptr && !options.limiter->AdmitCall(request.remote_addr)) {
      Count(state::Refusal::kRate);
      SetError(absl::ResourceExhaustedError("this client makes more requests than it may (--max_calls_per_client); watch instead of asking, or ask less often"),
               response);
      response.set_header("Retry-After", "1");
      return true;
    }
    const bool post_path = request.path == kAcknowledgePath || request.path == kActionsPath || request.path == kModePath;
    const bool wrong_path = request.method == "POST" && !post_path;
    // Of a POST to a path that takes none, the body's type does not matter.
    if (const std::optional<Refusal> refusal = CheckRequest(request, guard); refusal && !(wrong_path && refusal->http_status == 415)) {
      SetError(absl::InvalidArgumentError(refusal->message), response);
      response.status = refusal->http_status;
      if (refusal->http_status == 405) response.set_header("Allow", "GET, HEAD, POST");
      return true;
    }
    if (request.method == "POST" && post_path && options.guard != nullptr) {
      if (const absl::Status status = options.guard->Check(request.get_header_value("Authorization")); !status.ok()) {
        SetError(status, response);
        if (response.status == 401) response.set_header("WWW-Authenticate", "Bearer");
        return true;
      }
    }
    if (request.method == "POST" && post_path) return false;
    if (request.method == "POST" || post_path) {
      SetError(absl::InvalidArgumentError(absl::StrCat(request.method, " is not for this path; use ", post_path ? "POST" : "GET")), response);
      response.status = 405;
      response.set_header("Allow", post_path ? "POST" : "GET, HEAD");
      return true;
    }
    if (request.path.rfind("/api/", 0) == 0) {
      response.set_header("Cache-Control", "no-store");
      response.set_header("Vary", "Accept-Encoding");
      if (!routes.Get(request.path, request.target, response) && !Stream(request, response)) NotFound(request, response);
    } else if (request.path == "/metrics" && options.render_metrics) {
      response.set_content(options.render_metrics(), "text/plain; version=0.0.4; charset=utf-8");
      response.status = 200;
    } else if (request.path == "/-/healthy") {
      const absl::Status healthy = options.healthy ? options.healthy() : absl::OkStatus();
      response.set_content(healthy.ok() ? std::string("lossgauged lives\n") : absl::StrCat("not healthy: ", healthy.message(), "\n"), kPlainText);
      response.status = healthy.ok() ? 200 : 503;
    } else if (request.path == "/-/ready") {
      const absl::Status ready = options.ready                       ? options.ready()
                                 : api.board().Get()->version > 0    ? absl::OkStatus()
                                                                     : absl::UnavailableError("nothing has been read yet");
      response.set_content(ready.ok() ? std::string("ready\n") : absl::StrCat("not ready: ", ready.message(), "\n"), kPlainText);
      response.status = ready.ok() ? 200 : 503;
    } else if (request.path == kPlainPagePath) {
      SendPlainPage(response);
    } else if (const PageAsset* asset = FindPageAsset(request.path)) {
      SendAsset(*asset, request, response);
    } else {
      NotFound(request, response);
    }
    return true;
  }

  static void NotFound(const httplib::Request& request, httplib::Response& response) {
    SetError(absl::NotFoundError(absl::StrCat("no path ", api::Quoted(request.path),
                                              "; there are /, /plain, /metrics, /-/healthy, /-/ready and /api/v1/runs, run, verdict, verdict/watch, "
                                              "verdicts, steps, steps/watch, incidents, events, compare, explain, policy")),
             response);
  }

  void SendPlainPage(httplib::Response& response) const {
    bool history_read = false;
    const absl::StatusOr<v1::ListRunsResponse> runs = routes.RunsAndPast(&history_read);
    if (!runs.ok()) return SetError(runs.status(), response);
    response.set_header("Cache-Control", "no-store");
    response.set_content(PlainPage(*runs, history_read), "text/html; charset=utf-8");
    response.status = 200;
  }

  static void SendAsset(const PageAsset& asset, const httplib::Request& request, httplib::Response& response) {
    response.set_header("ETag", std::string(asset.etag));
    response.set_header("Cache-Control", "no-cache");  // keep it, but ask whether it still holds
    response.set_header("Vary", "Accept-Encoding");
    if (request.get_header_value("If-None-Match").find(std::string(asset.etag)) != std::string::npos) {
      response.status = 304;
      return;
    }
    response.set_content(asset.bytes.data(), asset.bytes.size(), std::string(asset.content_type));
    response.status = 200;
  }

  // False if it is no path of a stream.
  bool Stream(const httplib::Request& request, httplib::Response& response) {
    if (request.path == "/api/v1/verdict/watch") {
      v1::WatchVerdictRequest message;
      if (absl::Status status = FillFromQuery(QueryOf(request.target), &message); !status.ok()) {
        SetError(status, response);
      } else {
        BeginStream(request, api.WatchVerdict(message), response);
      }
      return true;
    }
    if (request.path == "/api/v1/steps/watch") {
      v1::WatchStepsRequest message;
      absl::Status status = FillFromQuery(QueryOf(request.target), &message);
      const std::string last_id = request.get_header_value("Last-Event-ID");
      if (status.ok() && !last_id.empty()) {  // a browser that reconnects knows better than the address that it was given
        std::uint64_t sequence = 0;
        if (last_id.find_first_not_of("0123456789") != std::string::npos || !absl::SimpleAtoi(last_id, &sequence)) {
          status = absl::InvalidArgumentError(absl::StrCat("Last-Event-ID: ", api::Quoted(last_id), " is no sequence; leave it out"));
        }
        message.set_after_sequence(sequence);
      }
      if (!status.ok()) {
        SetError(status, response);
      } else {
        BeginStream(request, api.WatchSteps(message), response);
      }
      return true;
    }
    return false;
  }

  template <typename Source>
  void BeginStream(const httplib::Request& request, absl::StatusOr<Source> source, httplib::Response& response) {
    if (!source.ok()) return SetError(source.status(), response);
    response.status = 200;
    if (request.method == "HEAD") return response.set_content("", "text/event-stream");
    std::shared_ptr<void> client_slot = per_client_streams.AdmitStream(request.remote_addr);
    if (client_slot == nullptr) {
      Count(state::Refusal::kStreams);
      return SetError(absl::ResourceExhaustedError("this client holds as many event streams as it may; close some, or ask /api/v1/steps?tail=N instead"),
                      response);
    }
    if (event_streams.fetch_add(1) >= options.max_event_streams) {
      --event_streams;
      Count(state::Refusal::kStreams);
      return SetError(absl::ResourceExhaustedError(absl::StrCat("all ", options.max_event_streams,
                                                                " event streams are taken; close some, or ask /api/v1/steps?tail=N instead")),
                      response);
    }
    std::shared_ptr<void> slot(nullptr, [this, client_slot](void*) { --event_streams; });
    const EventStreamContext context{api.board(), api.clock(), pool.stopping(), options.heartbeat};
    response.set_header("X-Accel-Buffering", "no");
    response.set_chunked_content_provider("text/event-stream", StreamEvents(context, std::move(*source), std::move(slot)));
  }

  const WebOptions& options;
  const api::Api& api;
  GuardOptions guard;
  ApiRoutes routes;
  RequestEngine engine;
  transport::ClientLimiter per_client_streams{[this] {
    transport::ClientLimits limits;
    limits.max_streams = options.max_event_streams_per_client;
    return limits;
  }()};
  std::atomic<std::size_t> event_streams{0};
  ConnectionPool pool;  // last: its threads use all the others
};

WebServer::WebServer(WebOptions options, const api::Api& api) : options_(std::move(options)), api_(api) {}

WebServer::~WebServer() { Shutdown(); }

absl::Status WebServer::Start() {
  if (running_) return absl::FailedPreconditionError("the HTTP server runs already");
  const absl::StatusOr<api::ListenAddress> address = api::ParseListenAddress(options_.listen);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat("--http_listen: ", address.status().message()));
  const absl::StatusOr<int> socket = api::OpenListeningSocket(*address, kListenBacklog, "HTTP", "--http_listen");
  if (!socket.ok()) return socket.status();
  const bool loopback = api::IsLoopback(*address);
  const bool exposed = !loopback && options_.tls == nullptr;
  if (options_.counters != nullptr) options_.counters->exposed[static_cast<std::size_t>(state::Protocol::kHttp)] = exposed ? 1 : 0;
  if (exposed) {
    spdlog::warn("HTTP listens on {} without TLS: whoever is on the way can read what is said, tokens included. Give --tls_cert and --tls_key, "
                 "use a loopback address, or let a network policy guard it",
                 address->Text());
  }
  host_ = address->host;
  port_ = api::BoundPort(*socket);
  running_ = std::make_unique<Running>(options_, api_, loopback);
  running_->pool.Start(*socket);
  return absl::OkStatus();
}

void WebServer::Shutdown() {
  if (!running_) return;
  running_->pool.Stop();
  running_.reset();
  port_ = 0;
}

std::string WebServer::address() const { return api::ListenAddress{host_, static_cast<std::uint16_t>(port_)}.Text(); }

std::size_t WebServer::open_event_streams() const { return running_ ? running_->event_streams.load() : 0; }

}  // namespace lossgauge::web
