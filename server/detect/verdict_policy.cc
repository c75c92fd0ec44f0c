#include "server/detect/verdict_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/producer_watch.h"
#include "server/detect/verdict_words.h"
#include "server/state/kinds.h"
#include "server/state/ring_names.h"

namespace lossgauge::detect {
namespace {

using state::Action;
using state::Condition;
using state::Incident;
using state::Severity;
using state::TimeNs;
using state::Verdict;

constexpr std::size_t kMaxEvidence = 24;
constexpr TimeNs kClockSlackNs = 1'000'000'000;  // what a clock may be slewed back while it runs

class Decision {
 public:
  Decision(const RunFacts& facts, const Policy& policy, TimeNs now_ns) : facts_(facts), policy_(policy), now_ns_(now_ns) {
    verdict_.policy_version = policy.version;
    verdict_.mode = policy.shadow() ? "shadow" : "advise";
    verdict_.evaluated_at_ns = now_ns;
    verdict_.valid_until_ns = now_ns + static_cast<TimeNs>(policy.valid_seconds * 1e9);
    verdict_.attempt = facts.attempt;
    if (facts.last_step_time_ns != 0) {
      verdict_.last_step = facts.last_step;
      verdict_.last_step_age_ns = std::max<TimeNs>(0, now_ns - facts.last_step_time_ns);
    }
    for (const Incident* incident : facts.open) {
      if (incident->hidden_by.empty()) visible_.push_back(incident);
    }
    // The worst first, then the oldest.
    std::stable_sort(visible_.begin(), visible_.end(), [](const Incident* a, const Incident* b) { return a->severity > b->severity; });
  }

  Verdict Decide() {
    if (verdict_.last_step) {
      const std::int64_t good = LastGoodStep(facts_);
      if (good >= 0) verdict_.last_good_step = good;
    }
    if (!Blind() && !Ended() && !HaltOrRestart() && !Silent() && !Watch() && !Incomplete() && !Warming()) Continue();
    if (verdict_.evidence.size() > kMaxEvidence) verdict_.evidence.resize(kMaxEvidence);
    return std::move(verdict_);
  }

 private:
  void Say(Action action, std::string_view code, std::string reason) {
    verdict_.action = action;
    verdict_.reason_codes.insert(verdict_.reason_codes.begin(), std::string(code));
    verdict_.reason = std::move(reason);
  }
  void AddEvidence(const char* name, double value, const char* unit, std::string text = "") {
    verdict_.evidence.push_back({name, value, unit, std::move(text)});
  }
  void Cite(const Incident& incident) {
    verdict_.evidence.push_back({"incident", 0, "", absl::StrCat(incident.id, " ", ReasonCode(incident), ": ", incident.summary)});
    for (const state::Evidence& item : incident.evidence) verdict_.evidence.push_back(item);
  }
  void AddCode(const Incident& incident) {
    const std::string code = ReasonCode(incident);
    if (std::find(verdict_.reason_codes.begin(), verdict_.reason_codes.end(), code) == verdict_.reason_codes.end()) {
      verdict_.reason_codes.push_back(code);
    }
  }

  TimeNs StepAge() const { return facts_.last_step_time_ns == 0 ? INT64_MAX : now_ns_ - facts_.last_step_time_ns; }
  TimeNs FreshNs() const { return FreshLimitNs(policy_, facts_.median_step_seconds); }
  // A time in the future says nothing about the present: the clock was set back, perhaps while nobody was looking.
  static bool Within(TimeNs age, TimeNs limit) { return age >= -kClockSlackNs && age <= limit; }
  bool Fresh() const { return facts_.last_step_time_known && Within(StepAge(), FreshNs()); }
  bool PresenceKnown() const {
    return facts_.presence_ns != 0 && Within(now_ns_ - facts_.presence_ns, static_cast<TimeNs>(policy_.presence_seconds * 1e9));
  }

