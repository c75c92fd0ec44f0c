// The arithmetic of a joined step: ratios of exact sums, never a mean of means.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/gradient_square.h"
#include "server/state/joined_step.h"
#include "server/state/tensor_group.h"

namespace lossgauge::state {
namespace {

bool OwnsLoss(const RankSample& sample) {
  return sample.producer->layout.has_loss != 0 && (sample.record.present & LG_HAS_LOSS) != 0;
}

struct ExactSum {
  lg_fixed128 value{};
  bool any = false;
  void Add(const lg_fixed128& term) {
    value = lg_fixed128_add(value, term);
    any = true;
  }
  std::optional<double> Over(std::uint64_t count) const {
    if (!any || count == 0) return std::nullopt;
    return lg_fixed128_to_double(value) / static_cast<double>(count);
  }
};

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

// Ranks' parts of a gradient, each with entries of its own.
class NormOfParts {
 public:
  // A part that is not known makes the norm unknown.
  void Add(std::optional<double> square, bool has_tokens) {
    if (square) {
      squares_ += *square;
      ++parts_;
    } else if (has_tokens) {
      lacks_one_ = true;
    }
  }
  int parts() const { return parts_; }
  std::optional<double> Norm() const {
    if (parts_ == 0 || lacks_one_) return std::nullopt;
    return std::sqrt(squares_);
  }

