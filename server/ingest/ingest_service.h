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
#include "lossgauge/v1/ingest.grpc.pb.h"
#include "server/ingest/inbox.h"

namespace lossgauge::ingest {

struct IngestServiceOptions {
  std::string instance;
  std::uint64_t max_batch_bytes = std::uint64_t{1} << 20;
  std::uint32_t max_batches_in_flight = 64;  // of a stream, received and not acknowledged
  std::size_t max_streams = 4096;
  std::function<absl::Status(const grpc::ServerContextBase&)> admit;  // of each stream, before anything is read; unset: all
};

class IngestService final : public v1::Ingest::CallbackService {
 public:
  // `inbox` outlives the service.
  IngestService(const IngestServiceOptions& options, Inbox* inbox);
  ~IngestService() override;

  grpc::ServerBidiReactor<v1::ForwardRequest, v1::ForwardResponse>* Forward(grpc::CallbackServerContext* context) override;
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
