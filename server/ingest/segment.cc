#include "server/ingest/segment.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "server/ingest/text_repair.h"

namespace lossgauge::ingest {
namespace {

constexpr std::int64_t kLookEveryNs = 1'000'000'000;
constexpr std::int64_t kFutureToleranceNs = 1'000'000'000;  // of a heartbeat: beyond it the word is not believed

using state::LossReason;
using state::ProducerState;

}  // namespace

Segment::Segment(std::string base_path, std::unique_ptr<RingFile> steps, std::unique_ptr<RingFile> events,
                 std::shared_ptr<const state::ProducerInfo> info)
    : info_(std::move(info)), lock_(base_path + ".lock"), boot_id_{steps->identity.boot_id[0], steps->identity.boot_id[1]} {
  steps_.file = std::move(steps);
  events_.file = std::move(events);
  Resume({});
}

void Segment::Resume(const state::ResumePosition& position) {
  steps_.reader.emplace(steps_.file->mapping.data(), steps_.file->identity, position.next_steps_publication);
  if (events_.file) events_.reader.emplace(events_.file->mapping.data(), events_.file->identity, position.next_events_publication);
}

void Segment::AttachEvents(std::unique_ptr<RingFile> events, std::uint64_t next_publication) {
  events_.file = std::move(events);
  events_.reader.emplace(events_.file->mapping.data(), events_.file->identity, next_publication);
}

bool Segment::SameBoot(const SegmentTime& time) const {
  return time.boot_id != nullptr && boot_id_[0] == time.boot_id[0] && boot_id_[1] == time.boot_id[1];
}

void Segment::ReportLoss(state::RecordSink& sink, const SegmentTime& time, LossReason reason, std::uint64_t first, std::uint64_t records,
                         bool event_ring) {
  state::LossReport report;
  report.producer = info_;
  report.reason = reason;
  report.records = records;
  report.first_publication = first;
  report.event_ring = event_ring;
  report.time_ns = time.now_ns;
  sink.OnLoss(report);
}

void Segment::Deliver(lg_step_record* record, std::uint64_t publication, std::uint64_t lost_before, state::RecordSink& sink,
                      const SegmentTime& time, state::PollResult* result) {
  if (record->boot_ns > 0 && SameBoot(time)) result->oldest_age_ns = std::max(result->oldest_age_ns, time.boot_ns - record->boot_ns);
  sample_.producer = info_;
  sample_.publication = publication;
  sample_.lost_before = lost_before;
  sample_.receive_time_ns = time.now_ns;
  sink.OnSample(std::move(sample_));
}

void Segment::Deliver(lg_event_record* copied, std::uint64_t publication, std::uint64_t, state::RecordSink& sink,
                      const SegmentTime& time, state::PollResult*) {
  const lg_event_record& record = *copied;
  state::ProducerEvent event;
  event.producer = info_;
  event.kind = record.kind;
  event.step = record.step;
  event.phase = record.phase;
  event.value = record.value;
  event.count = record.count;
  event.text = RepairUtf8(ring::FieldText(record.text, std::min<std::uint64_t>(record.text_bytes, LG_EVENT_TEXT_BYTES)));
  event.publication = publication;
  event.producer_wall_ns = record.wall_ns;
  event.receive_time_ns = time.now_ns;
  sink.OnEvent(std::move(event));
}

// Returns true if the ring is empty for now, false if the budget ended the look.
template <class Record>
bool Segment::DrainRing(Ring<Record>* ring, state::RecordSink& sink, const SegmentTime& time, std::size_t budget,
                        state::PollResult* result) {
  constexpr bool kEvents = std::is_same_v<Record, lg_event_record>;
  if (!ring->reader || ring->stopped) return true;
  Record* record = Buffer(static_cast<Record*>(nullptr));
  for (std::size_t used = 0; used < budget; ++used) {
    const ring::ReadResult read = ring->reader->Next(record);
    if (ring->file->mapping.broken()) {
      // Zeros were read where the file has gone: nothing of this look is believed.
      ring->stopped = true;
      error_ = "truncated";
      return true;
    }
    switch (read.fate) {
      case ring::ReadFate::kEmpty: return true;
      case ring::ReadFate::kUnsettled:
        if (!has_report_ || alive()) return true;  // by the next look it may be settled; meanwhile other rings have their turn
        break;                                     // nothing more comes from a dead writer
      case ring::ReadFate::kDamaged:
        ring->stopped = true;
        error_ = "damaged";
        return true;
      case ring::ReadFate::kLapped:
        ReportLoss(sink, time, LossReason::kOverrun, read.publication, read.lost, kEvents);
        ring->lost_before += read.lost;
        break;
      case ring::ReadFate::kCorrupt:
        ReportLoss(sink, time, LossReason::kChecksum, read.publication, read.lost, kEvents);
        ring->lost_before += read.lost;
        break;
      case ring::ReadFate::kRecord:
        if (ring::ValidateRecord(*record) != ring::RecordState::kValid) {
          ReportLoss(sink, time, LossReason::kInvalid, read.publication, 1, kEvents);
          ++ring->lost_before;
          break;
        }
        Deliver(record, read.publication, ring->lost_before, sink, time, result);
        ring->lost_before = 0;
        ++result->records;
        break;
    }
  }
  return false;
}

// What a dead producer had begun will never be whole.
template <class Record>
void Segment::CountTorn(Ring<Record>* ring, state::RecordSink& sink, const SegmentTime& time) {
  if (!ring->reader || ring->stopped || !ring->reader->HasTornRecord()) return;
  ReportLoss(sink, time, LossReason::kTorn, ring->reader->next(), 1, std::is_same_v<Record, lg_event_record>);
}

void Segment::Drain(state::RecordSink& sink, const SegmentTime& time, std::size_t budget, state::PollResult* result) {
  if (finished_) return;
  // Events first: what is said before a step (resume, phase) is known when the step is judged.
  const bool events_empty = DrainRing(&events_, sink, time, budget, result);
  const bool steps_empty = DrainRing(&steps_, sink, time, budget, result);
  if (!events_empty || !steps_empty) {
    result->more = true;
    return;
  }
  if (!has_report_ || alive()) return;
  if (is_presumed_ && !vanished_ && SameBoot(time)) {
    if (last_report_.drained) return;
    last_report_.drained = true;
    last_report_.time_ns = time.now_ns;
    sink.OnLiveness(last_report_);
    return;
  }
  Finish(sink, time);
}

void Segment::Finish(state::RecordSink& sink, const SegmentTime& time) {
  // Death was seen before this look found the rings empty: nothing can come after it. A producer that closed its gauge and lives on may still
  // say its last word in the event ring; it does so before it stores the closed word.
  CountTorn(&steps_, sink, time);
  CountTorn(&events_, sink, time);
  last_report_.drained = true;
  last_report_.time_ns = time.now_ns;
  sink.OnLiveness(last_report_);
  finished_ = true;
  finished_ns_ = time.now_ns;
  steps_.reader.reset();
  events_.reader.reset();
  steps_.file.reset();
  events_.file.reset();
}

std::int64_t Segment::HeartbeatAge(std::int64_t heartbeat_boot_ns, const SegmentTime& time) {
  if (heartbeat_boot_ns != last_heartbeat_ || heartbeat_changed_ns_ == 0) {
    last_heartbeat_ = heartbeat_boot_ns;
    heartbeat_changed_ns_ = time.now_ns;
  }
  // Clocks of another boot do not compare, and a heartbeat from the future is no clock: then only its changing counts.
  if (SameBoot(time) && heartbeat_boot_ns <= time.boot_ns + kFutureToleranceNs) return std::max<std::int64_t>(0, time.boot_ns - heartbeat_boot_ns);
  return std::max<std::int64_t>(0, time.now_ns - heartbeat_changed_ns_);
}

state::LivenessReport Segment::Look(const SegmentTime& time, const LivenessOptions& options) {
  const lg_ring_status& status = steps_.file->header()->status;
  state::LivenessReport report;
  report.producer = info_;
  report.time_ns = time.now_ns;
  const auto lock = lock_.Probe();
  is_presumed_ = lock == LockState::kUnknown;
  report.heartbeat_age_ns = HeartbeatAge(ring::LoadAcquire(&status.heartbeat_boot_ns), time);
  report.closed = std::min<std::uint64_t>(ring::LoadAcquire(&status.closed), LG_CLOSE_FAILED);
  report.enqueued_step = ring::LoadRelaxed(&status.enqueued_step);
  report.published_step = ring::LoadRelaxed(&status.published_step);
  report.entered_step = ring::LoadRelaxed(&status.entered_step);
  report.last_call = ring::LoadRelaxed(&status.last_call);
  report.phase = ring::LoadRelaxed(&status.phase);
  if (SameBoot(time)) {
    const auto age = [&](std::int64_t since) { return since > 0 ? std::max<std::int64_t>(0, time.boot_ns - since) : 0; };
    report.last_call_age_ns = age(ring::LoadRelaxed(&status.last_call_boot_ns));
    report.phase_age_ns = age(ring::LoadRelaxed(&status.phase_since_boot_ns));
  }
  if (report.closed != LG_CLOSE_OPEN) {
    report.producer_state = ProducerState::kEnded;
  } else if (lock == LockState::kFree) {
    report.producer_state = ProducerState::kLost;
  } else if (lock == LockState::kUnknown) {
    report.producer_state = report.heartbeat_age_ns > options.lost_after_ns ? ProducerState::kLost : ProducerState::kLive;
  } else {
    report.producer_state = report.heartbeat_age_ns > options.frozen_after_ns ? ProducerState::kFrozen : ProducerState::kLive;
  }
  return report;
}

void Segment::CheckLiveness(state::RecordSink& sink, const SegmentTime& time, const LivenessOptions& options) {
  if (finished_) {
    // Repeated once a second, because the book forgets nothing but a restart of it would.
    if (time.now_ns < next_look_ns_) return;
    next_look_ns_ = time.now_ns + kLookEveryNs;
    last_report_.time_ns = time.now_ns;
    sink.OnLiveness(last_report_);
    return;
  }
  const bool is_closing = alive() && ring::LoadRelaxed(&steps_.file->header()->status.closed) != LG_CLOSE_OPEN;
  if (has_report_ && time.now_ns < next_look_ns_ && !is_closing) return;
  next_look_ns_ = time.now_ns + kLookEveryNs;
  if (has_report_ && !alive() && !last_report_.drained) return;  // Finish reports
  const bool was_drained = last_report_.drained;
  last_report_ = Look(time, options);
  last_report_.drained = was_drained && last_report_.producer_state == ProducerState::kLost;
  state_ = last_report_.producer_state;
  has_report_ = true;
  sink.OnLiveness(last_report_);
}

std::string Segment::TakeError() { return std::exchange(error_, {}); }

}  // namespace lossgauge::ingest
