#include "server/replay/point_maker.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lossgauge::replay {
namespace {

constexpr double kLargestValue = static_cast<double>(kLargestStep);
constexpr double kJumpSteps = 1e6;      // as far as lossgauged believes a jump
constexpr double kJumpSpacings = 1000;  // and in logs whose points are far apart
constexpr double kNextSpacings = 4;     // where a log goes on as if nothing had been
constexpr std::size_t kMaxRankTags = 64;

std::optional<std::uint64_t> Whole(const LogField* field) {
  if (field == nullptr) return std::nullopt;
  if (field->exact) return field->exact;
  if (!(field->value >= 0) || field->value > kLargestValue) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(field->value));
}

std::optional<double> Value(const LogField* field) {
  if (field == nullptr) return std::nullopt;
  return field->value;
}

std::optional<double> Finite(const LogField* field) {
  if (field == nullptr || !std::isfinite(field->value)) return std::nullopt;
  return field->value;
}

}  // namespace

void PointMaker::OnRecord(const LogRecord& record) {
  if (chosen_) {
    Use(record);
    return;
  }
  const bool is_of_use = record.Has(Meaning::kTrainingLoss) || record.Has(Meaning::kEvaluationLoss) ||
                         (record.Has(Meaning::kStep) && record.fields.size() > 1);
  if (!is_of_use) return;
  waiting_.push_back(record);
  if (waiting_.size() >= kProbeRecords) Choose();
}

void PointMaker::Choose() {
  chosen_ = true;
  series_ = ChooseSeries(waiting_);
  if (!series_ && waiting_.size() >= kProbeRecords) {
    chosen_ = false;  // nothing but evaluations so far: keep looking
    const auto half = waiting_.begin() + kProbeRecords / 2;
    TellWaiting(waiting_.begin(), half);
    waiting_.erase(waiting_.begin(), half);
    return;
  }
  if (series_) report_->loss_name = series_->loss_name;
  if (series_ && report_->format == kFormatText) report_->format = series_->shape;
  if (series_ && !series_->has_steps) report_->Count(Oddity::kNumbered, waiting_.front().line);
  TellWaiting(waiting_.begin(), waiting_.end());
  for (const LogCheckpoint& checkpoint : waiting_checkpoints_) TellCheckpoint(checkpoint);
  waiting_ = {};
  waiting_checkpoints_ = {};
}

void PointMaker::TellWaiting(std::vector<LogRecord>::const_iterator from, std::vector<LogRecord>::const_iterator to) {
  auto checkpoint = waiting_checkpoints_.cbegin();
  for (; from != to; ++from) {
    for (; checkpoint != waiting_checkpoints_.cend() && checkpoint->line < from->line; ++checkpoint) TellCheckpoint(*checkpoint);
    Use(*from);
  }
  waiting_checkpoints_.erase(waiting_checkpoints_.cbegin(), checkpoint);
}

void PointMaker::OnCheckpoint(const LogCheckpoint& checkpoint) {
  if (chosen_) {
    TellCheckpoint(checkpoint);
    return;
  }
  if (waiting_checkpoints_.size() >= kProbeRecords) {
    TellCheckpoint(waiting_checkpoints_.front());
    waiting_checkpoints_.erase(waiting_checkpoints_.begin());
  }
  waiting_checkpoints_.push_back(checkpoint);
}

void PointMaker::TellCheckpoint(const LogCheckpoint& checkpoint) {
  ++report_->checkpoints;
  sink_->OnCheckpoint(checkpoint);
}

void PointMaker::Finish() {
  if (!chosen_) Choose();
  chosen_ = true;
  if (held_) {
    Held held = std::move(*held_);
    held_.reset();
    // Gone back with nothing after it: the beginning of a run that was cut off. A jump with nothing after it is nothing.
    if (last_step_ && held.point.step > *last_step_) {
      report_->Count(Oddity::kLoneJump, held.point.line);
    } else {
      BeginAttempt(std::move(held.point), held.rank_tag);
    }
  }
  report_->points = next_index_;
  report_->attempts = attempt_;
}

