#include "server/export/rank_series.h"

#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/export/counter_series.h"
#include "server/state/gradient_square.h"
#include "server/state/tensor_group.h"

namespace lossgauge::export_ {
namespace {

using state::ProducerState;

struct StateName {
  ProducerState state;
  std::string_view name;
};
constexpr StateName kStates[] = {
    {ProducerState::kLive, "live"}, {ProducerState::kFrozen, "frozen"}, {ProducerState::kLost, "lost"}, {ProducerState::kEnded, "ended"}};

struct RankLabels {
  std::string_view run;
  std::string_view rank;
};

void AddLastStep(const RankLabels& at, const lg_step_record& record, FamilyBuilder& page) {
  const auto has = [&](std::uint64_t bit) { return (record.present & bit) != 0; };
  const double finite = static_cast<double>(record.finite_tokens);
  page.Add(Metric::kStep, {at.run, at.rank}, static_cast<double>(record.step));
  if (has(LG_HAS_LOSS)) {
    page.Add(Metric::kStepUnmaskedTokens, {at.run, at.rank}, static_cast<double>(record.unmasked_tokens));
    page.Add(Metric::kStepFiniteTokens, {at.run, at.rank}, finite);
  }
  if (has(LG_HAS_MASS)) page.Add(Metric::kProbabilityMass, {at.run, at.rank}, lg_fixed128_to_double(record.probability_mass));
  if (has(LG_HAS_LOGITS)) page.Add(Metric::kTargetHits, {at.run, at.rank}, static_cast<double>(record.target_hits));
  if (has(LG_HAS_EXCHANGE)) page.Add(Metric::kExchangeBadRows, {at.run, at.rank}, static_cast<double>(record.exchange_bad_rows));
  if (has(LG_HAS_DENOMINATOR)) {
    page.Add(Metric::kDenominatorMin, {at.run, at.rank}, record.denominator_min);
    page.Add(Metric::kDenominatorMax, {at.run, at.rank}, record.denominator_max);
  }
  // A step whose tokens are all masked has no loss: neither 0 nor NaN.
  if (has(LG_HAS_LOSS) && record.finite_tokens > 0) {
    const double loss = lg_fixed128_to_double(record.nll_sum) / finite;
    page.Add(Metric::kLoss, {at.run, at.rank}, loss);
    page.Add(Metric::kPerplexity, {at.run, at.rank}, std::exp(loss));
  }
  if (has(LG_HAS_TARGET_BYTES) && record.target_bytes > 0) {
    page.Add(Metric::kBitsPerByte, {at.run, at.rank},
             lg_fixed128_to_double(record.scored_nll_sum) / (std::numbers::ln2 * static_cast<double>(record.target_bytes)));
  }
  if (has(LG_HAS_LOGITS) && record.finite_tokens > 0) {
    page.Add(Metric::kMaxAbsLogit, {at.run, at.rank}, record.max_abs_logit);
    page.Add(Metric::kLogZ, {at.run, at.rank}, lg_fixed128_to_double(record.log_z_sum) / finite);
    page.Add(Metric::kLogZMax, {at.run, at.rank}, record.log_z_max);
  }
  const auto add_norm = [&](Metric metric, std::uint64_t bit, const lg_fixed128& sum) {
    if (const auto square = state::GradientSquare(record, bit, sum)) page.Add(metric, {at.run, at.rank}, std::sqrt(*square));
  };
  add_norm(Metric::kLogitGradNorm, LG_HAS_LOGIT_GRAD, record.logit_grad_sq_sum);
  add_norm(Metric::kHiddenGradNorm, LG_HAS_HIDDEN_GRAD, record.hidden_grad_sq_sum);
  add_norm(Metric::kHeadGradNorm, LG_HAS_HEAD_GRAD, record.head_grad_sq_sum);
  if (has(LG_HAS_GRAD_NORM)) page.Add(Metric::kGradNorm, {at.run, at.rank}, record.grad_norm);
  if (has(LG_HAS_LEARNING_RATE)) page.Add(Metric::kLearningRate, {at.run, at.rank}, record.learning_rate);
}

void AddMeasurements(const RankLabels& at, const state::RankView& rank, FamilyBuilder& page) {
  if (rank.last_sample) AddLastStep(at, rank.last_sample->record, page);
  page.Add(Metric::kStepSeconds, {at.run, at.rank}, rank.step_seconds);
  page.Add(Metric::kMaxLoss, {at.run, at.rank}, rank.max_60s.loss_nats);
  page.Add(Metric::kMaxGradNorm, {at.run, at.rank}, rank.max_60s.grad_norm);
  page.Add(Metric::kMaxAbsLogit60, {at.run, at.rank}, rank.max_60s.max_abs_logit);
  page.Add(Metric::kMaxLogZ, {at.run, at.rank}, rank.max_60s.log_z_max_nats);
  page.Add(Metric::kMaxStepSeconds, {at.run, at.rank}, rank.max_60s.step_seconds);
}

// Indices on the axes that tell groups apart, "dp3" or "dp3 cp1": of an axis that the job does not have, nothing.
std::string GroupName(const lg_layout& layout) {
  std::string name = absl::StrCat("dp", layout.dp.index);
  if (layout.cp.size > 1) absl::StrAppend(&name, " cp", layout.cp.index);
  if (layout.pp.size > 1) absl::StrAppend(&name, " pp", layout.pp.index);
  if (state::ExpertsAreAnAxis(layout)) absl::StrAppend(&name, " ep", layout.ep.index);
  return name;
}

void AddPlace(const RankLabels& at, const lg_layout& layout, FamilyBuilder& page) {
  if (layout.has_loss == 0) return;
  page.Add(Metric::kRankInfo, {at.run, at.rank, GroupName(layout), std::to_string(layout.tp.index)}, 1.0);
  if (layout.vocab_size > 0) page.Add(Metric::kShardColumns, {at.run, at.rank}, static_cast<double>(layout.shard_columns));
}

// -1 = none yet: a placeholder of the status line, not a step.
void AddStatusStep(Metric metric, const RankLabels& at, std::int64_t step, FamilyBuilder& page) {
  if (step >= 0) page.Add(metric, {at.run, at.rank}, static_cast<double>(step));
}

void AddProducer(const RankLabels& at, const state::RankView& rank, FamilyBuilder& page) {
  const state::LivenessReport& liveness = rank.liveness;
  const bool up = liveness.producer_state == ProducerState::kLive || liveness.producer_state == ProducerState::kFrozen;
  page.Add(Metric::kProducerUp, {at.run, at.rank}, up ? 1.0 : 0.0);
  for (const StateName& entry : kStates) {
    page.Add(Metric::kProducerState, {at.run, at.rank, entry.name}, liveness.producer_state == entry.state ? 1.0 : 0.0);
  }
  if (liveness.time_ns > 0) {
    page.Add(Metric::kHeartbeatTime, {at.run, at.rank}, static_cast<double>(liveness.time_ns - liveness.heartbeat_age_ns) * 1e-9);
  }
  AddStatusStep(Metric::kEnteredStep, at, liveness.entered_step, page);
  AddStatusStep(Metric::kEnqueuedStep, at, liveness.enqueued_step, page);
  AddStatusStep(Metric::kPublishedStep, at, liveness.published_step, page);
}

}  // namespace

void AddRankSeries(std::string_view run_label, const state::RankView& rank, bool run_ended, FamilyBuilder& page) {
  const std::string number = std::to_string(rank.rank);
  const bool has_loss = rank.producer == nullptr || rank.producer->layout.has_loss != 0;
  AddRankCounters(run_label, number, has_loss, rank.totals, page);
  if (run_ended) return;
  const RankLabels at{run_label, number};
  // The loss of a process that is no more would look like the loss of now.
  if (rank.liveness.producer_state == ProducerState::kLive || rank.liveness.producer_state == ProducerState::kFrozen) {
    AddMeasurements(at, rank, page);
  }
  if (rank.last_record_time_ns > 0) {
    page.Add(Metric::kLastRecordTime, {at.run, at.rank}, static_cast<double>(rank.last_record_time_ns) * 1e-9);
  }
  if (rank.producer) AddPlace(at, rank.producer->layout, page);
  AddProducer(at, rank, page);
}

}  // namespace lossgauge::export_
