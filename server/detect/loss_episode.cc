#include "server/detect/loss_episode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/state/kinds.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::Severity;

constexpr IncidentBook::Slot kSlot{Condition::kLossSpike};
constexpr double kRisingNats = 1;      // over fifteen steps, without a pause
constexpr int kLongBaseline = 96;
constexpr int kDropsToReseat = 4;      // points far below the trend in a row: the curve has moved down, follow it
constexpr std::int64_t kMaxRewind = 1000;
constexpr std::int64_t kFreshStart = 8;

std::uint8_t CauseIndex(std::string_view cause) {
  for (std::size_t i = 0; i < state::kSpikeCauses.size(); ++i) {
    if (state::kSpikeCauses[i] == cause) return static_cast<std::uint8_t>(i);
  }
  return static_cast<std::uint8_t>(state::kSpikeCauses.size() - 1);
}

}  // namespace

double LossEpisode::threshold(const Policy& policy) const {
  return std::max(policy.loss_floor_nats, policy.loss_deviations * baseline_.Scale()) + rewind_slack_nats_;
}

std::optional<LossEpisode::Shift> LossEpisode::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const double loss = *signals.loss;
  trail_.Push(signals);
  recent_.Push(loss);
  const bool is_warm = warm(policy);
  const double residual = loss - center();
  const double limit = threshold(policy);
  flagged_ = is_warm && residual > limit;
  if (!open_) {
    if (flagged_) {
      Begin(signals, residual, limit);
    } else {
      AcceptQuiet(loss, residual, limit);
      // The trend follows a slow rise: only the rise itself tells, baseline or not.
      if (recent_.Rising(RisingNats())) {
        Begin(signals, residual, limit);
        reference_ = recent_.MedianOf(10, 5);
        onset_step_ = std::max<std::int64_t>(0, signals.moment.step - 12);
        first_residual_ = peak_residual_ = loss - *reference_;
        points_ = 13;
        spike_ = diverging_ = true;
      }
    }
  }
  if (!open_) return std::nullopt;
  Update(signals, loss - center(), limit, policy);

  const double close_after = spike_ ? policy.loss_close_steps : policy.loss_blip_close_steps;
  if (clean_ >= close_after) {
    book.Resolve(kSlot, signals.moment, last_high_step_ - onset_step_ + 1);
    CloseEpisode();
    return std::nullopt;
  }
  // Not back in time, and not by a wide margin: train on, from a new level.
  const double shift = recent_.MedianOf(0, std::min(recent_.size(), 15)) - center();
  if (points_ >= policy.loss_unrecovered_steps && std::popcount(high_mask_ & 0xffffu) >= 12 && !diverging_) {
    if (shift < policy.loss_divergence_nats) {
      const Shift result{center(), center() + shift, onset_step_};
      book.Resolve(kSlot, signals.moment);
      baseline_.Reseat(result.to_nats);
      CloseEpisode();
      return result;
    }
    diverging_ = critical_ = true;
  }
  ReportTo(book, signals, limit, policy);
  return std::nullopt;
}

double LossEpisode::RisingNats() const {
  // The noise of a long baseline counts too: fifteen correlated values of a noisy loss may happen to climb.
  return baseline_.accepted() >= kLongBaseline ? std::max(kRisingNats, 6 * baseline_.Scale()) : kRisingNats;
}

void LossEpisode::AcceptQuiet(double loss, double residual, double limit) {
  if (residual < -limit && baseline_.accepted() > 16) {
    if (++drops_ >= kDropsToReseat) {
      baseline_.Reseat(recent_.MedianOf(0, kDropsToReseat));
      drops_ = 0;
    }
    return;
  }
  drops_ = 0;
  rewind_slack_nats_ *= 0.9;
  if (rewind_slack_nats_ < 1e-6) rewind_slack_nats_ = 0;
  baseline_.Accept(loss);
}

void LossEpisode::Begin(const StepSignals& signals, double residual, double limit) {
  CloseEpisode();
  open_ = true;
  onset_step_ = peak_step_ = last_high_step_ = signals.moment.step;
  peak_nats_ = *signals.loss;
  first_residual_ = peak_residual_ = residual;
  TakeCause(FindSpikeCause(signals, trail_, center(), limit), signals);
}

