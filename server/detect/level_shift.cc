#include "server/detect/level_shift.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kLevelShift};
constexpr int kMinimum = 64;         // accepted values before the median can serve as a reference
constexpr double kClip = 3;          // deviations: one blip alone never raises the alarm
constexpr double kScaleFloor = 1e-4; // nats
constexpr double kDivergingNats = 1;
constexpr double kDivergingDeviations = 6;
constexpr double kCriticalDeviations = 3;
constexpr double kShortAlarm = 20;  // deviations in fifteen steps: a shift of two is missed once in 200 times, white noise reaches it less than once in 1e6 steps
// Of the second sum: about one alarm in 1.5e5 steps of white noise.
constexpr double kSlowSlack = 0.5;
constexpr double kSlowAlarm = 13;
constexpr double kSlowFreeze = 5;      // from here on nothing enters the mean that it is measured against
constexpr std::int32_t kMeanSteps = 128;  // of the fading mean, as exact as a plain one of 256
constexpr double kFading = 0.996;
constexpr std::int32_t kMaxPoints = 1 << 30;

// A log of few digits repeats itself: more than half of its values are the median, which says nothing of the noise.
double ScaleOf(const SortedWindow<LevelShiftDetector::kWindow>& values) {
  const double scale = values.RobustDeviation();
  if (scale > kScaleFloor) return scale;
  const double median = values.Median();
  double sum = 0;
  for (int i = 0; i < values.size(); ++i) sum += std::fabs(values.Recent(i) - median);
  return std::max(1.2533 * sum / std::max(1, values.size()), kScaleFloor);  // of the mean deviation, if they were Gaussian
}

}  // namespace

void LevelShiftDetector::Take(double loss) {
  const double deviation = loss - accepted_.Median();
  if (accepted_.size() > 1) {
    lag_product_ = kFading * lag_product_ + deviation * previous_deviation_;
    lag_square_ = kFading * lag_square_ + deviation * deviation;
  }
  previous_deviation_ = deviation;
  mean_count_ = std::min(mean_count_ + 1, kMeanSteps);
  mean_ += (loss - mean_) / mean_count_;
  accepted_.Add(loss);
}

void LevelShiftDetector::FlushPending() {
  for (int i = 0; i < pending_count_; ++i) Take(pending_[i]);
  pending_count_ = 0;
}

