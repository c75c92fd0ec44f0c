#include "server/replay/step_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::replay {
namespace {

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;  // of a step; more is no number of tokens
constexpr double kLargestSum = 4.0e18;  // below the range of lg_fixed128
// Longer than any that is judged: a loss whose rounding, steps and auxiliary terms are not known is shown, and judged for being finite only.
constexpr std::uint64_t kUnknownInterval = std::numeric_limits<std::uint64_t>::max();

lg_fixed128 SumOf(double mean, std::uint64_t tokens) {
  return lg_fixed128_from_double(std::clamp(mean * static_cast<double>(tokens), -kLargestSum, kLargestSum));
}

void SetLoss(const LogPoint& point, lg_step_record* record) {
  const std::uint64_t nan_iterations = std::min(point.nan_iterations.value_or(0), kMostTokens);
  std::uint64_t unmasked = point.unmasked_tokens.value_or(point.finite_tokens.value_or(point.tokens.value_or(1)));
  unmasked = std::clamp<std::uint64_t>(unmasked, 1, kMostTokens);
  const bool has_loss = point.loss && std::isfinite(*point.loss);
  std::uint64_t finite = 0;
  if (has_loss) {
    finite = std::clamp<std::uint64_t>(point.finite_tokens.value_or(unmasked), 1, unmasked);
    if (std::fabs(*point.loss) * static_cast<double>(finite) > kLargestSum) finite = unmasked = 1;  // no sum of it could be held
    record->nll_sum = lg_fixed128_from_double(std::clamp(*point.loss, -kLargestSum, kLargestSum) * static_cast<double>(finite));
  }
  record->nonfinite_rows = std::min(point.nonfinite_rows.value_or(0), kMostTokens);
  if (point.loss && !has_loss) record->nonfinite_rows = std::max(record->nonfinite_rows, unmasked);
  record->nonfinite_rows = std::max(record->nonfinite_rows, nan_iterations);
  record->finite_tokens = finite;
  if (!point.loss && record->nonfinite_rows == 0) return;  // an iteration that was skipped
  record->present |= LG_HAS_LOSS;
  record->unmasked_tokens = std::max(has_loss ? unmasked : 0, finite + record->nonfinite_rows);
  record->tokens = std::max(std::min(point.tokens.value_or(0), kMostTokens), record->unmasked_tokens);
}

}  // namespace

lg_step_record MakeStepRecord(const LogPoint& point) {
  lg_step_record record{};
  record.step = point.step;
  record.micro_batches = 1;
  SetLoss(point, &record);
  if (point.nonfinite_grad_rows) {
    record.present |= LG_HAS_LOGIT_GRAD;
    record.nonfinite_grad_rows = std::min(*point.nonfinite_grad_rows, kMostTokens);
  }
  if (point.grad_norm) {
    record.present |= LG_HAS_GRAD_NORM;
    record.grad_norm = *point.grad_norm;
  }
  if (point.learning_rate) {
    record.present |= LG_HAS_LEARNING_RATE;
    record.learning_rate = *point.learning_rate;
  }
  if (point.reported_loss_nats) {
    record.present |= LG_HAS_REPORTED_LOSS;
    record.reported_loss = *point.reported_loss_nats;
    record.reported_loss_dtype = LG_DTYPE_FP32;
    record.reported_loss_interval = kUnknownInterval;
  }
  const auto is_finite = [](const std::optional<double>& value) { return value && std::isfinite(*value); };
  if (record.finite_tokens > 0 && is_finite(point.z_loss_nats)) {
    record.present |= LG_HAS_OBJECTIVE;
    const double objective = is_finite(point.objective_nats) ? *point.objective_nats : *point.loss + *point.z_loss_nats;
    record.objective_sum = SumOf(objective, record.finite_tokens);
    record.z_loss_sum = SumOf(*point.z_loss_nats, record.finite_tokens);
  }
  if (point.max_abs_logit && point.log_z_mean_nats && record.finite_tokens > 0) {
    record.present |= LG_HAS_LOGITS;
    record.max_abs_logit = *point.max_abs_logit;
    record.log_z_sum = SumOf(*point.log_z_mean_nats, record.finite_tokens);
    record.log_z_max = point.log_z_max_nats.value_or(*point.log_z_mean_nats);
    record.target_hits = record.finite_tokens;
    record.target_fingerprint = point.target_fingerprint.value_or(0);
    record.mask_fingerprint = point.mask_fingerprint.value_or(0);
  }
  return record;
}

void AddToTotals(const lg_step_record& before, lg_step_record* record) {
  record->total_steps = before.total_steps + 1;
  record->total_tokens = before.total_tokens + record->tokens;
  record->total_unmasked_tokens = before.total_unmasked_tokens + record->unmasked_tokens;
  record->total_finite_tokens = before.total_finite_tokens + record->finite_tokens;
  record->total_nonfinite_rows = before.total_nonfinite_rows + record->nonfinite_rows;
  record->total_nonfinite_grad_rows = before.total_nonfinite_grad_rows + record->nonfinite_grad_rows;
  record->total_nll_sum = lg_fixed128_add(before.total_nll_sum, record->nll_sum);
  const bool bad_scalar = ((record->present & LG_HAS_GRAD_NORM) != 0 && !std::isfinite(record->grad_norm)) ||
                          ((record->present & LG_HAS_REPORTED_LOSS) != 0 && !std::isfinite(record->reported_loss));
  record->total_nonfinite_steps =
      before.total_nonfinite_steps + (record->nonfinite_rows > 0 || record->nonfinite_grad_rows > 0 || bad_scalar ? 1 : 0);
}

}  // namespace lossgauge::replay