std::optional<std::int64_t> PointMaker::StepOf(const LogRecord& record) {
  const LogField* field = record.Best(Meaning::kStep);
  if (field == nullptr) {
    report_->Count(Oddity::kWithoutStep, record.line);
    return std::nullopt;
  }
  const double value = field->value;
  if (!(std::fabs(value) <= kLargestValue) || value != std::floor(value)) {
    report_->Count(Oddity::kAbsurdStep, record.line);
    return std::nullopt;
  }
  if (value < 0) {
    report_->Count(Oddity::kNegativeStep, record.line);
    return std::nullopt;
  }
  const auto raw = static_cast<std::int64_t>(value);
  // Logs of epochs count from 0 in each: the run goes on, whatever its step says.
  if (const LogField* epoch = record.Best(Meaning::kEpoch); epoch != nullptr && std::isfinite(epoch->value)) {
    const bool is_next = last_epoch_ && epoch->value >= *last_epoch_ + 1 && epoch->value == std::floor(epoch->value) &&
                         *last_epoch_ == std::floor(*last_epoch_);
    if (is_next && raw < last_raw_step_ && last_step_) epoch_offset_ = *last_step_ + (raw == 0 ? 1 : 0);
    if (last_epoch_ && epoch->value < *last_epoch_) epoch_offset_ = 0;
    last_epoch_ = epoch->value;
  }
  last_raw_step_ = raw;
  if (raw > kLargestStep - epoch_offset_) {
    report_->Count(Oddity::kAbsurdStep, record.line);
    return std::nullopt;
  }
  return raw + epoch_offset_;
}

void PointMaker::UseEvaluation(const LogRecord& record) {
  const LogField* loss = record.Best(Meaning::kEvaluationLoss);
  if (loss == nullptr && record.is_evaluation) loss = record.Best(Meaning::kTrainingLoss);
  if (loss == nullptr || !std::isfinite(loss->value)) return;
  LogEvaluation evaluation;
  evaluation.line = record.line;
  evaluation.loss_nats = loss->value;
  if (const LogField* step = record.Best(Meaning::kStep); step != nullptr && step->value >= 0 && step->value <= static_cast<double>(kLargestStep - epoch_offset_)) {
    evaluation.step = static_cast<std::int64_t>(step->value) + epoch_offset_;
  }
  ++report_->evaluations;
  sink_->OnEvaluation(evaluation);
}

void PointMaker::Use(const LogRecord& record) {
  if (record.is_evaluation) {
    UseEvaluation(record);
    return;
  }
  const bool is_series = series_ && record.shape == series_->shape;
  const LogField* loss = is_series ? record.Named(series_->loss_name) : nullptr;
  // A skipped iteration has a step and no loss.
  const auto skipped = Whole(record.Best(Meaning::kSkippedIterations));
  const auto nan = Whole(record.Best(Meaning::kNanIterations));
  const bool is_skip = is_series && loss == nullptr && (skipped.value_or(0) > 0 || nan.value_or(0) > 0);
  if (loss != nullptr || is_skip) {
    LogPoint point;
    point.line = record.line;
    if (series_->has_steps) {
      const auto step = StepOf(record);
      if (!step) return;
      point.step = *step;
    } else {
      const LogField* epoch = record.Best(Meaning::kEpoch);
      const bool goes_back = epoch != nullptr && last_epoch_ && epoch->value < *last_epoch_;
      if (epoch != nullptr && std::isfinite(epoch->value)) last_epoch_ = epoch->value;
      point.step = goes_back || !last_step_ ? 0 : *last_step_ + 1;  // within 2^53: no file has as many records
    }
    point.attempt_name = record.attempt;
    point.loss = Value(loss);
    point.grad_norm = Value(record.Best(Meaning::kGradNorm));
    point.learning_rate = Finite(record.Best(Meaning::kLearningRate));
    point.step_seconds = Finite(record.Best(Meaning::kStepSeconds));
    point.max_abs_logit = Value(record.Best(Meaning::kMaxAbsLogit));
    point.log_z_mean_nats = Finite(record.Best(Meaning::kLogZMean));
    point.log_z_max_nats = Finite(record.Best(Meaning::kLogZMax));
    point.reported_loss_nats = Value(record.Best(Meaning::kReportedLoss));
    point.objective_nats = Finite(record.Best(Meaning::kObjective));
    point.z_loss_nats = Finite(record.Best(Meaning::kZLoss));
    point.tokens = Whole(record.Best(Meaning::kTokens));
    point.unmasked_tokens = Whole(record.Best(Meaning::kUnmaskedTokens));
    point.finite_tokens = Whole(record.Best(Meaning::kFiniteTokens));
    point.nonfinite_rows = Whole(record.Best(Meaning::kNonfiniteRows));
    point.nonfinite_grad_rows = Whole(record.Best(Meaning::kNonfiniteGradRows));
    point.target_fingerprint = Whole(record.Best(Meaning::kTargetFingerprint));
    point.mask_fingerprint = Whole(record.Best(Meaning::kMaskFingerprint));
    point.skipped_iterations = skipped;
    point.nan_iterations = nan;
    Place(std::move(point), record.rank_tag);
  } else if (record.Has(Meaning::kTrainingLoss)) {
    // HF's last line and sub-heads' losses are no oddity worth a word each; a second line for each step is.
    if (record.Has(Meaning::kStep) && !record.Has(Meaning::kEvaluationLoss)) report_->Count(Oddity::kOtherSeries, record.line);
  }
  if (record.Has(Meaning::kEvaluationLoss)) UseEvaluation(record);
}

