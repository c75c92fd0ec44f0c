// What the sources hand over: validated records of one rank, events, and what is known of a producer's life.
// A record's numbers are those the producer wrote, kept as they are so that sums stay exact.
#ifndef LOSSGAUGE_SERVER_STATE_RECORDS_H_
#define LOSSGAUGE_SERVER_STATE_RECORDS_H_

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::state {

// Nanoseconds since the Unix epoch on lossgauged's clock, unless a name says otherwise (boot_ns: CLOCK_BOOTTIME).
using TimeNs = std::int64_t;

struct SegmentId {
  std::uint64_t words[2] = {0, 0};
  auto operator<=>(const SegmentId&) const = default;
  std::string Hex() const;  // 32 hex digits
};

// One segment: a rank of an attempt of a run. Immutable once made; shared by all its records.
struct ProducerInfo {
  SegmentId segment;
  std::string run;  // valid UTF-8, at most 200 bytes; over-long names are cut and end in '~' and 8 hex digits of their hash
  std::string attempt;  // likewise, at most 120 bytes
  TimeNs attempt_start_ns = 0;  // producer's wall clock; orders attempts
  lg_layout layout{};
  double label_smoothing = 0;
  double z_loss_weight = 0;
  std::array<std::string, LG_BLOCK_COUNT> block_names;
  std::string ring_path;  // of the step ring; empty when received over gRPC
};

// A validated step record.
struct RankSample {
  std::shared_ptr<const ProducerInfo> producer;
  lg_step_record record{};
  std::uint64_t publication = 0;  // n of the ring ABI
  std::uint64_t lost_before = 0;  // publications of this segment lost between the previous delivered one and this
  TimeNs receive_time_ns = 0;
  TimeNs arrival_time_ns = 0;  // here, if it was received elsewhere before; 0 = at receive_time_ns
};

struct ProducerEvent {
  std::shared_ptr<const ProducerInfo> producer;
  std::uint64_t kind = 0;  // LG_EVENT_*
  std::int64_t step = -1;
  std::uint64_t phase = LG_PHASE_TRAIN;
  double value = 0;
  std::uint64_t count = 0;
  std::string text;  // valid UTF-8
  std::uint64_t publication = 0;
  TimeNs producer_wall_ns = 0;
  TimeNs receive_time_ns = 0;
};

enum class ProducerState {
  kLive,    // lock held, heart beats
  kFrozen,  // lock held, heartbeat stale: stopped or starved
  kLost,    // lock free without a clean end
  kEnded,   // clean end, or declared failed
};

// What a look at a producer's lock and status line showed. Sent when something changed and at least once a second.
struct LivenessReport {
  std::shared_ptr<const ProducerInfo> producer;
  ProducerState producer_state = ProducerState::kLive;
  std::uint64_t closed = LG_CLOSE_OPEN;  // LG_CLOSE_*, for kEnded
  std::int64_t heartbeat_age_ns = 0;     // by CLOCK_BOOTTIME; never negative
  std::int64_t enqueued_step = -1;
  std::int64_t published_step = -1;
  std::int64_t entered_step = -1;
  std::uint64_t last_call = LG_CALL_NONE;
  std::int64_t last_call_age_ns = 0;
  std::uint64_t phase = LG_PHASE_TRAIN;
  std::int64_t phase_age_ns = 0;
  bool drained = false;  // every publication of the segment has been delivered or counted as lost
  TimeNs time_ns = 0;
};

// Where a record can end up other than delivered. Labels of lossgauge_records_lost_total{reason}.
enum class LossReason { kOverrun, kTorn, kChecksum, kInvalid, kSpool, kCount };  // kSpool: dropped by a sidecar while no daemon took it
const char* LossReasonName(LossReason reason);

// Records that will never be delivered.
struct LossReport {
  std::shared_ptr<const ProducerInfo> producer;
  LossReason reason = LossReason::kOverrun;
  std::uint64_t records = 0;
  std::uint64_t first_publication = 0;  // of the lost range, which has no gaps; 0 = unknown
  bool event_ring = false;              // lost events rather than step records
  TimeNs time_ns = 0;
};

// Sees what sources hand over and the book took, before it is committed. Called by the drain thread only.
class RecordTap {
 public:
  virtual ~RecordTap() = default;
  virtual void OnProducer(const std::shared_ptr<const ProducerInfo>& producer) = 0;
  virtual void OnSample(const RankSample& sample) = 0;
  virtual void OnEvent(const ProducerEvent& event) = 0;
  virtual void OnLiveness(const LivenessReport& report) = 0;
  virtual void OnLoss(const LossReport& report) = 0;
  virtual void OnProducerGone(const SegmentId& segment) = 0;
  // Everything seen so far is about to be committed, and sources will not show it again.
  virtual void BeforeCommit(TimeNs now_ns) = 0;
  // Once in every cycle, whether there is something to commit or not.
  virtual void AfterCycle(TimeNs now_ns) = 0;
};

// Receives what sources find. Called by the drain thread only.
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  // A segment has appeared; false = refused (bounds on runs and ranks), the source then leaves it alone and counts it.
  virtual bool OnProducer(std::shared_ptr<const ProducerInfo> producer) = 0;
  virtual void OnSample(RankSample sample) = 0;
  virtual void OnEvent(ProducerEvent event) = 0;
  virtual void OnLiveness(const LivenessReport& report) = 0;
  virtual void OnLoss(const LossReport& report) = 0;
  // The segment is gone (drained and unlinked, or its file vanished).
  virtual void OnProducerGone(const SegmentId& segment, TimeNs time_ns) = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RECORDS_H_
