#include "server/state/attempt_comparer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lossgauge::state {
namespace {

constexpr double kFloorNats = 0.02;  // kernels that sum in another order differ by less
constexpr std::size_t kSameDataWindow = 8;
constexpr double kSameDataDeviations = 0.5;
constexpr double kOtherDataDeviations = 2;

bool IsFinite(const StepSummary& step) { return step.nonfinite_rows == 0 && step.loss_nats && std::isfinite(*step.loss_nats); }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

}  // namespace

std::string_view LossMatchName(LossMatch match) {
  switch (match) {
    case LossMatch::kEqual: return "equal";
    case LossMatch::kWithinNoise: return "within_noise";
    case LossMatch::kDiverged: return "diverged";
    case LossMatch::kUnknown: return "unknown";
  }
  return "";
}

std::string_view DataMatchName(DataMatch match) {
  switch (match) {
    case DataMatch::kUnknown: return "unknown";
    case DataMatch::kSame: return "same";
    case DataMatch::kShifted: return "shifted";
    case DataMatch::kDifferent: return "different";
  }
  return "";
}

namespace {

std::string DescribeLoss(const AttemptComparison& c) {
  std::string text = absl::StrFormat("steps %d to %d ", c.first_step, c.last_step);
  switch (c.loss) {
    case LossMatch::kEqual:
      absl::StrAppend(&text, "equal those of attempt '", c.with_attempt, "' to the last bit");
      break;
    case LossMatch::kWithinNoise:
      absl::StrAppend(&text, "agree with those of attempt '", c.with_attempt,
                      absl::StrFormat("' within noise (largest difference %+.3g nats at step %d", c.largest_difference_nats, c.largest_difference_step));
      if (c.first_unequal_step && *c.first_unequal_step > c.first_step) absl::StrAppend(&text, "; equal before step ", *c.first_unequal_step);
      absl::StrAppend(&text, ")");
      break;
    case LossMatch::kDiverged:
      absl::StrAppend(&text, "left those of attempt '", c.with_attempt, "' at step ", c.diverged_step.value_or(c.first_step), " (");
      if (c.steps > 0) absl::StrAppend(&text, absl::StrFormat("on average %+.3g nats, noise %.2g", c.mean_difference_nats, c.noise_nats));
      if (c.nonfinite_step) absl::StrAppend(&text, c.steps > 0 ? "; " : "", "step ", *c.nonfinite_step, " is not finite and was before");
      absl::StrAppend(&text, ")");
      break;
    case LossMatch::kUnknown:
      absl::StrAppend(&text, "have no loss to compare with that of attempt '", c.with_attempt, "'");
      break;
  }
  return text;
}

std::string DescribeNotCompared(const AttemptComparison& c) {
  const std::int64_t first = c.first_not_compared_step.value_or(0), last = c.last_not_compared_step.value_or(0);
  const std::string which = first == last ? absl::StrCat("step ", first)
                            : c.not_compared == static_cast<std::uint64_t>(last - first) + 1
                                ? absl::StrCat("steps ", first, " to ", last)
                                : absl::StrCat(c.not_compared, " of steps ", first, " to ", last);
  return absl::StrCat(which, " could not be compared with attempt '", c.with_attempt, "' (no longer kept step by step, or without a finite loss)");
}

}  // namespace

std::string Describe(const AttemptComparison& c) {
  if (c.last_step < c.first_step) return DescribeNotCompared(c);
  std::string text = DescribeLoss(c);
  switch (c.data) {
    case DataMatch::kUnknown: break;
    case DataMatch::kSame: absl::StrAppend(&text, "; the data loader resumed where it should"); break;
    case DataMatch::kShifted:
      absl::StrAppend(&text, absl::StrFormat("; the data loader is %d steps %s since step %d", std::abs(c.data_offset_steps),
                                             c.data_offset_steps > 0 ? "ahead" : "behind", c.first_different_data_step.value_or(c.first_step)));
      break;
    case DataMatch::kDifferent:
      absl::StrAppend(&text, "; other data since step ", c.first_different_data_step.value_or(c.first_step));
      break;
  }
  if (c.not_compared > 0) absl::StrAppend(&text, "; ", DescribeNotCompared(c));
  return text;
}