 private:
  double squares_ = 0;
  int parts_ = 0;
  bool lacks_one_ = false;
};

void SumCounted(const std::vector<const RankSample*>& counted, StepSummary* s) {
  ExactSum nll, objective, z_loss, scored, log_z;
  std::uint64_t objective_tokens = 0, log_z_tokens = 0, correct = 0;
  for (const RankSample* sample : counted) {
    const lg_step_record& r = sample->record;
    s->tokens += r.tokens;
    s->unmasked_tokens += r.unmasked_tokens;
    s->finite_tokens += r.finite_tokens;
    s->nonfinite_rows += r.nonfinite_rows;
    s->nonfinite_grad_rows += r.nonfinite_grad_rows;
    s->bad_targets += r.bad_targets;
    s->micro_batches = std::max(s->micro_batches, r.micro_batches);
    nll.Add(r.nll_sum);
    if (r.present & LG_HAS_OBJECTIVE) {
      objective.Add(r.objective_sum);
      z_loss.Add(r.z_loss_sum);
      objective_tokens += r.finite_tokens;
    }
    if (r.present & LG_HAS_TARGET_BYTES) {
      scored.Add(r.scored_nll_sum);
      s->target_bytes += r.target_bytes;
    }
    if (r.present & LG_HAS_LOGITS) {
      log_z.Add(r.log_z_sum);
      log_z_tokens += r.finite_tokens;
      correct += r.correct_tokens;
      s->target_fingerprint += r.target_fingerprint;
      s->mask_fingerprint += r.mask_fingerprint;
      if (r.finite_tokens > 0) TakeMax(&s->log_z_max_nats, r.log_z_max);
    }
    if (r.present & LG_HAS_DENOMINATOR) {
      TakeMin(&s->denominator_min, r.denominator_min);
      TakeMax(&s->denominator_max, r.denominator_max);
    }
  }
  // No finite token: there is no loss. It is not 0, and it is not NaN.
  s->loss_nats = nll.Over(s->finite_tokens);
  if (s->loss_nats) s->perplexity = std::exp(*s->loss_nats);
  // A part of the ranks without these terms would make them means over other tokens than the loss's.
  if (objective_tokens == s->finite_tokens) {
    s->objective_nats = objective.Over(objective_tokens);
    s->z_loss_nats = z_loss.Over(objective_tokens);
  }
  if (const auto nats_per_byte = scored.Over(s->target_bytes)) s->bits_per_byte = *nats_per_byte / std::log(2.0);
  s->log_z_mean_nats = log_z.Over(log_z_tokens);
  if (log_z_tokens > 0) s->accuracy = static_cast<double>(correct) / static_cast<double>(log_z_tokens);
}

// Over every rank that owns logits: shards of a tensor-parallel group add to the norm and share the maxima.
void ScanAll(const std::vector<RankSample>& samples, StepSummary* s) {
  NormOfParts logit_grad, hidden_grad, head_grad;
  for (const RankSample& sample : samples) {
    const lg_step_record& r = sample.record;
    const std::uint32_t rank = sample.producer->layout.rank;
    s->publish_time_ns = std::max(s->publish_time_ns, r.wall_ns);
    s->receive_time_ns = std::max(s->receive_time_ns, sample.receive_time_ns);
    if (r.present & LG_HAS_GRAD_NORM) TakeNorm(&s->grad_norm, r.grad_norm);
    if ((r.present & LG_HAS_LEARNING_RATE) && !s->learning_rate) s->learning_rate = r.learning_rate;
    if ((r.present & LG_HAS_REPORTED_LOSS) && !s->reported_loss_nats) s->reported_loss_nats = r.reported_loss;
    if (OwnsLoss(sample)) {
      const bool has_tokens = r.finite_tokens > 0;
      logit_grad.Add(GradientSquare(r, LG_HAS_LOGIT_GRAD, r.logit_grad_sq_sum), has_tokens);
      hidden_grad.Add(GradientSquare(r, LG_HAS_HIDDEN_GRAD, r.hidden_grad_sq_sum), has_tokens);
      head_grad.Add(GradientSquare(r, LG_HAS_HEAD_GRAD, r.head_grad_sq_sum), has_tokens);
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
    RankSummary& summary = s->rank_steps.emplace_back();
    summary.rank = rank;
    if ((r.present & LG_HAS_LOSS) && r.finite_tokens > 0) {
      summary.loss_nats = lg_fixed128_to_double(r.nll_sum) / static_cast<double>(r.finite_tokens);
    }
    if (r.present & LG_HAS_GRAD_NORM) summary.grad_norm = r.grad_norm;
    if ((r.present & LG_HAS_LOGITS) && r.finite_tokens > 0) summary.max_abs_logit = r.max_abs_logit;
    summary.unmasked_tokens = r.unmasked_tokens;
    summary.nonfinite_rows = r.nonfinite_rows;
    summary.lost_before = sample.lost_before;
  }
  s->logit_grad_norm = logit_grad.Norm();
  s->hidden_grad_norm = hidden_grad.Norm();
  if (head_grad.parts() == 1) s->head_grad_norm = head_grad.Norm();  // several would add up entry by entry
}

bool AllLossRanksVisible(const lg_layout& layout, std::size_t loss_ranks) {
  const std::uint64_t stages = std::max<std::uint64_t>(layout.pp.size, 1);
  const std::uint64_t plain = std::uint64_t{layout.dp.size} * layout.tp.size * layout.cp.size * stages;
  const bool consistent = plain == layout.world_size || ExpertsAreAnAxis(layout);
  // One pipeline stage owns the head; a layout that does not add up is judged only when its whole world is here.
  return loss_ranks == (consistent ? layout.world_size / stages : layout.world_size);
}

}  // namespace

std::vector<const RankSample*> CountedSamples(const std::vector<RankSample>& samples) {
  std::map<TensorGroup, std::uint32_t> lowest;  // index within its group; left empty where every rank is a group of its own
  for (const RankSample& sample : samples) {
    const lg_layout& layout = sample.producer->layout;
    if (layout.tp.size <= 1 || !OwnsLoss(sample)) continue;
    const auto [it, inserted] = lowest.try_emplace(TensorGroupOf(layout), layout.tp.index);
    it->second = std::min(it->second, layout.tp.index);
  }
  std::vector<const RankSample*> counted;
  for (const RankSample& sample : samples) {
    const lg_layout& layout = sample.producer->layout;
    if (OwnsLoss(sample) && (layout.tp.size <= 1 || lowest.at(TensorGroupOf(layout)) == layout.tp.index)) counted.push_back(&sample);
  }
  return counted;
}

JoinedStep JoinSamples(std::vector<RankSample> samples) {
  JoinedStep joined;
  if (samples.empty()) return joined;
  const ProducerInfo& first = *samples.front().producer;
  joined.run = first.run;
  joined.layout = first.layout;
  StepSummary& summary = joined.summary;
  summary.attempt = first.attempt;
  summary.step = samples.front().record.step;
  summary.ranks = static_cast<std::uint32_t>(samples.size());
  summary.rank_steps.reserve(samples.size());
  SumCounted(CountedSamples(samples), &summary);
  ScanAll(samples, &summary);
  const auto loss_ranks = static_cast<std::size_t>(std::count_if(samples.begin(), samples.end(), OwnsLoss));
  joined.all_ranks_visible = AllLossRanksVisible(first.layout, loss_ranks);
  joined.samples = std::move(samples);
  return joined;
}

}  // namespace lossgauge::state
