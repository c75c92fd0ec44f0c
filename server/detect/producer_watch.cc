#include "server/detect/producer_watch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/stall_locator.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::LivenessReport;
using state::ProducerState;
using state::TimeNs;

constexpr double kSecond = 1e9;
constexpr std::int64_t kMaxStep = std::int64_t{1} << 61;  // that a saved state may hold
constexpr TimeNs kLossCloseNs = 60'000'000'000;

TimeNs Seconds(double seconds) { return static_cast<TimeNs>(std::min(seconds, 1e9) * kSecond); }
double ToSeconds(TimeNs ns) { return static_cast<double>(ns) / kSecond; }

std::string RankNames(const std::vector<const LivenessReport*>& reports) {
  constexpr std::size_t kNamed = 8;
  std::string names = reports.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < reports.size() && i < kNamed; ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", reports[i]->producer->layout.rank);
  }
  if (reports.size() > kNamed) absl::StrAppend(&names, " and ", reports.size() - kNamed, " more");
  return names;
}

// The step that the lost got to, by their own word: when the loss is seen, their last records may still have to be read or joined, and how many differs from
// loss to loss. `last_step` of the run where no word of theirs can be a step.
std::int64_t StepOfLoss(const std::vector<const LivenessReport*>& lost, std::int64_t last_step) {
  std::optional<std::int64_t> step;
  for (const LivenessReport* report : lost) {
    if (report->published_step < 0 || report->published_step > kMaxStep) continue;
    step = std::min(step.value_or(report->published_step), report->published_step);
  }
  return step.value_or(last_step);
}

bool Alive(const LivenessReport& report) {
  return report.producer_state == ProducerState::kLive || report.producer_state == ProducerState::kFrozen;
}

bool OfNewest(const state::Presence& presence, const LivenessReport& report) {
  return report.producer != nullptr && report.producer->attempt == presence.newest_attempt;
}

}  // namespace

TimeNs FreshLimitNs(const Policy& policy, double median_step_seconds) {
  return Seconds(std::max(policy.fresh_seconds, policy.fresh_median_steps * median_step_seconds));
}

TimeNs StallLimitNs(const Policy& policy, double median_step_seconds) {
  return Seconds(std::max(policy.stall_restart_seconds, policy.stall_restart_median_steps * median_step_seconds));
}

TimeNs ProducerWatch::quiet_since_ns(TimeNs last_step_time_ns) const { return std::max(last_step_time_ns, phase_seen_ns_); }

void ProducerWatch::OnPresence(const state::Presence& presence, const Run& run, const Policy& policy, IncidentBook& book) {
  if (!presence.source_reachable) return;  // no knowledge: neither opens nor closes anything
  const Moment moment{presence.newest_attempt, run.last_step, presence.now_ns};
  for (TimeNs* time : {&phase_seen_ns_, &conflict_since_ns_, &loss_seen_ns_}) *time = std::min(*time, presence.now_ns);  // clock set back

  int producers = 0;
  int closed = 0;
  bool failed = false;
  std::uint64_t phase = LG_PHASE_TRAIN;
  TimeNs phase_age = 0;
  for (const LivenessReport& report : presence.producers) {
    if (!OfNewest(presence, report)) continue;
    ++producers;
    if (report.producer_state == ProducerState::kEnded) {
      ++closed;
      failed = failed || report.closed == LG_CLOSE_FAILED;
    }
    const TimeNs age = std::max<TimeNs>(0, report.phase_age_ns);
    if (Alive(report) && report.phase != LG_PHASE_TRAIN && age <= Seconds(policy.phase_limit_seconds)) {
      phase = report.phase;
      phase_age = std::max(phase_age, age);
    }
  }
  ended_ = producers > 0 && closed == producers && presence.unreachable_ranks == 0;
  failed_ = ended_ && failed;
  phase_ = phase;
  if (phase != LG_PHASE_TRAIN) {
    phase_since_ns_ = presence.now_ns - phase_age;
    phase_seen_ns_ = presence.now_ns;
  }

  CheckLost(presence, run, moment, book);
  CheckFrozen(presence, moment, book);
  CheckConflict(presence, policy, moment, book);
  CheckStall(presence, run, policy, moment, book);
  CheckFirstStep(presence, run, policy, moment, book);

  if (lost_total_ && presence.records_lost > *lost_total_) {
    Lost(presence.records_lost - *lost_total_, "", moment, book);
  } else if (loss_seen_ns_ != 0 && presence.now_ns - loss_seen_ns_ > kLossCloseNs) {
    book.Resolve({Condition::kRecordsLost}, moment);
    loss_seen_ns_ = 0;
    lost_in_incident_ = 0;
  }
  lost_total_ = std::max(presence.records_lost, lost_total_.value_or(0));
}

