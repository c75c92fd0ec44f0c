// All of a sidecar's forwarding put together: spool, forwarder, and a client for each daemon.
#ifndef LOSSGAUGE_SERVER_INGEST_FORWARDING_H_
#define LOSSGAUGE_SERVER_INGEST_FORWARDING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/ingest/forward_client.h"
#include "server/ingest/forwarder.h"
#include "server/ingest/spool.h"
#include "server/state/clock.h"
#include "server/state/snapshot.h"

namespace lossgauge::ingest {

struct ForwardingOptions {
  std::vector<std::string> addresses;  // host:port
  std::string directory;               // of spool and sender id; empty = memory, a new sender with each start
  std::uint64_t spool_bytes = std::uint64_t{256} << 20;
  std::string node;
  ForwardClientOptions client;  // address, reader, sender and node are filled in
};

class Forwarding {
 public:
  // `clock` outlives it. Errors name the directory.
  static absl::StatusOr<std::unique_ptr<Forwarding>> Open(const ForwardingOptions& options, state::Clock* clock);
  ~Forwarding();

  state::RecordTap* tap() { return forwarder_.get(); }
  void Start();
  void Stop(std::int64_t limit_ns);  // of all clients together
  state::ForwardView View() const;   // thread-safe

 private:
  Forwarding() = default;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<Forwarder> forwarder_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<ForwardClient>> clients_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_FORWARDING_H_