void LevelShiftDetector::OnStep(const StepSignals& signals, bool loss_flagged, const Policy& policy, IncidentBook& book) {
  const double loss = *signals.loss;
  const std::optional<BestLevel::Rise> rise = best_.Push(loss, signals.moment.step);
  if (open_) {
    recent_.Add(loss);
    if (loss > peak_nats_ && !loss_flagged) {
      peak_nats_ = loss;
      peak_step_ = signals.moment.step;
    }
    if (recent_.full() && recent_.Median() <= reference_ + (small_ ? 0.1 : 1.0) * scale_) {
      book.Resolve(kSlot, signals.moment, signals.moment.step - onset_step_ + 1);
      open_ = small_ = diverging_ = critical_ = false;
      points_ = 0;
      short_count_ = 0;
      sum_ = slow_sum_ = 0;
      recent_.Clear();
      return;
    }
    Grade(loss_flagged, policy);
    ReportTo(book, signals, policy);
    return;
  }
  if (loss_flagged) return;
  if (rise) {
    Adopt(rise->from_nats, rise->to_nats, std::min(rise->onset_step, signals.moment.step), signals, policy, book);
    scale_ = std::max(rise->noise_nats, kScaleFloor);
    return;
  }
  if (accepted_.size() < kMinimum) {
    Take(loss);
    return;
  }
  const double scale = ScaleOf(accepted_);
  const double deviation = std::clamp((loss - accepted_.Median()) / scale, -kClip, kClip);
  const double before = sum_;
  sum_ = std::max(0.0, sum_ + deviation - policy.shift_slack_deviations);
  short_[static_cast<std::size_t>(short_count_ % kShort)] = deviation;
  short_count_ = short_count_ == 2 * kShort - 1 ? kShort : short_count_ + 1;
  const double slow_scale = std::max(scale, std::sqrt((1 - kFading) * lag_square_));
  if (slow_sum_ == 0) slow_start_step_ = signals.moment.step;
  slow_sum_ = std::max(0.0, slow_sum_ + std::clamp((loss - mean_) / slow_scale, -kClip, kClip) - kSlowSlack);
  if (sum_ == 0 && slow_sum_ < kSlowFreeze) {
    FlushPending();
    Take(loss);
    return;
  }
  if (before == 0) sum_start_step_ = signals.moment.step;
  if (pending_count_ == kPending) {  // neither rising to the alarm nor ending: the level has crept, follow it
    FlushPending();
    sum_ *= 0.5;
    slow_sum_ *= 0.5;
  }
  pending_[pending_count_++] = static_cast<float>(std::clamp(loss, -1e37, 1e37));
  const double correlation = lag_square_ > 0 ? std::clamp(lag_product_ / lag_square_, 0.0, 0.8) : 0;
  const double inflation = (1 + correlation) / (1 - correlation);
  const double last = std::accumulate(short_.begin(), short_.end(), 0.0);
  const bool fast = sum_ >= policy.shift_alarm_deviations * inflation || (short_count_ >= kShort && last >= kShortAlarm * std::pow(inflation, 0.8));
  const bool slow = !fast && mean_count_ == kMeanSteps && slow_sum_ >= kSlowAlarm * inflation * policy.shift_alarm_deviations / 10;
  if (!fast && !slow) return;

  open_ = true;
  points_ = 0;
  reference_ = slow ? mean_ : accepted_.Median();
  scale_ = slow ? slow_scale : scale;
  onset_step_ = slow ? slow_start_step_ : sum_start_step_;
  peak_nats_ = loss;
  peak_step_ = signals.moment.step;
  recent_.Clear();
  for (int i = 0; i < pending_count_; ++i) recent_.Add(pending_[i]);
  pending_count_ = 0;
  small_ = recent_.Median() < reference_ + 2 * scale_;
  ReportTo(book, signals, policy);
}

void LevelShiftDetector::Grade(bool loss_flagged, const Policy& policy) {
  points_ = std::min(points_ + 1, kMaxPoints);
  const double shift = recent_.Median() - reference_;
  if (!recent_.full() || loss_flagged) return;
  if (shift >= std::max(kDivergingNats, kDivergingDeviations * scale_)) diverging_ = true;
  const double bar = std::max(policy.loss_divergence_nats, kCriticalDeviations * scale_);
  if (points_ >= policy.loss_unrecovered_steps && shift >= bar) diverging_ = critical_ = true;
  if (shift < 0.5 * bar) diverging_ = critical_ = false;  // coming back
}

void LevelShiftDetector::Adopt(double from_nats, double to_nats, std::int64_t onset_step, const StepSignals& signals, const Policy& policy,
                               IncidentBook& book) {
  if (open_) return;
  open_ = true;
  small_ = false;
  points_ = 0;
  reference_ = from_nats;
  scale_ = ScaleOf(accepted_);
  onset_step_ = onset_step;
  peak_nats_ = to_nats;
  peak_step_ = signals.moment.step;
  pending_count_ = 0;
  recent_.Clear();
  recent_.Add(to_nats);
  ReportTo(book, signals, policy);
}

void LevelShiftDetector::Accept(const Moment& moment, IncidentBook& book) {
  if (!open_) return;
  book.Resolve(kSlot, moment);
  *this = LevelShiftDetector();
}

