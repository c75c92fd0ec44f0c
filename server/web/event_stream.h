// A watch as server-sent events: `data:` holds one message as JSON, `id:` the sequence of its last step, so that a browser that reconnects goes
// on where it was. Comments keep proxies awake. A stream that ends says why in an event `end`.
#ifndef LOSSGAUGE_SERVER_WEB_EVENT_STREAM_H_
#define LOSSGAUGE_SERVER_WEB_EVENT_STREAM_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "server/api/json.h"
#include "server/state/board.h"
#include "server/state/clock.h"
#include "server/transport/httplib.h"

namespace lossgauge::web {

std::string EventText(const std::string& id, const std::string& json);
std::string EndText(const absl::Status& status);

inline std::string EventId(const v1::Verdict&) { return ""; }
inline std::string EventId(const v1::WatchStepsResponse& message) {
  return message.steps_size() == 0 ? "" : std::to_string(message.steps(message.steps_size() - 1).sequence());
}

struct EventStreamContext {
  const state::SnapshotBoard& board;
  state::Clock& clock;
  const std::atomic<bool>& stopping;
  std::chrono::nanoseconds heartbeat;
};

// What cpp-httplib calls again and again to fill a chunked response. `slot` is held for as long as the stream lives.
template <typename Source>
httplib::ContentProviderWithoutLength StreamEvents(const EventStreamContext& context, Source source, std::shared_ptr<void> slot) {
  struct Stream {
    Source source;
    std::shared_ptr<void> slot;
    std::chrono::steady_clock::time_point last_write;
    bool begun = false;
  };
  auto stream = std::make_shared<Stream>(Stream{std::move(source), std::move(slot), std::chrono::steady_clock::now()});
  return [context, stream](size_t, httplib::DataSink& sink) {
    constexpr std::int64_t kSliceNs = 100'000'000;
    const auto send = [&](const std::string& text) {
      stream->last_write = std::chrono::steady_clock::now();
      return sink.write(text.data(), text.size());
    };
    const auto end = [&](const absl::Status& status) {
      send(EndText(status));
      sink.done();
      return true;
    };
    if (!std::exchange(stream->begun, true)) return send("retry: 2000\n\n");  // also sends the headers
    if (context.stopping) return end(absl::UnavailableError("lossgauged is shutting down; connect again later"));
    const std::shared_ptr<const state::Snapshot> snapshot = context.board.Get();
    typename Source::Message message;
    const absl::StatusOr<bool> next = stream->source.Next(*snapshot, context.clock.NowNs(), &message);
    if (!next.ok()) return end(next.status());
    if (*next) {
      const absl::StatusOr<std::string> json = api::ToJson(message);
      return json.ok() ? send(EventText(EventId(message), *json)) : end(json.status());
    }
    if (std::chrono::steady_clock::now() - stream->last_write >= context.heartbeat) return send(": alive\n\n");
    if (!sink.is_writable()) return false;  // the client has gone
    if (context.board.closed()) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kSliceNs));
    } else {
      context.board.WaitNewer(snapshot->version, kSliceNs);
    }
    return true;
  };
}

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_EVENT_STREAM_H_