  // UNKNOWN: there is nothing to judge by.
  bool Blind() {
    if (facts_.first_seen_ns == 0 && facts_.last_step_time_ns == 0) {
      Say(Action::kUnknown, state::kReasonNoData, "No data: nothing of this run has been seen yet");
      AddEvidence("steps", 0, "steps");
      return true;
    }
    if (!facts_.source_reachable) {
      Say(Action::kUnknown, state::kReasonUnreachable,
          absl::StrCat("The source of this run's records cannot be read since ", Duration(now_ns_ - facts_.unreachable_since_ns),
                       " (ring directory or forwarder): nothing is known about the job now"));
      verdict_.since_ns = facts_.unreachable_since_ns;
      CiteAge();
      return true;
    }
    if (!Fresh() && !PresenceKnown() && !facts_.ended) {
      const TimeNs last = std::max(facts_.last_step_time_ns, facts_.presence_ns);
      Say(Action::kUnknown, state::kReasonStale,
          facts_.last_step_time_ns == 0
              ? absl::StrCat("Stale: no word of the job's processes for ", Duration(now_ns_ - last), " and no step yet")
              : absl::StrCat("Stale: the last word of this run is ", Duration(now_ns_ - last), " old (step ", facts_.last_step,
                             "); nothing is known about the job now"));
      verdict_.since_ns = std::min(last, now_ns_);
      CiteAge();
      return true;
    }
    return false;
  }

  void CiteAge() {
    if (facts_.last_step_time_ns != 0) {
      AddEvidence("last_step_age", static_cast<double>(StepAge()) / 1e9, "s", absl::StrCat("step ", facts_.last_step));
    }
    AddEvidence("fresh_limit", static_cast<double>(FreshNs()) / 1e9, "s");
  }

  bool Ended() {
    if (!facts_.ended || facts_.failed) return false;
    Say(Action::kUnknown, state::kReasonEnded, absl::StrCat("The run ended cleanly after step ", facts_.last_step, ", ",
                                                             Duration(now_ns_ - facts_.ended_ns), " ago"));
    verdict_.since_ns = facts_.ended_ns;
    CiteAge();
    return true;
  }

  void Resume(const Failure& failure) {
    const std::int64_t good = LastGoodStep(facts_);
    verdict_.resume_point = facts_.history->CheckpointAtOrBefore(good);
    if (verdict_.resume_point) {
      absl::StrAppend(&verdict_.reason, ". Resume from the checkpoint of step ", verdict_.resume_point->step);
    } else {
      absl::StrAppend(&verdict_.reason, ". No checkpoint at or before step ", good, " is known here");
    }
    if (failure.condition != Condition::kNonfinite && failure.condition != Condition::kDivergence) return;
    std::int64_t last = good + 1;
    for (const Incident* incident : facts_.open) {
      if (incident->condition == failure.condition) last = std::max(last, incident->peak_step);
    }
    verdict_.skip = state::StepSpan{good + 1, last};
    absl::StrAppend(&verdict_.reason, "; skip the data of steps ", good + 1, " to ", last);
  }