void LossEpisode::TakeCause(const SpikeCause& cause, const StepSignals& signals) {
  cause_ = CauseIndex(cause.cause);
  cause_rank_ = cause.rank;
  cause_words_ = DescribeCause(cause, signals, trail_);
}

void LossEpisode::Update(const StepSignals& signals, double residual, double limit, const Policy& policy) {
  ++points_;
  const double loss = *signals.loss;
  const bool high = residual > limit;
  high_mask_ = (high_mask_ << 1) | (high ? 1u : 0u);
  if (high) {
    ++high_;
    area_nats_ += residual;
    last_high_step_ = signals.moment.step;
  }
  if (residual > peak_residual_) {
    peak_residual_ = residual;
    peak_nats_ = loss;
    peak_step_ = signals.moment.step;
    if (const SpikeCause cause = FindSpikeCause(signals, trail_, center(), limit); CauseIndex(cause.cause) == cause_ && cause.rank == cause_rank_) {
      TakeCause(cause, signals);
    }
  }
  if (residual > 0.5 * limit) {
    clean_ = 0;
  } else {
    ++clean_;
    if (!diverging_ && std::fabs(residual) <= 0.5 * limit) baseline_.Accept(loss);
    if (residual < -limit) {  // well below where it was: recovered, and the level is a new one
      if (++drops_ >= kDropsToReseat) {
        if (!reference_) baseline_.Reseat(recent_.MedianOf(0, kDropsToReseat));
        drops_ = 0;
      }
    } else {
      drops_ = 0;
    }
  }
  if (!spike_) {
    const bool second = high_ >= 2 && points_ <= 3 && high && residual >= 0.5 * first_residual_;
    const bool third = high_ >= 3 && points_ <= 8;
    if (second || third || (high && trail_.GradHigh(/*same_step=*/true))) spike_ = true;
    if (spike_ && points_ > 1) {  // more is known now than at the first point
      const SpikeCause cause = FindSpikeCause(signals, trail_, center(), limit);
      if (cause.cause != state::kCauseUnexplained) TakeCause(cause, signals);
    }
  }
  if (recent_.Rising(RisingNats())) diverging_ = spike_ = true;
  hopeless_ = residual > policy.loss_hopeless_nats ? hopeless_ + 1 : 0;
  if (hopeless_ >= 2) diverging_ = spike_ = critical_ = true;
  if (diverging_ && !critical_ && points_ > policy.loss_rising_steps && recent_.size() >= 5) {
    const double now = recent_.MedianOf(0, 5) - center();
    if (now >= policy.loss_divergence_nats && now >= 0.75 * peak_residual_) critical_ = true;
    if (points_ >= policy.loss_unrecovered_steps && now >= policy.loss_divergence_nats && std::popcount(high_mask_ & 0xffffu) >= 12) {
      critical_ = true;
    }
  }
}

void LossEpisode::ReportTo(IncidentBook& book, const StepSignals& signals, double limit, const Policy& policy) const {
  Finding finding;
  finding.kind = diverging_ ? std::string() : std::string(state::kSpikeCauses[cause_]);
  finding.onset_step = onset_step_;
  finding.peak_step = peak_step_;
  finding.rank = cause_rank_;
  const double now = *signals.loss;
  if (diverging_) {
    finding.condition = Condition::kDivergence;
    finding.severity = critical_ ? Severity::kCritical : Severity::kWarning;
    finding.summary =
        critical_ ? absl::StrFormat("Loss left its course at step %d (%.3f nats) and did not come back in %d steps: %.3f now, peak %.3f",
                                    onset_step_, center(), points_, now, peak_nats_)
                  : absl::StrFormat("Loss is climbing since step %d without a pause: %.3f nats from %.3f; critical after %d steps",
                                    onset_step_, now, center(), static_cast<int>(policy.loss_rising_steps));
  } else if (spike_) {
    finding.condition = Condition::kLossSpike;
    finding.summary = absl::StrFormat("Loss spike at step %d: %.3f nats, +%.3f over its course; %s", onset_step_, peak_nats_,
                                      peak_residual_, cause_words_);
    if (clean_ > 0) absl::StrAppend(&finding.summary, "; recovering, ", clean_, " clean steps");
  } else {
    finding.condition = Condition::kBlip;
    finding.severity = Severity::kInfo;
    finding.summary =
        absl::StrFormat("Single high loss at step %d: %.3f nats, +%.3f over its course", onset_step_, peak_nats_, peak_residual_);
  }
  // Places and causes are those of the peak, not of the newest step.
  if (signals.moment.step != peak_step_) {
    if (const state::Incident* open = book.FindOpen(kSlot); open != nullptr) {
      finding.evidence = open->evidence;
    }
  }
  if (finding.evidence.empty() || signals.moment.step == peak_step_) {
    finding.evidence = {{"expected_loss", center(), "nats", ""}, {"peak_loss", peak_nats_, "nats", ""},
                        {"excess", peak_residual_, "nats", ""}, {"threshold", limit, "nats", ""}};
    AddPlaces(signals, finding.evidence);
    finding.evidence.push_back({"area", 0, "nats", ""});
    finding.evidence.push_back({"loss_now", now, "nats", ""});
  }
  for (state::Evidence& item : finding.evidence) {
    if (item.name == "area") item.value = area_nats_;
    if (item.name == "loss_now") item.value = now;
  }
  book.Report(kSlot, std::move(finding), signals.moment);
}