void AttemptComparer::Begin(const std::string& attempt, std::shared_ptr<KeptSteps> kept, const std::optional<AttemptComparison>& so_far,
                            std::vector<AttemptSpan> passes) {
  *this = AttemptComparer();
  attempt_ = attempt;
  kept_ = std::move(kept);
  result_ = so_far;
  passes_ = std::move(passes);
  for (const AttemptSpan& pass : passes_) passes_end_ = std::max(passes_end_, pass.last_step);
}

void AttemptComparer::Slide(std::int64_t step) {
  if (kept_ == nullptr || (window_last_ && step <= *window_last_)) return;
  const bool is_first = !window_last_;
  window_last_ = step + kStepsAhead;
  const std::vector<std::shared_ptr<const StepSummary>> kept = kept_->Read(std::max<std::int64_t>(0, step - kStepsBehind), *window_last_);
  earlier_.clear();
  for (const auto& one : kept) {
    if (one->attempt == attempt_ || one->thinned != nullptr) continue;
    earlier_[one->step] = {one->attempt, one->loss_nats, IsFinite(*one), one->target_fingerprint, one->mask_fingerprint};
  }
  if (!is_first) return;  // the noise is that of the first window
  std::vector<double> jumps;
  const Pass* previous = nullptr;
  for (const auto& [number, pass] : earlier_) {
    if (!pass.loss_nats || !std::isfinite(*pass.loss_nats)) continue;
    if (previous != nullptr) jumps.push_back(std::fabs(*pass.loss_nats - *previous->loss_nats));
    previous = &pass;
  }
  noise_nats_ = 1.4826 / std::sqrt(2.0) * Median(std::move(jumps));
  if (!result_) return;
  if (result_->noise_nats > 0) noise_nats_ = result_->noise_nats;
  RefillDifferences(kept, step);
}

void AttemptComparer::RefillDifferences(const std::vector<std::shared_ptr<const StepSummary>>& kept, std::int64_t before_step) {
  for (const auto& own : kept) {
    if (own->attempt != attempt_ || own->step >= before_step || own->nonfinite_rows > 0 || !own->loss_nats || !std::isfinite(*own->loss_nats)) continue;
    const auto at = earlier_.find(own->step);
    if (at == earlier_.end() || !at->second.loss_nats || !std::isfinite(*at->second.loss_nats)) continue;
    Note(own->step, *own->loss_nats - *at->second.loss_nats);
  }
}

void AttemptComparer::Note(std::int64_t step, double difference) {
  differences_[compared_ % kWindow] = difference;
  at_step_[compared_ % kWindow] = step;
  ++compared_;
}

void AttemptComparer::CompareData(const StepSummary& step, const Pass& before) {
  AttemptComparison& c = *result_;
  const bool known = step.target_fingerprint != 0 && before.target_fingerprint != 0;
  if (!known) return;
  const bool same = step.target_fingerprint == before.target_fingerprint && step.mask_fingerprint == before.mask_fingerprint;
  if (same) {
    if (c.data == DataMatch::kUnknown) c.data = DataMatch::kSame;
    return;
  }
  if (c.data == DataMatch::kShifted) {  // still by as much?
    const auto at = earlier_.find(step.step + c.data_offset_steps);
    if (at == earlier_.end() || at->second.target_fingerprint == step.target_fingerprint) return;
    c.data = DataMatch::kDifferent;
    return;
  }
  if (c.data == DataMatch::kDifferent) return;
  c.first_different_data_step = step.step;
  c.data = DataMatch::kDifferent;
  for (const auto& [number, pass] : earlier_) {
    if (pass.target_fingerprint != step.target_fingerprint) continue;
    c.data = DataMatch::kShifted;
    c.data_offset_steps = number - step.step;
    return;
  }
}