void LevelShiftDetector::ReportTo(IncidentBook& book, const StepSignals& signals, const Policy& policy) const {
  const double now = recent_.Median();
  const double shift = now - reference_;
  Finding finding;
  finding.condition = diverging_ ? state::Condition::kDivergence : state::Condition::kLevelShift;
  finding.severity = critical_ ? state::Severity::kCritical
                     : diverging_ || shift >= std::max(policy.shift_floor_nats, small_ ? 1.5 * scale_ : 0) ? state::Severity::kWarning
                                                                      : state::Severity::kInfo;
  finding.onset_step = onset_step_;
  finding.peak_step = peak_step_;
  finding.summary =
      critical_ ? absl::StrFormat("Loss has drifted away since step %d: %.3f nats from %.3f (+%.3f), and did not come back in %d steps", onset_step_,
                                  now, reference_, shift, points_)
      : diverging_ ? absl::StrFormat("Loss is drifting away since step %d: %.3f nats from %.3f (+%.3f)", onset_step_, now, reference_, shift)
                   : absl::StrFormat("Loss moved to a higher level at step %d: %.3f nats from %.3f (+%.3f) and stays there; "
                                     "acknowledge it if this is intended (new data, new schedule)",
                                     onset_step_, now, reference_, shift);
  finding.evidence = {{"level_before", reference_, "nats", ""}, {"level_now", now, "nats", ""}, {"shift", shift, "nats", ""},
                      {"noise", scale_, "nats", ""}};
  book.Report(kSlot, std::move(finding), signals.moment);
}

void LevelShiftDetector::Save(StateWriter& out) const {
  best_.Save(out);
  accepted_.Save(out);
  recent_.Save(out);
  out.Put(lag_product_);
  out.Put(lag_square_);
  out.Put(previous_deviation_);
  out.Put(sum_);
  out.Put(mean_);
  out.Put(mean_count_);
  out.Put(slow_sum_);
  out.Put(slow_start_step_);
  for (const double one : short_) out.Put(one);
  out.Put(short_count_);
  out.Put(pending_count_);
  for (int i = 0; i < pending_count_; ++i) out.Put(pending_[i]);
  out.Put(sum_start_step_);
  out.Put<std::uint8_t>(open_);
  out.Put<std::uint8_t>(small_);
  out.Put<std::uint8_t>(diverging_);
  out.Put<std::uint8_t>(critical_);
  out.Put(points_);
  out.Put(reference_);
  out.Put(scale_);
  out.Put(peak_nats_);
  out.Put(onset_step_);
  out.Put(peak_step_);
}

void LevelShiftDetector::Restore(StateReader& in) {
  best_.Restore(in);
  accepted_.Restore(in);
  recent_.Restore(in);
  lag_product_ = in.GetFinite();
  lag_square_ = in.GetFinite();
  previous_deviation_ = in.GetFinite();
  sum_ = in.GetIn<double>(0, 1e12);
  mean_ = in.GetFinite();
  mean_count_ = in.GetIn<std::int32_t>(0, kMeanSteps);
  slow_sum_ = in.GetIn<double>(0, 1e12);
  slow_start_step_ = in.GetStep();
  for (double& one : short_) one = in.GetIn<double>(-kClip, kClip);
  short_count_ = in.GetIn<std::int32_t>(0, 2 * kShort - 1);
  pending_count_ = in.GetIn<std::int32_t>(0, kPending);
  for (int i = 0; i < pending_count_; ++i) pending_[i] = in.GetIn<float>(-1e38f, 1e38f);
  sum_start_step_ = in.GetStep();
  open_ = in.GetBool();
  small_ = in.GetBool();
  diverging_ = in.GetBool();
  critical_ = in.GetBool();
  points_ = in.GetIn<std::int32_t>(0, kMaxPoints);
  reference_ = in.GetFinite();
  scale_ = in.GetFinite();
  peak_nats_ = in.GetFinite();
  onset_step_ = in.GetStep();
  peak_step_ = in.GetStep();
}

}  // namespace lossgauge::detect
