#include "server/detect/judge.h"

#include <algorithm>
#include <cmath>

#include "server/detect/policy_fields.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::TimeNs;

std::optional<double> Positive(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value) || *value <= 0) return std::nullopt;
  return value;
}

}  // namespace

Judge::Judge(std::string run, Policy policy)
    : run_(std::move(run)), policy_(std::move(policy)), policy_view_(ViewOf(policy_)), state_(run_) {}

std::unique_ptr<state::RunJudge> DetectorJudgeFactory::MakeJudge(const std::string& run) {
  return std::make_unique<Judge>(run, policies_.For(run));
}

bool Judge::EnterAttempt(const std::string& attempt, TimeNs start_ns, TimeNs now_ns, bool by_presence) {
  State& s = state_;
  if (attempt == s.attempt && s.history.current() != nullptr) return true;
  if (s.history.current() != nullptr) {
    // Attempts are ordered by the start of their rank 0; the run book's word on which is newest stands above it.
    if (!by_presence && (s.history.Knows(attempt) || start_ns < s.history.current()->start_ns)) return false;
    const Moment moment{s.attempt, s.last_step, now_ns};
    const std::optional<Failure> failure = FailureOf(Facts());
    s.damage.OnEnd(Facts());
    s.book.ResolveAll(moment);
    s.history.BeginAttempt(attempt, start_ns, failure);
    s.previous_last_step = s.attempt_has_step ? s.last_step : s.previous_last_step;
  } else {
    s.history.BeginAttempt(attempt, start_ns, std::nullopt);
  }
  s.attempt = attempt;
  s.attempt_has_step = false;
  s.last_step = -1;
  s.last_step_time_ns = 0;
  s.last_step_time_known = true;
  s.first_seen_ns = now_ns;
  s.ended_ns = 0;
  s.grad_explosion.OnAttempt();
  s.logit_blowup.OnAttempt();
  s.interval.OnAttempt();
  s.learning_rates = {};
  s.nonfinite.OnAttempt();
  s.collapse.OnAttempt();
  s.normalizer_drift.OnAttempt();
  s.integrity.OnAttempt();
  s.shards.OnAttempt();
  s.accounting.OnAttempt();
  s.rank_missing.OnAttempt();
  s.rank_outlier.OnAttempt();
  s.repeated_batch.OnAttempt();
  s.slowdown.OnAttempt();
  s.level_shift.OnAttempt();
  s.producers.OnAttempt();
  return true;
}

StepSignals Judge::MakeSignals(const state::JoinedStep& step) {
  StepSignals signals;
  signals.joined = &step;
  signals.moment = {state_.attempt, step.summary.step, step.summary.receive_time_ns};
  signals.interval_steps = state_.interval.OnStep(step.summary.step);
  if (step.summary.loss_nats && std::isfinite(*step.summary.loss_nats)) signals.loss = step.summary.loss_nats;
  signals.grad_norm = Positive(step.summary.grad_norm);
  signals.max_abs_logit = Positive(step.summary.max_abs_logit);
  return signals;
}

// What the loss is explained by, looked at before it.
void Judge::WatchFactors(StepSignals& signals) {
  State& s = state_;
  s.grad_explosion.Look(signals, policy_);
  s.logit_blowup.Look(signals, policy_);
  const auto baseline = static_cast<int>(policy_.loss_baseline_steps);
  const state::StepSummary& summary = signals.joined->summary;
  if (summary.unmasked_tokens > 0 && summary.missing_ranks.empty()) {
    const auto result = s.tokens.OnValue(static_cast<double>(summary.unmasked_tokens), 6, 2, baseline);
    signals.tokens_factor = result.factor;
    // Too few is as odd as too many: the loss of a handful of tokens is noise.
    signals.tokens_odd = result.high || result.factor < 0.5;
  }
  const double now = Positive(summary.learning_rate).value_or(0);
  if (now > 0) {
    const double before = s.learning_rates.back();
    const bool settled = s.steps_seen > baseline;  // a warm-up begins with large factors
    if (settled && before > 0) signals.learning_rate_factor = now / before;
  }
  for (std::size_t i = s.learning_rates.size() - 1; i > 0; --i) s.learning_rates[i] = s.learning_rates[i - 1];
  s.learning_rates[0] = now;
}