void AttemptComparer::CompareLoss(const StepSummary& step, double before) {
  AttemptComparison& c = *result_;
  const double difference = *step.loss_nats - before;
  ++c.steps;
  if (c.loss == LossMatch::kUnknown) c.loss = LossMatch::kEqual;
  c.mean_difference_nats += (difference - c.mean_difference_nats) / static_cast<double>(c.steps);
  if (std::fabs(difference) > std::fabs(c.largest_difference_nats)) {
    c.largest_difference_nats = difference;
    c.largest_difference_step = step.step;
  }
  Note(step.step, difference);
  if (difference == 0) return;
  if (!c.first_unequal_step) c.first_unequal_step = step.step;
  if (c.loss == LossMatch::kDiverged) return;
  c.loss = LossMatch::kWithinNoise;
  const bool same_data = c.data == DataMatch::kSame;
  const std::size_t window = same_data ? kSameDataWindow : kWindow;
  if (compared_ < window) return;
  const double limit = std::max(kFloorNats, (same_data ? kSameDataDeviations : kOtherDataDeviations) * noise_nats_);
  std::vector<double> last;
  for (std::size_t i = 0; i < window; ++i) last.push_back(differences_[(compared_ - 1 - i) % kWindow]);
  if (std::fabs(Median(last)) <= limit) return;
  c.loss = LossMatch::kDiverged;
  for (std::size_t i = window; i-- > 0;) {  // the first of them that is beyond
    const std::size_t at = (compared_ - 1 - i) % kWindow;
    if (std::fabs(differences_[at]) <= limit) continue;
    c.diverged_step = at_step_[at];
    break;
  }
}

void AttemptComparer::MarkNonfinite(std::int64_t step) {
  AttemptComparison& c = *result_;
  if (!c.nonfinite_step) c.nonfinite_step = step;
  if (!c.first_unequal_step) c.first_unequal_step = step;
  if (c.loss == LossMatch::kDiverged) return;
  c.loss = LossMatch::kDiverged;
  c.diverged_step = step;
}

AttemptComparison* AttemptComparer::Result(const std::string& with_attempt) {
  if (!result_) {
    result_.emplace();
    result_->noise_nats = noise_nats_;
  }
  result_->with_attempt = with_attempt;
  return &*result_;
}

bool AttemptComparer::OnStep(const StepSummary& step) {
  const auto not_compared = [&step](AttemptComparison* c) {
    ++c->not_compared;
    if (!c->first_not_compared_step) c->first_not_compared_step = step.step;
    c->last_not_compared_step = step.step;
  };
  if (passes_.empty() || step.step <= passes_end_) Slide(step.step);
  const auto at = earlier_.find(step.step);
  if (at == earlier_.end()) {
    const auto pass = std::find_if(passes_.rbegin(), passes_.rend(),
                                   [&step](const AttemptSpan& span) { return span.first_step <= step.step && step.step <= span.last_step; });
    if (pass == passes_.rend()) return false;
    not_compared(Result(pass->attempt));
    return true;
  }
  const Pass& before = at->second;
  AttemptComparison* c = Result(before.attempt);
  if (c->last_step < c->first_step) c->first_step = step.step;
  c->last_step = step.step;
  CompareData(step, before);
  if (before.all_finite && (step.nonfinite_rows > 0 || (step.loss_nats && !std::isfinite(*step.loss_nats)))) {
    MarkNonfinite(step.step);
  } else if (step.loss_nats && std::isfinite(*step.loss_nats) && before.loss_nats && std::isfinite(*before.loss_nats)) {
    CompareLoss(step, *before.loss_nats);
  } else {
    not_compared(c);
  }
  return true;
}

}  // namespace lossgauge::state
