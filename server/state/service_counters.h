// What servers and senders count outside the drain thread, for /metrics: refusals, certificates, listeners. Closed sets, so that every series
// exists at 0 from the first page on.
#ifndef LOSSGAUGE_SERVER_STATE_SERVICE_COUNTERS_H_
#define LOSSGAUGE_SERVER_STATE_SERVICE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lossgauge::state {

enum class Protocol { kGrpc, kHttp, kCount };
inline constexpr std::array<const char*, static_cast<std::size_t>(Protocol::kCount)> kProtocolNames = {"grpc", "http"};

enum class Refusal {
  kToken,        // a call that writes came without a token, or with one that is not known
  kReadOnly,     // a call that writes, where no token file was given and not only this machine can connect
  kRate,         // more calls than one client may make
  kStreams,      // more streams or connections than one client may hold, or than there are
  kTls,          // no TLS handshake came about
  kMalformed,    // the request could not be parsed
  kTooLarge,     // a message or request beyond the limit
  kCount,
};
inline constexpr std::array<const char*, static_cast<std::size_t>(Refusal::kCount)> kRefusalNames = {
    "token", "read_only", "rate", "streams", "tls", "malformed", "too_large"};

// Where steps are sent to.
enum class Sink { kRemoteWrite, kOtlp, kCount };
inline constexpr std::array<const char*, static_cast<std::size_t>(Sink::kCount)> kSinkNames = {"remote_write", "otlp"};

// Why a step was given up, by whom.
enum class ShipDrop {
  kTooOld,       // us: it waited for longer than receivers take samples of the past
  kQueueFull,    // us: too many waited
  kMissing,      // us: the history no longer has it
  kOutOfOrder,   // the receiver: a later sample of the series, or another of the same time, is there
  kOutOfWindow,  // the receiver: too far in the past, or in the future
  kRefused,      // the receiver: any other 4xx, or a status that says so
  kServerError,  // the receiver failed on this batch each time that it was tried
  kCount,
};
inline constexpr std::array<const char*, static_cast<std::size_t>(ShipDrop::kCount)> kShipDropNames = {
    "too_old", "queue_full", "missing", "out_of_order", "out_of_window", "refused", "server_error"};

enum class ShipResult { kTaken, kRefused, kBusy, kFailed, kUnreachable, kCount };
inline constexpr std::array<const char*, static_cast<std::size_t>(ShipResult::kCount)> kShipResultNames = {"taken", "refused", "busy", "failed",
                                                                                                          "unreachable"};

struct ShipCounters {
  std::atomic<bool> in_use{false};
  std::atomic<std::uint64_t> pending_steps{0};
  std::atomic<std::uint64_t> sent_steps{0};
  std::atomic<std::uint64_t> sent_samples{0};
  std::atomic<std::uint64_t> moved_timestamps{0};
  std::atomic<std::int64_t> last_sent_s{0};  // seconds since the epoch; 0: never
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(ShipDrop::kCount)> dropped_steps{};
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(ShipResult::kCount)> requests{};

  void Drop(ShipDrop reason, std::uint64_t steps) { dropped_steps[static_cast<std::size_t>(reason)] += steps; }
  std::uint64_t Dropped(ShipDrop reason) const { return dropped_steps[static_cast<std::size_t>(reason)]; }
  std::uint64_t Requests(ShipResult result) const { return requests[static_cast<std::size_t>(result)]; }
};

// Thread-safe.
struct ServiceCounters {
  template <std::size_t n>
  using Counts = std::array<std::atomic<std::uint64_t>, n>;

  std::array<Counts<static_cast<std::size_t>(Refusal::kCount)>, static_cast<std::size_t>(Protocol::kCount)> refused{};
  Counts<static_cast<std::size_t>(Protocol::kCount)> exposed{};  // 1: listens on more than loopback without TLS
  std::atomic<std::int64_t> certificate_expiry_s{0};  // of the server's own; seconds since the epoch; 0: no TLS
  std::atomic<std::uint64_t> tls_reloads{0};
  std::atomic<std::uint64_t> tls_reload_errors{0};
  std::array<ShipCounters, static_cast<std::size_t>(Sink::kCount)> sinks{};

  void Refuse(Protocol protocol, Refusal refusal) { ++refused[static_cast<std::size_t>(protocol)][static_cast<std::size_t>(refusal)]; }
  std::uint64_t Refused(Protocol protocol, Refusal refusal) const {
    return refused[static_cast<std::size_t>(protocol)][static_cast<std::size_t>(refusal)];
  }
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_SERVICE_COUNTERS_H_
