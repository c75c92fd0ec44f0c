// One simulated sidecar: what it would have read of its node's rings, over lossgauge.v1.Ingest, kept until it is acknowledged.
#ifndef LOSSGAUGE_TESTS_BENCH_FLEET_SIDECAR_H_
#define LOSSGAUGE_TESTS_BENCH_FLEET_SIDECAR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lossgauge/v1/ingest.grpc.pb.h"
#include "tests/bench/fleet/job.h"

namespace lossgauge::fleet {

struct SidecarCounters {
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> batches{0};          // sent, repetitions included
  std::atomic<std::uint64_t> bytes{0};            // of them, before compression
  std::atomic<std::uint64_t> acknowledged{0};     // batches
  std::atomic<std::uint64_t> most_unacknowledged{0};  // batches that one sidecar held at a time
};

struct SidecarOptions {
  std::string daemon;  // HOST:PORT
  std::uint32_t node = 0;
  std::uint32_t first_rank = 0;
  std::uint32_t ranks = 8;
  double skew_seconds = 0;
  bool compress = true;
  std::int64_t step_ns = 1'000'000'000;  // of the producers' clocks, which keep their pace on a busy machine
};

// All calls from one thread; gRPC's own threads do the rest.
class Sidecar {
 public:
  Sidecar(const SidecarOptions& options, const Job& job, SidecarCounters* counters);
  ~Sidecar();  // cuts the connection

  // This step's records, and what has changed in the life of its ranks. `late`: kept back until the next call without it.
  void Publish(Job& job, std::int64_t step, bool twice, bool shuffled, bool late);
  // A look at every producer's status line: not kept, as it is old a second later.
  void TellLiveness(const Job& job, std::int64_t step);
  // All ranks say that they end well.
  void End(const Job& job, std::int64_t step);

  void BreakConnection();
  // As if its process had been killed and started again: what was not acknowledged, and the last few batches that were, come again under new numbers.
  void Restart();
  // Opens connections that broke and whose pause is over.
  void Tick();

  std::size_t unacknowledged();
  std::string last_error();

 private:
  class Stream;
  friend class Stream;

  std::int64_t NowNs() const;
  void AddProducers(v1::Batch* batch) const;
  void Keep(v1::Batch batch);
  void Connect();
  // With mutex_ held: writes what may be written.
  void Flush();

  const SidecarOptions options_;
  const Job& job_;
  SidecarCounters* const counters_;
  const std::int64_t start_ns_;  // of the producers' wall clocks
  std::vector<bool> alive_;
  std::string sender_;

  // Guards what follows. Recursive: gRPC may run a reaction on the thread that starts an operation.
  std::recursive_mutex mutex_;
  std::uint64_t next_sequence_ = 1;
  std::deque<std::shared_ptr<v1::ForwardRequest>> kept_;     // not acknowledged, by sequence
  std::deque<std::shared_ptr<v1::ForwardRequest>> recent_;   // the last that were
  std::deque<std::shared_ptr<v1::ForwardRequest>> late_;     // not to be sent yet
  std::deque<std::shared_ptr<v1::ForwardRequest>> outgoing_; // in the order of sending
  std::shared_ptr<v1::ForwardRequest> liveness_;             // the newest; replaces one that could not be sent
  std::shared_ptr<Stream> stream_;
  std::vector<std::shared_ptr<Stream>> ended_;  // until gRPC is done with them
  std::int64_t next_connect_ns_ = 0;
  std::string last_error_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ingest::Stub> stub_;
};

}  // namespace lossgauge::fleet

#endif  // LOSSGAUGE_TESTS_BENCH_FLEET_SIDECAR_H_