void Judge::OnStep(const state::JoinedStep& step) {
  State& s = state_;
  const TimeNs start = step.samples.empty() ? 0 : step.samples[0].producer->attempt_start_ns;
  s.now_ns = std::max(s.now_ns, step.summary.receive_time_ns);
  if (!EnterAttempt(step.summary.attempt, start, step.summary.receive_time_ns, false)) return;
  if (s.first_seen_ns == 0) s.first_seen_ns = step.summary.receive_time_ns;
  const std::int64_t number = step.summary.step;
  if (!s.attempt_has_step) {
    s.attempt_has_step = true;
    s.damage.OnFirstStep(number);
    if (s.previous_last_step >= 0) {
      // From scratch, or far back: the levels of another stage of training are no measure.
      if (s.loss.OnAttempt(number, s.previous_last_step)) {
        s.grad_explosion.Clear();
        s.logit_blowup.Clear();
        s.tokens = FactorWatch();
      }
      if (number <= s.previous_last_step) s.history.ForgetCheckpointsAfter(number);
    }
  }
  s.last_step = std::max(s.last_step, number);
  s.last_step_time_ns = step.summary.receive_time_ns;  // never the maximum: a clock that was set back would hold it in the future
  s.last_step_time_known = true;
  s.history.OnStep(number);
  ++s.steps_seen;

  StepSignals signals = MakeSignals(step);
  // Exact checks: no baseline needed.
  s.integrity.OnStep(signals, policy_, s.book);
  s.nonfinite.OnStep(signals, policy_, s.book);
  s.rank_missing.OnStep(signals, s.book);
  s.accounting.OnStep(signals, policy_, s.book);
  s.rank_outlier.OnStep(signals, policy_, s.book);
  s.repeated_batch.OnStep(signals, policy_, s.book);
  s.slowdown.OnStep(signals, policy_, s.book);
  // Statistics: finite values only.
  WatchFactors(signals);
  s.normalizer_drift.OnStep(signals, policy_, s.book);
  s.damage.OnStep(signals);
  WatchLoss(signals);
}

void Judge::WatchLoss(const StepSignals& signals) {
  State& s = state_;
  const bool was_open = s.loss.open();
  if (signals.loss) {
    if (const auto shift = s.loss.OnStep(signals, policy_, s.book)) {
      s.level_shift.Adopt(shift->from_nats, shift->to_nats, shift->onset_step, signals, policy_, s.book);
    } else {
      s.level_shift.OnStep(signals, s.loss.flagged() || s.loss.open(), policy_, s.book);
    }
    s.collapse.OnStep(signals, s.loss.recent(), policy_, s.book);
    const LossJump jump{s.loss.flagged() || s.loss.open(), *signals.loss - s.loss.center()};
    s.shards.OnStep(signals, jump, policy_, s.book);
  }
  // A gradient that is high with the loss is part of its episode, and its page would drown in them; one that is high again in its echo is not.
  s.grad_explosion.Report(signals, signals.loss && (s.loss.flagged() || s.loss.in_echo()), s.book);
  s.logit_blowup.Report(signals, was_open && s.loss.open(), s.book);
}

void Judge::OnEvent(const state::ProducerEvent& event) {
  State& s = state_;
  s.now_ns = std::max(s.now_ns, event.receive_time_ns);
  if (!EnterAttempt(event.producer->attempt, event.producer->attempt_start_ns, event.receive_time_ns, false)) return;
  if (event.kind == LG_EVENT_CHECKPOINT && event.step >= 0) {
    s.history.AddCheckpoint(event.step, event.text, LastGoodStep(Facts()));
  } else if (event.kind == LG_EVENT_RESUME && event.step >= 0) {
    s.history.ForgetCheckpointsAfter(event.step);
    if (!event.text.empty()) s.history.AddCheckpoint(event.step, event.text, event.step);
  }
}

void Judge::OnLoss(const state::LossReport& report) {
  state_.now_ns = std::max(state_.now_ns, report.time_ns);
  state_.producers.OnLoss(report, Now(), state_.book);
}