void LossEpisode::CloseEpisode() {
  open_ = spike_ = diverging_ = critical_ = false;
  reference_.reset();
  points_ = high_ = clean_ = hopeless_ = 0;
  high_mask_ = 0;
  area_nats_ = 0;
  drops_ = 0;
  cause_rank_.reset();
  cause_words_.clear();
}

bool LossEpisode::OnAttempt(std::int64_t first_step, std::int64_t last_step) {
  CloseEpisode();
  flagged_ = false;
  recent_.Clear();
  trail_.Clear();
  const std::int64_t rewind = last_step - first_step;
  if (rewind > kMaxRewind || (first_step <= kFreshStart && rewind > kFreshStart)) {
    baseline_.Clear();
    rewind_slack_nats_ = 0;
    return true;
  }
  if (rewind > 0) rewind_slack_nats_ = baseline_.Rewind(rewind);
  return false;
}

void LossEpisode::Save(StateWriter& out) const {
  baseline_.Save(out);
  recent_.Save(out);
  trail_.Save(out);
  out.Put(rewind_slack_nats_);
  out.Put(drops_);
  out.Put<std::uint8_t>(flagged_);
  out.Put<std::uint8_t>(open_);
  out.Put<std::uint8_t>(spike_);
  out.Put<std::uint8_t>(diverging_);
  out.Put<std::uint8_t>(critical_);
  out.PutOptional(reference_);
  out.Put(onset_step_);
  out.Put(peak_step_);
  out.Put(last_high_step_);
  out.Put(peak_nats_);
  out.Put(first_residual_);
  out.Put(peak_residual_);
  out.Put(area_nats_);
  out.Put(points_);
  out.Put(high_);
  out.Put(high_mask_);
  out.Put(clean_);
  out.Put(hopeless_);
  out.Put(cause_);
  out.PutOptional(cause_rank_);
  out.PutText(cause_words_);
}

void LossEpisode::Restore(StateReader& in) {
  constexpr std::int32_t kMax = 1 << 30;
  baseline_.Restore(in);
  recent_.Restore(in);
  trail_.Restore(in);
  rewind_slack_nats_ = in.GetFinite();
  drops_ = in.GetIn<std::int32_t>(0, kMax);
  flagged_ = in.GetBool();
  open_ = in.GetBool();
  spike_ = in.GetBool();
  diverging_ = in.GetBool();
  critical_ = in.GetBool();
  if (in.GetBool()) reference_ = in.GetFinite();
  onset_step_ = in.GetStep();
  peak_step_ = in.GetStep();
  last_high_step_ = in.GetStep();
  peak_nats_ = in.GetFinite();
  first_residual_ = in.GetFinite();
  peak_residual_ = in.GetFinite();
  area_nats_ = in.GetFinite();
  points_ = in.GetIn<std::int32_t>(0, kMax);
  high_ = in.GetIn<std::int32_t>(0, kMax);
  high_mask_ = in.Get<std::uint32_t>();
  clean_ = in.GetIn<std::int32_t>(0, kMax);
  hopeless_ = in.GetIn<std::int32_t>(0, kMax);
  cause_ = in.GetIn<std::uint8_t>(0, state::kSpikeCauses.size() - 1);
  cause_rank_ = in.GetOptional<std::uint32_t>();
  cause_words_ = in.GetText(1024);
}

}  // namespace lossgauge::detect
