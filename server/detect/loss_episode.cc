#include "server/detect/loss_episode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "server/state/kinds.h"

namespace lossgauge::detect {
namespace {

constexpr double kRisingNats = 1;      // over fifteen steps, without a pause
constexpr int kRisingPoints = 15;      // what RecentValues::Rising looks at
constexpr int kLongBaseline = 96;
constexpr double kSecond = 0.75;       // of the threshold: what follows a high point is judged more strictly than the first
constexpr std::int64_t kOddSpan = 512;  // points
constexpr int kEarliest = 16;          // accepted values before anything is said of the loss
constexpr double kEarlyFloorNats = 1;  // until the baseline is warm
constexpr double kEarlyFactor = 2;
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
  const double limit = std::max(policy.loss_floor_nats, policy.loss_deviations * baseline_.Scale()) + rewind_slack_nats_;
  // Few values in a steep descent: only what towers over them is looked at.
  return warm(policy) ? limit : std::max(kEarlyFloorNats, kEarlyFactor * limit);
}

std::optional<LossEpisode::Shift> LossEpisode::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const double loss = *signals.loss;
  ++seen_;
  trail_.Push(signals);
  recent_.Push(loss);
  records_.Push(loss);
  const double residual = loss - center();
  double limit = threshold(policy);
  // Two signals that agree need half as much each, until the episode has shown what it is.
  if (open_ ? with_gradient_ && points_ < 3 : signals.grad_large || trail_.GradLed()) limit = std::max(policy.loss_floor_nats, 0.5 * limit);
  flagged_ = baseline_.accepted() >= kEarliest && residual > limit;
  if (!open_) {
    if (flagged_) {
      Begin(signals, residual, limit);
    } else {
      AcceptQuiet(loss, residual, limit);
      // The trend follows a slow rise: only the rise itself tells, baseline or not.
      const bool records = records_.complete() && records_.Excess() >= policy.loss_divergence_nats;
      if (records || recent_.Rising(RisingNats())) {
        Begin(signals, residual, limit);
        reference_ = records ? records_.Median() : recent_.MedianOf(10, 5);
        const int before = records ? RecordHighs::kRun - 1 : 12;
        onset_step_ = std::max<std::int64_t>(0, signals.moment.step - before * signals.interval_steps);
        first_residual_ = peak_residual_ = loss - *reference_;
        points_ = before + 1;
        spike_ = diverging_ = true;
      }
    }
  }
  if (!open_) return std::nullopt;
  Update(signals, loss - center(), limit, policy);

  const double close_after = spike_ ? policy.loss_close_steps : policy.loss_blip_close_steps;
  if (clean_ >= close_after) {
    if (!spike_) odd_at_ = {seen_, odd_at_[0], odd_at_[1]};
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
  with_gradient_ = signals.grad_large || trail_.GradLed();
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
    spike_ = IsSpike(residual, limit, high, policy);
    if (spike_ && points_ > 1) {  // more is known now than at the first point
      const SpikeCause cause = FindSpikeCause(signals, trail_, center(), limit);
      if (cause.cause != state::kCauseUnexplained) TakeCause(cause, signals);
    }
  }
  // Within the episode: every spike that takes a few steps to its peak rises from what was before it.
  if (points_ >= kRisingPoints && recent_.Rising(RisingNats())) diverging_ = spike_ = true;
  // The records began before the episode: the bar is high because the loss swings, not because it jumped.
  if (records_.complete() && points_ < RecordHighs::kRun && records_.Excess() >= policy.loss_divergence_nats) diverging_ = spike_ = true;
  hopeless_ = residual > policy.loss_hopeless_nats ? hopeless_ + 1 : 0;
  if (hopeless_ >= 1) diverging_ = spike_ = true;
  if (hopeless_ >= 2) critical_ = true;
  if (diverging_ && !critical_ && points_ > policy.loss_rising_steps && recent_.size() >= 5) {
    const double now = recent_.MedianOf(0, 5) - center();
    if (now >= policy.loss_divergence_nats && now >= 0.75 * peak_residual_) critical_ = true;
    if (points_ >= policy.loss_unrecovered_steps && now >= policy.loss_divergence_nats && std::popcount(high_mask_ & 0xffffu) >= 12) {
      critical_ = true;
    }
  }
}

bool LossEpisode::HasOddBatches() const { return odd_at_[2] >= 0 && seen_ - odd_at_[2] <= kOddSpan; }

bool LossEpisode::IsSpike(double residual, double limit, bool high, const Policy& policy) const {
  if (high && trail_.GradLed()) return true;
  if (HasOddBatches()) return (high_ >= 3 && points_ <= 4) || (high_ >= 5 && points_ <= 10);
  // Two that touch, or three of eight: odd batches come in pairs as well, with a sound one between them.
  const bool second = points_ == 2 && residual >= std::max({policy.loss_floor_nats, kSecond * limit, 0.5 * first_residual_});
  return second || (high_ >= 3 && points_ <= 8);
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
  records_.Clear();
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

}  // namespace lossgauge::detect