bool PointMaker::IsOtherRank(std::int64_t step, const std::string& rank_tag) const {
  if (rank_tag.empty() || rank_tag == rank_tag_) return false;
  const auto seen = rank_steps_.find(rank_tag);
  if (seen != rank_steps_.end()) return step > seen->second;           // it comes along, behind the rank that is read
  return *last_step_ - step <= static_cast<std::int64_t>(2 * series_->spacing);  // new here, and close behind
}

void PointMaker::Place(LogPoint point, const std::string& rank_tag) {
  if (held_) {
    Held held = std::move(*held_);
    held_.reset();
    const std::int64_t last = *last_step_;
    const bool held_goes_back = held.point.step < last;
    const std::int64_t jump = static_cast<std::int64_t>(std::max(kJumpSteps, kJumpSpacings * series_->spacing));
    // Whose successor is this point: the last one's, or the held one's?
    const bool follows_last = point.step > last && static_cast<double>(point.step - last) <= kNextSpacings * series_->spacing;
    const bool follows_held = point.step > held.point.step && point.step - held.point.step <= jump;
    const bool accepts = held_goes_back ? !follows_last : follows_held;
    if (!accepts) {
      report_->Count(held_goes_back ? Oddity::kRepeatedStep : Oddity::kLoneJump, held.point.line);
    } else if (held_goes_back) {
      BeginAttempt(std::move(held.point), held.rank_tag);
    } else {
      Accept(std::move(held.point), held.rank_tag);
    }
  }
  if (!last_step_) {
    BeginAttempt(std::move(point), rank_tag);
    return;
  }
  if (!point.attempt_name.empty() && point.attempt_name != attempt_name_) {
    BeginAttempt(std::move(point), rank_tag);
    return;
  }
  const std::int64_t last = *last_step_;
  if (point.step <= last && IsOtherRank(point.step, rank_tag)) {
    report_->Count(Oddity::kOtherRank, point.line);
    if (rank_steps_.size() < kMaxRankTags) rank_steps_[rank_tag] = point.step;
    return;
  }
  if (point.step == last) {
    report_->Count(Oddity::kRepeatedStep, point.line);
    return;
  }
  const double jump = std::max(kJumpSteps, kJumpSpacings * series_->spacing);
  if (point.step < last || static_cast<double>(point.step - last) > jump) {
    held_ = Held{std::move(point), rank_tag};
    return;
  }
  Accept(std::move(point), rank_tag);
}

void PointMaker::BeginAttempt(LogPoint point, const std::string& rank_tag) {
  if (attempt_ == kMaxAttempts) {
    report_->Count(Oddity::kTooManyAttempts, point.line);
    return;
  }
  ++attempt_;
  attempt_name_ = point.attempt_name;
  last_step_.reset();
  rank_steps_.clear();
  Accept(std::move(point), rank_tag);
}

void PointMaker::Accept(LogPoint point, const std::string& rank_tag) {
  const auto spacing = static_cast<std::int64_t>(series_->spacing);
  point.attempt = attempt_;
  point.index = next_index_++;
  // The first point of a log tells nothing of the time before it; the usual spacing is the best guess, unless fewer steps came before.
  point.interval_steps = last_step_ ? point.step - *last_step_ : std::clamp<std::int64_t>(point.step, 1, std::max<std::int64_t>(1, spacing));
  last_step_ = point.step;
  rank_tag_ = rank_tag;
  if (rank_steps_.size() < kMaxRankTags || rank_steps_.contains(rank_tag)) rank_steps_[rank_tag] = point.step;
  report_->skipped_iterations += point.skipped_iterations.value_or(0);
  sink_->OnPoint(point);
}

}  // namespace lossgauge::replay