  bool HaltOrRestart() {
    const Incident* integrity = nullptr;
    const Incident* accounting = nullptr;
    for (const Incident* incident : visible_) {
      if (incident->severity != Severity::kCritical) continue;
      if (incident->condition == Condition::kIntegrity && integrity == nullptr) integrity = incident;
      if (incident->condition == Condition::kAccounting && accounting == nullptr) accounting = incident;
    }
    if (integrity != nullptr && facts_.integrity_broken_steps >= policy_.integrity_halt_steps) {
      return Halt(ReasonCode(*integrity), integrity,
                  absl::StrCat("A restart would not help, the sums over ranks are wrong: ", integrity->summary));
    }
    const std::optional<Failure> failure = FailureOf(facts_);
    const Incident* cause = nullptr;
    if (failure) {
      for (const Incident* incident : facts_.open) {
        if (incident->condition == failure->condition && AsksForRestart(*incident)) cause = incident;
      }
    }
    if (failure) {
      const auto span = static_cast<std::int64_t>(policy_.repeat_failure_span_steps);
      if (const AttemptRecord* before = facts_.history->SameFailureBefore(*failure, span)) {
        const std::string what = failure->condition == Condition::kCount ? "declared by the job" : std::string(state::ConditionName(failure->condition));
        return Halt(state::kReasonRepeatedFailure, cause,
                    absl::StrCat("The same failure at the same step after a restart: ", what, " at step ", failure->step, ", as in attempt '", before->attempt, "' (step ", before->failure->step,
                                 "). Another restart would end the same way: look at the code, the data of that step or the machine"));
      }
      const int stuck = facts_.history->AttemptsWithoutProgress();
      if (stuck >= policy_.no_progress_attempts) {
        return Halt(state::kReasonNoProgress, cause,
                    absl::StrCat("No progress: ", stuck, " attempts in a row got no further than those before them (now step ", facts_.last_step,
                                 "); restarting again would only burn time"));
      }
    }
    if (accounting != nullptr && policy_.accounting_halts != 0) {
      return Halt(ReasonCode(*accounting), accounting, absl::StrCat("The policy halts on wrong accounting: ", accounting->summary));
    }
    if (cause != nullptr) {
      Say(Action::kRestart, ReasonCode(*cause), cause->summary);
      for (const Incident* incident : visible_) {
        if (incident->severity == Severity::kCritical) AddCode(*incident);
      }
      verdict_.rank_at_fault = cause->rank;
      Resume(*failure);
      NoteRestart();
      CiteAge();
      Cite(*cause);
      return true;
    }
    if (facts_.failed) {
      Say(Action::kRestart, state::kReasonFailed, absl::StrCat("The job declared that it failed after step ", facts_.last_step));
      Resume(Failure{Condition::kCount, facts_.last_step});
      NoteRestart();
      CiteAge();
      return true;
    }
    return false;
  }

  // Somebody may have acted already: say so, lest it be done twice.
  void NoteRestart() {
    const state::LedgerEntry* last = facts_.history->last_action();
    if (last == nullptr || last->action != Action::kRestart || last->attempt != facts_.attempt) return;
    absl::StrAppend(&verdict_.reason, ". '", last->actor, "' reported a restart ", Duration(now_ns_ - last->time_ns),
                    " ago; the new attempt has not been seen yet");
    AddEvidence("restart_reported", static_cast<double>(now_ns_ - last->time_ns) / 1e9, "s", last->actor);
  }

  bool Halt(std::string_view code, const Incident* cause, std::string reason) {
    Say(Action::kHalt, code, std::move(reason));
    if (cause != nullptr) {
      AddCode(*cause);
      verdict_.rank_at_fault = cause->rank;
    }
    verdict_.resume_point = facts_.history->CheckpointAtOrBefore(LastGoodStep(facts_));
    CiteAge();
    if (cause != nullptr) Cite(*cause);
    return true;
  }

  // No fresh step: never CONTINUE.
  bool Silent() {
    if (Fresh()) return false;
    if (WatchPhase()) return true;
    if (WatchIncidents()) return true;
    if (facts_.last_step_time_ns == 0) {
      Say(Action::kUnknown, state::kReasonNoData,
          absl::StrCat("No data yet: the job has been seen ", Duration(now_ns_ - facts_.first_seen_ns), " ago and has published no step"));
      verdict_.since_ns = facts_.first_seen_ns;
      AddEvidence("steps", 0, "steps");
      return true;
    }
    const bool known = facts_.last_step_time_known && StepAge() >= 0;
    Say(Action::kUnknown, state::kReasonStale,
        known ? absl::StrCat("Stale: the last step (", facts_.last_step, ") is ", Duration(StepAge()), " old")
              : absl::StrCat("Stale: the clock was set back since the last step (", facts_.last_step, "); its age is not known"));
    verdict_.since_ns = std::min(facts_.last_step_time_ns, now_ns_);
    CiteAge();
    return true;
  }

