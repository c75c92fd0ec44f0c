// One daemon as a sidecar sees it: a stream that carries the spool from where that daemon has it, and is made anew whenever it breaks.
//
// Two threads of its own, one that writes and one that reads acknowledgements; neither touches the drain thread. Pauses between attempts grow
// from 0.2 s to 5 s.
#ifndef LOSSGAUGE_SERVER_INGEST_FORWARD_CLIENT_H_
#define LOSSGAUGE_SERVER_INGEST_FORWARD_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lossgauge/v1/ingest.grpc.pb.h"
#include "server/ingest/forwarder.h"
#include "server/ingest/spool.h"
#include "server/state/clock.h"

namespace lossgauge::ingest {

struct ForwardClientOptions {
  std::string address;         // host:port
  std::size_t reader = 0;      // of the spool
  std::string sender;          // 16 bytes
  std::string node;
  // Before each stream: credentials that differ from those before, or null. Of each client its own copy. Unset: no TLS.
  std::function<std::shared_ptr<grpc::ChannelCredentials>()> renew_credentials;
  std::function<void(grpc::ClientContext*)> prepare;       // of each stream: a token, say
  std::int64_t send_every_ns = 100'000'000;                // frames that come meanwhile go in one message
  std::int64_t liveness_every_ns = 1'000'000'000;
  std::int64_t first_pause_ns = 200'000'000;
  std::int64_t longest_pause_ns = 5'000'000'000;
};

struct ForwardClientStats {
  bool connected = false;           // welcomed, and not broken since
  std::uint64_t acknowledged = 0;   // sequence
  std::uint64_t batches_sent = 0;
  std::uint64_t records_sent = 0;   // repeated ones included
  std::uint64_t records_acknowledged = 0;  // of those
  std::uint64_t bytes_sent = 0;     // before compression
  std::uint64_t connects = 0;
  std::uint64_t failures = 0;       // streams that ended, or never began
};

class ForwardClient {
 public:
  // `spool`, `forwarder` and `clock` outlive the client.
  ForwardClient(ForwardClientOptions options, Spool* spool, const Forwarder* forwarder, state::Clock* clock);
  ~ForwardClient();

  void Start();
  void Wake();  // there is a frame. Thread-safe
  // Sends what is there for at most `limit_ns`, if the stream stands, and waits for it to be acknowledged; then ends. May be called twice.
  void Stop(std::int64_t limit_ns);
  ForwardClientStats stats() const;  // thread-safe

 private:
  using Stream = grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>;
  struct Session;

  void Loop();
  void Connect(const std::shared_ptr<grpc::ChannelCredentials>& credentials);
  // One stream from Hello to its end. The sentence says why it ended.
  std::string RunSession();
  bool SendDefinitions(Session* session);
  bool SendFrames(Session* session);
  bool SendLiveness(Session* session);
  bool Send(Session* session, v1::Batch* batch);
  // False: stopping.
  bool Pause(std::int64_t ns);

  const ForwardClientOptions options_;
  Spool* const spool_;
  const Forwarder* const forwarder_;
  state::Clock* const clock_;
  std::unique_ptr<v1::Ingest::Stub> stub_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool has_frame_ = false;
  bool stop_ = false;
  bool flushing_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the present stream, to be cancelled
  ForwardClientStats stats_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_FORWARD_CLIENT_H_
