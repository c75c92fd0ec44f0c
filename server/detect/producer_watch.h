// Conditions of the producers' life rather than of their numbers: producer_lost, frozen, stall, no_first_step, attempt_conflict, records_lost.
#ifndef LOSSGAUGE_SERVER_DETECT_PRODUCER_WATCH_H_
#define LOSSGAUGE_SERVER_DETECT_PRODUCER_WATCH_H_

#include <cstdint>
#include <optional>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/state/judge.h"

namespace lossgauge::detect {

// Time limits of a run, from its usual step time (seconds; 0 = unknown).
state::TimeNs FreshLimitNs(const Policy& policy, double median_step_seconds);
state::TimeNs StallLimitNs(const Policy& policy, double median_step_seconds);

class ProducerWatch {
 public:
  struct Run {
    double median_step_seconds = 0;
    std::int64_t last_step = -1;
    state::TimeNs last_step_time_ns = 0;
  };
  void OnPresence(const state::Presence& presence, const Run& run, const Policy& policy, IncidentBook& book);
  void OnLoss(const state::LossReport& report, const Moment& moment, IncidentBook& book);
  void OnAttempt();

  // Of the newest attempt, as of the last presence.
  bool ended() const { return ended_; }    // every producer closed
  bool failed() const { return failed_; }  // and at least one declared failure
  // A declared phase other than training, LG_PHASE_*; LG_PHASE_TRAIN if none.
  std::uint64_t phase() const { return phase_; }
  state::TimeNs phase_since_ns() const { return phase_since_ns_; }
  // Since when nothing excuses the silence: the later of the last step and the end of the last phase.
  state::TimeNs quiet_since_ns(state::TimeNs last_step_time_ns) const;

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  void CheckLost(const state::Presence& presence, const Run& run, const Moment& moment, IncidentBook& book);
  void CheckFrozen(const state::Presence& presence, const Moment& moment, IncidentBook& book);
  void CheckConflict(const state::Presence& presence, const Policy& policy, const Moment& moment, IncidentBook& book);
  void CheckStall(const state::Presence& presence, const Run& run, const Policy& policy, const Moment& moment, IncidentBook& book);
  void CheckFirstStep(const state::Presence& presence, const Run& run, const Policy& policy, const Moment& moment, IncidentBook& book);
  void Lost(std::uint64_t records, const char* reason, const Moment& moment, IncidentBook& book);

  bool ended_ = false;
  bool failed_ = false;
  std::uint64_t phase_ = LG_PHASE_TRAIN;
  state::TimeNs phase_since_ns_ = 0;
  state::TimeNs phase_seen_ns_ = 0;  // last time that a phase other than training was seen
  state::TimeNs conflict_since_ns_ = 0;
  state::TimeNs loss_seen_ns_ = 0;
  std::uint64_t lost_in_incident_ = 0;
  std::int64_t loss_onset_step_ = 0;
  std::optional<std::uint64_t> lost_total_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_PRODUCER_WATCH_H_
