// The sidecar's side of lossgauge.v1.Ingest before the network: what the book takes goes into batches, and those into the spool.
//
// Drain thread only, but for what is marked. Clients (forward_client.h) read the spool.
#ifndef LOSSGAUGE_SERVER_INGEST_FORWARDER_H_
#define LOSSGAUGE_SERVER_INGEST_FORWARDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/ingest/forward_items.h"
#include "server/ingest/spool.h"
#include "server/state/records.h"

namespace lossgauge::ingest {

struct ForwarderOptions {
  std::size_t batch_bytes = std::size_t{256} << 10;  // about; a larger one is begun anew
};

class Forwarder final : public state::RecordTap {
 public:
  // `spool` outlives the forwarder. `wake` is called after there is something new to send.
  Forwarder(const ForwarderOptions& options, Spool* spool, std::function<void()> wake);

  void OnProducer(const std::shared_ptr<const state::ProducerInfo>& producer) override;
  void OnSample(const state::RankSample& sample) override;
  void OnEvent(const state::ProducerEvent& event) override;
  void OnLiveness(const state::LivenessReport& report) override;
  void OnLoss(const state::LossReport& report) override;
  void OnProducerGone(const state::SegmentId& segment) override;
  void BeforeCommit(state::TimeNs now_ns) override;
  void AfterCycle(state::TimeNs now_ns) override;

  // The newest word of every producer, to be sent without a sequence to who has everything before it. Thread-safe.
  std::shared_ptr<const v1::Batch> liveness() const;

 private:
  struct Producer {
    std::shared_ptr<const state::ProducerInfo> info;
    std::uint32_t number = 0;
    state::LivenessReport told;  // in the spool
    bool has_told = false;
    state::LivenessReport newest;
    bool has_newest = false;
  };

  // 0 if the producer is not known: nothing is forwarded of it.
  Producer* Find(const state::ProducerInfo& info);
  void BoundBatch(std::size_t added_bytes);
  void Flush();
  void PublishLiveness();

  const ForwarderOptions options_;
  Spool* const spool_;
  const std::function<void()> wake_;
  std::map<state::SegmentId, Producer> producers_;
  std::uint32_t next_number_ = 1;
  v1::Batch batch_;
  std::size_t batch_bytes_ = 0;
  std::uint64_t batch_records_ = 0;
  bool liveness_changed_ = false;
  std::string last_error_;

  mutable std::mutex mutex_;
  std::shared_ptr<const v1::Batch> liveness_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_FORWARDER_H_