void ProducerWatch::CheckLost(const state::Presence& presence, const Run& run, const Moment& moment, IncidentBook& book) {
  std::vector<const LivenessReport*> lost;
  for (const LivenessReport& report : presence.producers) {
    if (OfNewest(presence, report) && report.producer_state == ProducerState::kLost) lost.push_back(&report);
  }
  if (!lost.empty()) {
    std::set<std::uint32_t> alive;  // ranks with a process, perhaps a new one in the place of the lost
    for (const LivenessReport& report : presence.producers) {
      if (OfNewest(presence, report) && Alive(report)) alive.insert(report.producer->layout.rank);
    }
    std::erase_if(lost, [&alive](const LivenessReport* report) { return alive.contains(report->producer->layout.rank); });
  }
  if (lost.empty()) {
    book.Resolve({Condition::kProducerLost}, moment);
    return;
  }
  const LivenessReport* first = lost[0];  // the one that got least far
  for (const LivenessReport* report : lost) {
    if (report->published_step < first->published_step) first = report;
  }
  Finding finding;
  finding.condition = Condition::kProducerLost;
  finding.severity = state::Severity::kCritical;
  finding.onset_step = finding.peak_step = StepOfLoss(lost, run.last_step);
  if (lost.size() == 1) finding.rank = first->producer->layout.rank;
  finding.summary = absl::StrFormat("The job process of %s is gone without a clean end (killed or crashed); last published step %d",
                                    RankNames(lost), first->published_step);
  if (first->enqueued_step > first->published_step) {
    absl::StrAppendFormat(&finding.summary, ", step %d was on its device", first->enqueued_step);
  }
  finding.evidence = {{"lost_ranks", static_cast<double>(lost.size()), "ranks", RankNames(lost)},
                      {"published_step", static_cast<double>(first->published_step), "", absl::StrCat("rank ", first->producer->layout.rank)},
                      {"enqueued_step", static_cast<double>(first->enqueued_step), "", ""},
                      {"heartbeat_age", ToSeconds(first->heartbeat_age_ns), "s", ""}};
  book.Report({Condition::kProducerLost}, std::move(finding), moment);
}

void ProducerWatch::CheckFrozen(const state::Presence& presence, const Moment& moment, IncidentBook& book) {
  std::vector<const LivenessReport*> frozen;
  TimeNs oldest = 0;
  for (const LivenessReport& report : presence.producers) {
    if (!OfNewest(presence, report) || report.producer_state != ProducerState::kFrozen) continue;
    frozen.push_back(&report);
    oldest = std::max(oldest, report.heartbeat_age_ns);
  }
  if (frozen.empty()) {
    book.Resolve({Condition::kFrozen}, moment);
    return;
  }
  Finding finding;
  finding.condition = Condition::kFrozen;
  finding.onset_step = finding.peak_step = moment.step;
  if (frozen.size() == 1) finding.rank = frozen[0]->producer->layout.rank;
  finding.summary = absl::StrFormat("The process of %s exists but its heartbeat stopped %.0f s ago: stopped by a signal or a debugger, or starved of CPU",
                                    RankNames(frozen), ToSeconds(oldest));
  finding.evidence = {{"frozen_ranks", static_cast<double>(frozen.size()), "ranks", RankNames(frozen)}, {"heartbeat_age", ToSeconds(oldest), "s", ""}};
  book.Report({Condition::kFrozen}, std::move(finding), moment);
}

void ProducerWatch::CheckConflict(const state::Presence& presence, const Policy& policy, const Moment& moment, IncidentBook& book) {
  const LivenessReport* older = nullptr;
  bool newest = false;
  for (const LivenessReport& report : presence.producers) {
    if (report.producer == nullptr || !Alive(report)) continue;
    if (OfNewest(presence, report)) {
      newest = true;
    } else {
      older = &report;
    }
  }
  if (older == nullptr || !newest) {
    conflict_since_ns_ = 0;
    book.Resolve({Condition::kAttemptConflict}, moment);
    return;
  }
  if (conflict_since_ns_ == 0) conflict_since_ns_ = presence.now_ns;
  // One process may still be going while the next has come.
  if (presence.now_ns - conflict_since_ns_ < Seconds(policy.attempt_conflict_seconds)) return;
  Finding finding;
  finding.condition = Condition::kAttemptConflict;
  finding.onset_step = finding.peak_step = moment.step;
  finding.summary = absl::StrCat("Two attempts of this run are alive: '", presence.newest_attempt, "' and the older '", older->producer->attempt,
                                 "' (rank ", older->producer->layout.rank, "): they may write the same checkpoints; stop the older one");
  finding.evidence = {{"newest_attempt", 0, "", presence.newest_attempt}, {"older_attempt", 0, "", older->producer->attempt}};
  book.Report({Condition::kAttemptConflict}, std::move(finding), moment);
}