  bool WatchPhase() {
    if (facts_.phase == LG_PHASE_TRAIN) return false;
    const std::string phase = state::PhaseName(facts_.phase);
    Say(Action::kWatch, state::kReasonPhase,
        absl::StrCat("The job declared the phase '", phase, "' ", Duration(now_ns_ - facts_.phase_since_ns), " ago; no steps are expected meanwhile"));
    verdict_.escalates = absl::StrCat("counts as a stall if the phase lasts longer than ", Duration(static_cast<TimeNs>(policy_.phase_limit_seconds * 1e9)));
    AddEvidence("phase_age", static_cast<double>(now_ns_ - facts_.phase_since_ns) / 1e9, "s", phase);
    CiteAge();
    for (const Incident* incident : visible_) {
      if (incident->severity >= Severity::kWarning) AddCode(*incident);
    }
    return true;
  }

  bool WatchIncidents() {
    const Incident* worst = nullptr;
    int others = 0;
    for (const Incident* incident : visible_) {
      if (incident->severity < Severity::kWarning) continue;
      if (worst == nullptr) {
        worst = incident;
      } else {
        ++others;
      }
    }
    if (worst == nullptr) return false;
    Say(Action::kWatch, ReasonCode(*worst), worst->summary);
    if (others > 0) absl::StrAppend(&verdict_.reason, " (and ", others, others == 1 ? " more incident)" : " more incidents)");
    verdict_.escalates = Escalation(*worst, policy_, facts_.median_step_seconds);
    verdict_.rank_at_fault = worst->rank;
    CiteAge();
    for (const Incident* incident : visible_) {
      if (incident->severity < Severity::kWarning) continue;
      AddCode(*incident);
      Cite(*incident);
    }
    return true;
  }

  bool Watch() {
    if (WatchIncidents()) return true;
    return facts_.warm && WatchPhase();
  }

  // A job of which a part cannot be heard: whatever the rest says, not everything is known.
  bool Incomplete() {
    if (facts_.unreachable_ranks == 0) return false;
    const bool is_one = facts_.unreachable_ranks == 1;
    Say(Action::kWatch, state::kReasonUnreachable,
        absl::StrCat("Incomplete: ", is_one ? "" : absl::StrCat(facts_.unreachable_ranks, " ranks, the first of them "), is_one ? "Rank " : "rank ",
                     facts_.first_unreachable_rank, ", cannot be heard: their node is lost, cut off from here, or still sending what it had kept"));
    verdict_.escalates = "once the job stalls, or when steps come without these ranks";
    AddEvidence("unreachable_ranks", static_cast<double>(facts_.unreachable_ranks), "ranks", absl::StrCat("first: rank ", facts_.first_unreachable_rank));
    CiteAge();
    return true;
  }

  bool Warming() {
    if (facts_.warm) return false;
    Say(Action::kUnknown, state::kReasonWarming,
        absl::StrFormat("Baseline warming: %d of %.0f steps seen%s; exact checks (non-finite, integrity, presence) are on and quiet",
                        std::min<int>(facts_.baseline_accepted, static_cast<int>(policy_.loss_baseline_steps)), policy_.loss_baseline_steps,
                        facts_.baseline_lost ? " after the saved baseline could not be read" : ""));
    verdict_.since_ns = facts_.first_seen_ns != 0 ? facts_.first_seen_ns : facts_.last_step_time_ns;
    AddEvidence("baseline_steps", facts_.baseline_accepted, "steps", absl::StrFormat("of %.0f", policy_.loss_baseline_steps));
    CiteAge();
    return true;
  }

  void Continue() {
    Say(Action::kContinue, state::kReasonFresh, absl::StrCat("Step ", facts_.last_step, " came ", Duration(StepAge()), " ago, nothing is open"));
    CiteAge();
  }

  const RunFacts& facts_;
  const Policy& policy_;
  const TimeNs now_ns_;
  Verdict verdict_;
  std::vector<const Incident*> visible_;
};

}  // namespace

Verdict DecideVerdict(const RunFacts& facts, const Policy& policy, TimeNs now_ns) { return Decision(facts, policy, now_ns).Decide(); }

}  // namespace lossgauge::detect
