#include "server/state/thin_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "server/state/step_values.h"

namespace lossgauge::state {
namespace {

double WeightOf(const StepSummary& step, MeanWeight weight) {
  switch (weight) {
    case MeanWeight::kFiniteTokens: return static_cast<double>(step.finite_tokens);
    case MeanWeight::kTargetBytes: return static_cast<double>(step.target_bytes);
    default: return 1;
  }
}

struct Tally {
  bool seen = false;
  std::size_t finite = 0;
  double min = 0, max = 0;
  double sum = 0, weighted = 0, weights = 0;

  void Add(double value, double weight) {
    seen = true;
    if (!std::isfinite(value)) return;
    min = finite == 0 ? value : std::min(min, value);
    max = finite == 0 ? value : std::max(max, value);
    ++finite;
    sum += value;
    weighted += value * weight;
    weights += weight;
  }
  double Mean() const {
    if (finite == 0) return std::numeric_limits<double>::quiet_NaN();
    // A job that hands over a loss without its tokens: then each step counts the same.
    const double mean = weights > 0 ? weighted / weights : sum / static_cast<double>(finite);
    return std::clamp(mean, min, max);  // rounding must not carry it out of its own range
  }
};

void KeepWorse(const std::optional<Place>& place, std::optional<Place>* worst) {
  if (place && (!*worst || place->value > (*worst)->value)) *worst = place;
}

}  // namespace

StepSummary ThinSteps(const std::vector<StepSummary>& steps) {
  const StepSummary& last = steps.back();
  StepSummary out;
  out.sequence = last.sequence;
  out.attempt = last.attempt;
  out.step = last.step;
  out.receive_time_ns = last.receive_time_ns;
  out.publish_time_ns = last.publish_time_ns;
  auto span = std::make_shared<ThinnedSpan>();
  span->steps = steps.size();
  span->first_step = steps.front().step;
  span->first_sequence = steps.front().sequence;
  span->first_receive_time_ns = steps.front().receive_time_ns;

  std::array<Tally, kStepValueCount> tallies;
  std::set<std::uint32_t> missing;
  for (const StepSummary& step : steps) {
    bool is_finite = true;
    for (std::size_t i = 0; i < kStepValueCount; ++i) {
      const auto& value = step.*kStepValues[i].member;
      if (!value) continue;
      tallies[i].Add(*value, WeightOf(step, kStepValues[i].weight));
      is_finite = is_finite && std::isfinite(*value);
    }
    if (!is_finite) ++span->nonfinite_steps;
    out.ranks = std::max(out.ranks, step.ranks);
    missing.insert(step.missing_ranks.begin(), step.missing_ranks.end());
    out.complete = out.complete && step.complete;
    out.tokens += step.tokens;
    out.unmasked_tokens += step.unmasked_tokens;
    out.finite_tokens += step.finite_tokens;
    out.nonfinite_rows += step.nonfinite_rows;
    out.nonfinite_grad_rows += step.nonfinite_grad_rows;
    out.bad_targets += step.bad_targets;
    out.micro_batches = std::max(out.micro_batches, step.micro_batches);
    out.target_bytes += step.target_bytes;
    out.target_fingerprint += step.target_fingerprint;
    out.mask_fingerprint += step.mask_fingerprint;
    KeepWorse(step.worst_row, &out.worst_row);
    KeepWorse(step.worst_logit, &out.worst_logit);
    if (!out.first_nonfinite_row) out.first_nonfinite_row = step.first_nonfinite_row;
  }
  out.missing_ranks.assign(missing.begin(), missing.end());
  for (std::size_t i = 0; i < kStepValueCount; ++i) {
    const Tally& tally = tallies[i];
    if (!tally.seen) continue;
    const bool is_derived = kStepValues[i].weight == MeanWeight::kExpOfLoss && out.loss_nats;
    out.*kStepValues[i].member = is_derived ? std::exp(*out.loss_nats) : tally.Mean();
    if (tally.finite == 0) continue;
    span->min[i] = tally.min;
    span->max[i] = tally.max;
  }
  out.thinned = std::move(span);
  return out;
}

}  // namespace lossgauge::state
