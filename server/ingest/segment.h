// One attached segment: both rings of a rank, its lock and its status line. Drains them and says whether the producer lives.
//
// Bytes of the rings are copied before they are judged (ring_reader.h), and each publication ends up delivered or counted under a cause:
// written = delivered + lost. Drain thread only.
#ifndef LOSSGAUGE_SERVER_INGEST_SEGMENT_H_
#define LOSSGAUGE_SERVER_INGEST_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/lossgauge/ring/ring_reader.h"
#include "server/ingest/producer_lock.h"
#include "server/ingest/ring_file.h"
#include "server/state/source.h"

namespace lossgauge::ingest {

struct LivenessOptions {
  std::int64_t frozen_after_ns = std::int64_t{10} * 1'000'000'000;  // lock held, heartbeat older
  std::int64_t lost_after_ns = std::int64_t{30} * 1'000'000'000;    // no lock to be asked, heartbeat older
};

struct SegmentTime {
  state::TimeNs now_ns = 0;    // lossgauged's clock
  std::int64_t boot_ns = 0;    // CLOCK_BOOTTIME
  const std::uint64_t* boot_id = nullptr;  // of this kernel, two words
};

class Segment {
 public:
  // `events` may be null: a rank whose event ring cannot be read is still worth its steps.
  Segment(std::string base_path, std::unique_ptr<RingFile> steps, std::unique_ptr<RingFile> events,
          std::shared_ptr<const state::ProducerInfo> info);

  void Resume(const state::ResumePosition& position);
  // At most `budget` records. Adds to `result`.
  void Drain(state::RecordSink& sink, const SegmentTime& time, std::size_t budget, state::PollResult* result);
  // Looks at lock and status line, and reports if something changed or a second has passed.
  void CheckLiveness(state::RecordSink& sink, const SegmentTime& time, const LivenessOptions& options);

  const std::shared_ptr<const state::ProducerInfo>& info() const { return info_; }
  bool alive() const { return state_ == state::ProducerState::kLive || state_ == state::ProducerState::kFrozen; }
  // Dead, and everything delivered or counted: its mappings are given back.
  bool finished() const { return finished_; }
  bool drained() const { return last_report_.drained; }
  bool has_events() const { return events_.file != nullptr; }
  // An event ring that was not there when the segment was attached.
  void AttachEvents(std::unique_ptr<RingFile> events, std::uint64_t next_publication);
  void set_vanished(bool vanished) { vanished_ = vanished; }
  state::TimeNs finished_ns() const { return finished_ns_; }
  // "truncated" or "damaged" once, when reading had to end; then empty.
  std::string TakeError();

  // Lock state and age for ordering at attach.
  LockState ProbeLock() { return lock_.Probe(); }

 private:
  template <class Record>
  struct Ring {
    std::unique_ptr<RingFile> file;
    std::optional<ring::RingReader<Record>> reader;
    std::uint64_t lost_before = 0;
    bool stopped = false;  // broken or damaged: nothing more is read
  };

  template <class Record>
  bool DrainRing(Ring<Record>* ring, state::RecordSink& sink, const SegmentTime& time, std::size_t budget, state::PollResult* result);
  template <class Record>
  void CountTorn(Ring<Record>* ring, state::RecordSink& sink, const SegmentTime& time);
  void Deliver(lg_step_record* record, std::uint64_t publication, std::uint64_t lost_before, state::RecordSink& sink,
               const SegmentTime& time, state::PollResult* result);
  void Deliver(lg_event_record* record, std::uint64_t publication, std::uint64_t lost_before, state::RecordSink& sink,
               const SegmentTime& time, state::PollResult* result);
  // Where a record is copied to: of a step, into the sample itself.
  lg_step_record* Buffer(lg_step_record*) { return &sample_.record; }
  lg_event_record* Buffer(lg_event_record*) { return &event_; }
  void ReportLoss(state::RecordSink& sink, const SegmentTime& time, state::LossReason reason, std::uint64_t first, std::uint64_t records,
                  bool event_ring);
  state::LivenessReport Look(const SegmentTime& time, const LivenessOptions& options);
  std::int64_t HeartbeatAge(std::int64_t heartbeat_boot_ns, const SegmentTime& time);
  bool SameBoot(const SegmentTime& time) const;
  void Finish(state::RecordSink& sink, const SegmentTime& time);

  std::shared_ptr<const state::ProducerInfo> info_;
  ProducerLock lock_;
  Ring<lg_step_record> steps_;
  Ring<lg_event_record> events_;
  state::RankSample sample_;
  lg_event_record event_{};
  std::uint64_t boot_id_[2];
  state::ProducerState state_ = state::ProducerState::kLive;
  state::LivenessReport last_report_;
  bool has_report_ = false;
  state::TimeNs next_look_ns_ = 0;
  std::int64_t last_heartbeat_ = -1;
  state::TimeNs heartbeat_changed_ns_ = 0;
  bool finished_ = false;
  bool vanished_ = false;
  // Lost by its heartbeat alone, because its lock cannot be asked: it may be stopped and go on one day, so its rings stay mapped.
  bool is_presumed_ = false;
  state::TimeNs finished_ns_ = 0;
  std::string error_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_SEGMENT_H_