void ProducerWatch::CheckStall(const state::Presence& presence, const Run& run, const Policy& policy, const Moment& moment, IncidentBook& book) {
  std::vector<const LivenessReport*> alive;
  for (const LivenessReport& report : presence.producers) {
    if (OfNewest(presence, report) && Alive(report)) alive.push_back(&report);
  }
  const TimeNs quiet = presence.now_ns - quiet_since_ns(run.last_step_time_ns);
  const TimeNs limit = FreshLimitNs(policy, run.median_step_seconds);
  if (run.last_step_time_ns == 0 || alive.empty() || quiet <= limit) {
    book.Resolve({Condition::kStall}, moment);
    return;
  }
  const StallLocation location = LocateStall(alive);
  const TimeNs restart = StallLimitNs(policy, run.median_step_seconds);
  Finding finding;
  finding.condition = Condition::kStall;
  finding.severity = quiet > restart ? state::Severity::kCritical : state::Severity::kWarning;
  finding.onset_step = finding.peak_step = run.last_step;
  finding.rank = location.rank;
  finding.summary = absl::StrFormat("No step for %.0f s after step %d (usual: %.3g s)", ToSeconds(quiet), run.last_step, run.median_step_seconds);
  if (!location.words.empty()) absl::StrAppend(&finding.summary, "; ", location.words);
  finding.evidence = {{"quiet", ToSeconds(quiet), "s", ""},
                      {"usual_step", run.median_step_seconds, "s", ""},
                      {"limit", ToSeconds(restart), "s", "RESTART beyond"},
                      {"location", 0, "", std::string(location.name)},
                      {"step", static_cast<double>(location.step), "", "not finished"}};
  book.Report({Condition::kStall}, std::move(finding), moment);
}

void ProducerWatch::CheckFirstStep(const state::Presence& presence, const Run& run, const Policy& policy, const Moment& moment, IncidentBook& book) {
  const bool alive = std::any_of(presence.producers.begin(), presence.producers.end(),
                                 [&](const LivenessReport& report) { return OfNewest(presence, report) && Alive(report); });
  const TimeNs waited = presence.now_ns - std::max(presence.first_seen_ns, phase_seen_ns_);
  if (run.last_step_time_ns != 0 || !alive || presence.first_seen_ns == 0 || waited <= Seconds(policy.first_step_seconds)) {
    book.Resolve({Condition::kNoFirstStep}, moment);
    return;
  }
  Finding finding;
  finding.condition = Condition::kNoFirstStep;
  finding.onset_step = finding.peak_step = -1;
  finding.summary = absl::StrFormat("The job opened its gauge %.0f s ago and has not published a step: compiling, loading data, or hanging in its "
                                    "first collective", ToSeconds(presence.now_ns - presence.first_seen_ns));
  finding.evidence = {{"waited", ToSeconds(waited), "s", ""}, {"limit", policy.first_step_seconds, "s", ""}};
  book.Report({Condition::kNoFirstStep}, std::move(finding), moment);
}

void ProducerWatch::OnLoss(const state::LossReport& report, const Moment& moment, IncidentBook& book) {
  if (report.records == 0) return;
  lost_total_ = lost_total_.value_or(0) + report.records;
  Lost(report.records, state::LossReasonName(report.reason), moment, book);
}

void ProducerWatch::Lost(std::uint64_t records, const char* reason, const Moment& moment, IncidentBook& book) {
  if (loss_seen_ns_ == 0) {
    lost_in_incident_ = 0;
    loss_onset_step_ = moment.step;
  }
  loss_seen_ns_ = std::max<TimeNs>(1, moment.time_ns);
  lost_in_incident_ += records;
  Finding finding;
  finding.condition = Condition::kRecordsLost;
  finding.onset_step = finding.peak_step = loss_onset_step_;
  finding.summary = absl::StrCat("Incomplete: ", lost_in_incident_, " step records were lost", *reason == 0 ? "" : " (last: ", reason,
                                 *reason == 0 ? "" : ")", "; totals stay right, single steps are missing");
  finding.evidence = {{"records_lost", static_cast<double>(lost_in_incident_), "records", reason}};
  book.Report({Condition::kRecordsLost}, std::move(finding), moment);
}

void ProducerWatch::OnAttempt() {
  ended_ = failed_ = false;
  phase_ = LG_PHASE_TRAIN;
  phase_since_ns_ = phase_seen_ns_ = conflict_since_ns_ = loss_seen_ns_ = 0;
  lost_in_incident_ = 0;
}

void ProducerWatch::Save(StateWriter& out) const {
  out.Put<std::uint8_t>(ended_);
  out.Put<std::uint8_t>(failed_);
  out.Put(phase_);
  out.Put(phase_since_ns_);
  out.Put(phase_seen_ns_);
  out.Put(conflict_since_ns_);
  out.Put(loss_seen_ns_);
  out.Put(lost_in_incident_);
  out.Put(loss_onset_step_);
  out.PutOptional(lost_total_);
}

void ProducerWatch::Restore(StateReader& in) {
  ended_ = in.GetBool();
  failed_ = in.GetBool();
  phase_ = in.GetIn<std::uint64_t>(0, LG_PHASE_OTHER);
  phase_since_ns_ = in.GetTime();
  phase_seen_ns_ = in.GetTime();
  conflict_since_ns_ = in.GetTime();
  loss_seen_ns_ = in.GetTime();
  lost_in_incident_ = in.Get<std::uint64_t>();
  loss_onset_step_ = in.GetStep();
  lost_total_ = in.GetOptional<std::uint64_t>();
}

}  // namespace lossgauge::detect