void Judge::OnPresence(const state::Presence& presence) {
  State& s = state_;
  s.now_ns = std::max(s.now_ns, presence.now_ns);
  if (!presence.source_reachable) {
    if (s.unreachable_since_ns == 0) s.unreachable_since_ns = std::max<TimeNs>(1, presence.now_ns);
    return;
  }
  s.unreachable_since_ns = 0;
  s.unreachable_ranks = presence.unreachable_ranks;
  s.first_unreachable_rank = presence.first_unreachable_rank;
  s.presence_ns = presence.now_ns;
  if (s.last_step_time_ns > presence.now_ns) {  // the clock was set back: a stall counts from here, and nothing is fresh until the next step
    s.last_step_time_ns = presence.now_ns;
    s.last_step_time_known = false;
  }
  if (!presence.newest_attempt.empty()) {
    TimeNs start = 0;
    for (const state::LivenessReport& report : presence.producers) {
      if (report.producer != nullptr && report.producer->attempt == presence.newest_attempt) start = report.producer->attempt_start_ns;
    }
    EnterAttempt(presence.newest_attempt, start, presence.now_ns, true);
  }
  if (s.first_seen_ns == 0 || (presence.first_seen_ns != 0 && presence.first_seen_ns < s.first_seen_ns)) {
    s.first_seen_ns = presence.first_seen_ns != 0 ? presence.first_seen_ns : presence.now_ns;
  }
  const bool was_ended = s.producers.ended();
  s.producers.OnPresence(presence, {s.slowdown.median_step_seconds(), s.last_step, s.last_step_time_ns}, policy_, s.book);
  if (s.producers.ended() && !was_ended) {
    s.ended_ns = presence.now_ns;
    // Nothing can recover any more, and nobody needs to act on a run that ended well.
    s.damage.OnEnd(Facts());
    if (!s.producers.failed()) s.book.ResolveAll(Now());
  }
}

void Judge::OnAction(const state::LedgerEntry& entry) {
  state_.now_ns = std::max(state_.now_ns, entry.time_ns);
  state_.history.AddAction(entry);
}

bool Judge::Acknowledge(const std::string& incident_id, const state::Acknowledgement& acknowledgement) {
  state_.now_ns = std::max(state_.now_ns, acknowledgement.time_ns);
  const state::Incident* incident = state_.book.Acknowledge(incident_id, acknowledgement);
  if (incident == nullptr) return false;
  if (incident->open && incident->condition == Condition::kLevelShift) state_.level_shift.Accept(Now(), state_.book);
  return true;
}

void Judge::NameSibling(const std::string& incident_id, const std::string& sibling, state::TimeNs now_ns) {
  state_.now_ns = std::max(state_.now_ns, now_ns);
  state_.book.NameSibling(incident_id, sibling);
}

RunFacts Judge::Facts() const {
  const State& s = state_;
  RunFacts facts;
  facts.attempt = s.attempt;
  facts.last_step = s.last_step;
  facts.last_step_time_ns = s.last_step_time_ns;
  facts.last_step_time_known = s.last_step_time_known;
  facts.first_seen_ns = s.first_seen_ns;
  facts.presence_ns = s.presence_ns;
  facts.source_reachable = s.unreachable_since_ns == 0;
  facts.unreachable_since_ns = s.unreachable_since_ns;
  facts.unreachable_ranks = s.unreachable_ranks;
  facts.first_unreachable_rank = s.first_unreachable_rank;
  facts.ended = s.producers.ended();
  facts.failed = s.producers.failed();
  facts.ended_ns = s.ended_ns;
  facts.phase = s.producers.phase();
  facts.phase_since_ns = s.producers.phase_since_ns();
  facts.quiet_since_ns = s.producers.quiet_since_ns(s.last_step_time_ns);
  facts.median_step_seconds = s.slowdown.median_step_seconds();
  facts.baseline_accepted = s.loss.accepted();
  // A job that never shows a loss here (a pipeline stage, a node without the head) has no baseline to wait for.
  facts.warm = s.loss.warm(policy_) || (s.loss.accepted() == 0 && s.steps_seen >= policy_.loss_baseline_steps);
  facts.baseline_lost = s.baseline_lost;
  facts.open = s.book.Open();
  facts.integrity_broken_steps = std::max(s.integrity.BrokenSteps(policy_), s.shards.BrokenSteps(policy_));
  facts.damaged_since = s.damage.since();
  facts.history = &s.history;
  return facts;
}

state::Verdict Judge::Evaluate(TimeNs now_ns) const {
  state::Verdict verdict = DecideVerdict(Facts(), policy_, now_ns);
  if (!state_.mode.empty()) verdict.mode = state_.mode;
  return verdict;
}

std::vector<state::Incident> Judge::Incidents() const { return state_.book.All(); }

std::vector<state::Incident> Judge::TakeChangedIncidents() { return state_.book.TakeChanged(); }

state::RunJudge::Counters Judge::counters() const { return state_.book.counters(); }

}  // namespace lossgauge::detect
