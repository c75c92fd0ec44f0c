// The daemon's side of lossgauge.v1.Ingest: streams into the inbox, acknowledgements back. Callback threads of gRPC; no lock is held while
// gRPC is called.
#ifndef LOSSGAUGE_SERVER_INGEST_INGEST_SERVICE_H_
#define LOSSGAUGE_SERVER_INGEST_INGEST_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lossgauge/v1/ingest.grpc.pb.h"
#include "server/ingest/inbox.h"

namespace lossgauge::ingest {

struct IngestServiceOptions {
  std::string instance;
  std::uint64_t max_batch_bytes = std::uint64_t{1} << 20;
  std::uint32_t max_batches_in_flight = 64;  // of a stream, received and not acknowledged
  std::size_t max_streams = 4096;
  // Of each stream, before anything is read: an error, or what is held for as long as the stream is open. Unset: all come in.
  std::function<absl::StatusOr<std::shared_ptr<void>>(const grpc::ServerContextBase&)> admit;
  // Whom limits are for that hold over senders. Unset: gRPC's peer as it is, which is another one for each connection.
  std::function<std::string(const grpc::ServerContextBase&)> client_of;
};

// Takes messages as bytes: gRPC would tell one that cannot be parsed from the end of the stream by nothing.
class IngestService final : public v1::Ingest::WithRawCallbackMethod_Forward<v1::Ingest::Service> {
 public:
  // `inbox` outlives the service.
  IngestService(const IngestServiceOptions& options, Inbox* inbox);
  ~IngestService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Forward(grpc::CallbackServerContext* context) override;
  // Ends all streams with UNAVAILABLE, and each that comes later.
  void Close();

 private:
  class Stream;

  const IngestServiceOptions options_;
  Inbox* const inbox_;
  std::mutex mutex_;
  std::set<std::shared_ptr<Stream>> streams_;
  bool closed_ = false;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_INGEST_SERVICE_H_
