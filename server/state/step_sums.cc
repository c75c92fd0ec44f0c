#include "server/state/step_sums.h"

#include <algorithm>
#include <cmath>

#include "server/state/gradient_square.h"

namespace lossgauge::state {
namespace {

void TakeMax(std::optional<double>* maximum, double value) {
  if (!maximum->has_value() || value > **maximum) *maximum = value;
}
void TakeMin(std::optional<double>* minimum, double value) {
  if (!minimum->has_value() || value < **minimum) *minimum = value;
}

// The job's own norm is global: equal on all ranks. Where they differ a non-finite one must not hide behind the others.
void TakeNorm(std::optional<double>* norm, double value) {
  if (norm->has_value() && !std::isfinite(**norm)) return;
  if (!norm->has_value() || !std::isfinite(value) || value > **norm) *norm = value;
}

}  // namespace

bool OwnsLoss(const RankSample& sample) {
  return sample.producer->layout.has_loss != 0 && (sample.record.present & LG_HAS_LOSS) != 0;
}

void StepSums::ExactSum::Add(const lg_fixed128& term) {
  value = lg_fixed128_add(value, term);
  any = true;
}

std::optional<double> StepSums::ExactSum::Over(std::uint64_t count) const {
  if (!any || count == 0) return std::nullopt;
  return lg_fixed128_to_double(value) / static_cast<double>(count);
}

void StepSums::NormOfParts::Add(std::optional<double> square, bool has_tokens) {
  if (square) {
    squares += *square;
    ++parts;
  } else if (has_tokens) {
    lacks_one = true;
  }
}

std::optional<double> StepSums::NormOfParts::Norm() const {
  if (parts == 0 || lacks_one) return std::nullopt;
  return std::sqrt(squares);
}

void StepSums::Add(const RankSample& sample) {
  AddAny(sample);
  if (!OwnsLoss(sample)) return;
  const lg_layout& layout = sample.producer->layout;
  if (layout.tp.size <= 1 || groups_.insert(TensorGroupOf(layout)).second) AddCounted(sample);
}

void StepSums::AddCounted(const RankSample& sample) {
  const lg_step_record& r = sample.record;
  StepSummary* s = &values_;
  s->tokens += r.tokens;
  s->unmasked_tokens += r.unmasked_tokens;
  s->finite_tokens += r.finite_tokens;
  s->nonfinite_rows += r.nonfinite_rows;
  s->nonfinite_grad_rows += r.nonfinite_grad_rows;
  s->bad_targets += r.bad_targets;
  s->micro_batches = std::max(s->micro_batches, r.micro_batches);
  nll_.Add(r.nll_sum);
  if (r.present & LG_HAS_OBJECTIVE) {
    objective_.Add(r.objective_sum);
    z_loss_.Add(r.z_loss_sum);
    objective_tokens_ += r.finite_tokens;
  }
  if (r.present & LG_HAS_TARGET_BYTES) {
    scored_.Add(r.scored_nll_sum);
    s->target_bytes += r.target_bytes;
  }
  if (r.present & LG_HAS_LOGITS) {
    log_z_.Add(r.log_z_sum);
    log_z_tokens_ += r.finite_tokens;
    correct_ += r.correct_tokens;
    s->target_fingerprint += r.target_fingerprint;
    s->mask_fingerprint += r.mask_fingerprint;
    if (r.finite_tokens > 0) TakeMax(&s->log_z_max_nats, r.log_z_max);
  }
  if (r.present & LG_HAS_DENOMINATOR) {
    TakeMin(&s->denominator_min, r.denominator_min);
    TakeMax(&s->denominator_max, r.denominator_max);
  }
}

// Of every rank that owns logits: shards of a tensor-parallel group add to the norm and share the maxima.
void StepSums::AddAny(const RankSample& sample) {
  const lg_step_record& r = sample.record;
  const std::uint32_t rank = sample.producer->layout.rank;
  StepSummary* s = &values_;
  s->publish_time_ns = std::max(s->publish_time_ns, r.wall_ns);
  s->receive_time_ns = std::max(s->receive_time_ns, sample.receive_time_ns);
  if (r.present & LG_HAS_GRAD_NORM) TakeNorm(&s->grad_norm, r.grad_norm);
  if ((r.present & LG_HAS_LEARNING_RATE) && !s->learning_rate) s->learning_rate = r.learning_rate;
  if ((r.present & LG_HAS_REPORTED_LOSS) && !s->reported_loss_nats) s->reported_loss_nats = r.reported_loss;
  if (OwnsLoss(sample)) {
    const bool has_tokens = r.finite_tokens > 0;
    logit_grad_.Add(GradientSquare(r, LG_HAS_LOGIT_GRAD, r.logit_grad_sq_sum), has_tokens);
    hidden_grad_.Add(GradientSquare(r, LG_HAS_HIDDEN_GRAD, r.hidden_grad_sq_sum), has_tokens);
    head_grad_.Add(GradientSquare(r, LG_HAS_HEAD_GRAD, r.head_grad_sq_sum), has_tokens);
  }
  if ((r.present & LG_HAS_LOGITS) && r.finite_tokens > 0) {
    const bool is_new_max = !s->max_abs_logit || r.max_abs_logit > *s->max_abs_logit;
    TakeMax(&s->max_abs_logit, r.max_abs_logit);
    if (is_new_max && (r.present & LG_HAS_WORST_LOGIT)) {
      s->worst_logit = Place{rank, r.worst_logit_position, r.worst_logit_column, r.max_abs_logit};
    }
  }
  if ((r.present & LG_HAS_WORST_ROW) && r.finite_tokens > 0 && (!s->worst_row || r.worst_row_nll > s->worst_row->value)) {
    s->worst_row = Place{rank, r.worst_row_position, r.worst_row_target, r.worst_row_nll};
  }
  if ((r.present & LG_HAS_FIRST_NONFINITE_ROW) && r.nonfinite_rows > 0 && !s->first_nonfinite_row) {
    s->first_nonfinite_row = Place{rank, r.first_nonfinite_row, -1, 0};
  }
}

void StepSums::Summarize(StepSummary* s) const {
  const StepSummary& v = values_;
  s->receive_time_ns = v.receive_time_ns;
  s->publish_time_ns = v.publish_time_ns;
  for (const auto count : {&StepSummary::tokens, &StepSummary::unmasked_tokens, &StepSummary::finite_tokens, &StepSummary::nonfinite_rows,
                           &StepSummary::nonfinite_grad_rows, &StepSummary::bad_targets, &StepSummary::micro_batches, &StepSummary::target_bytes,
                           &StepSummary::target_fingerprint, &StepSummary::mask_fingerprint}) {
    s->*count = v.*count;
  }
  for (const auto value : {&StepSummary::grad_norm, &StepSummary::learning_rate, &StepSummary::reported_loss_nats, &StepSummary::max_abs_logit,
                           &StepSummary::log_z_max_nats, &StepSummary::denominator_min, &StepSummary::denominator_max}) {
    s->*value = v.*value;
  }
  for (const auto place : {&StepSummary::worst_row, &StepSummary::worst_logit, &StepSummary::first_nonfinite_row}) s->*place = v.*place;
  // No finite token: there is no loss. It is not 0, and it is not NaN.
  s->loss_nats = nll_.Over(v.finite_tokens);
  s->perplexity.reset();
  if (s->loss_nats) s->perplexity = std::exp(*s->loss_nats);
  // A part of the ranks without these terms would make them means over other tokens than the loss's.
  const bool all_have_objective = objective_tokens_ == v.finite_tokens;
  s->objective_nats = all_have_objective ? objective_.Over(objective_tokens_) : std::nullopt;
  s->z_loss_nats = all_have_objective ? z_loss_.Over(objective_tokens_) : std::nullopt;
  s->bits_per_byte.reset();
  if (const auto nats_per_byte = scored_.Over(v.target_bytes)) s->bits_per_byte = *nats_per_byte / std::log(2.0);
  s->log_z_mean_nats = log_z_.Over(log_z_tokens_);
  s->accuracy.reset();
  if (log_z_tokens_ > 0) s->accuracy = static_cast<double>(correct_) / static_cast<double>(log_z_tokens_);
  s->logit_grad_norm = logit_grad_.Norm();
  s->hidden_grad_norm = hidden_grad_.Norm();
  s->head_grad_norm = head_grad_.parts == 1 ? head_grad_.Norm() : std::nullopt;  // several would add up entry by entry
}

std::uint64_t LossRanks(const lg_layout& layout) {
  const std::uint64_t stages = std::max<std::uint64_t>(layout.pp.size, 1);
  const std::uint64_t plain = std::uint64_t{layout.dp.size} * layout.tp.size * layout.cp.size * stages;
  const bool consistent = plain == layout.world_size || ExpertsAreAnAxis(layout);
  // One pipeline stage owns the head; a layout that does not add up is judged only when its whole world is here.
  return consistent ? layout.world_size / stages : layout.world_size;
}

}  // namespace lossgauge::state
