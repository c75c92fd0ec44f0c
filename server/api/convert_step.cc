#include "server/api/convert_step.h"

#include <utility>

#include "server/api/text.h"
#include "server/state/step_values.h"

namespace lossgauge::api {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

void ToMessage(const state::Place& place, v1::Place* message) {
  message->set_rank(place.rank);
  message->set_position(place.position);
  message->set_token(place.token);
  message->set_value(place.value);
}

void ToMessage(const state::RankSummary& rank, v1::RankStep* message) {
  message->set_rank(rank.rank);
  if (rank.loss_nats) message->set_loss_nats(*rank.loss_nats);
  if (rank.grad_norm) message->set_grad_norm(*rank.grad_norm);
  if (rank.max_abs_logit) message->set_max_abs_logit(*rank.max_abs_logit);
  message->set_unmasked_tokens(rank.unmasked_tokens);
  message->set_nonfinite_rows(rank.nonfinite_rows);
  message->set_lost_before(rank.lost_before);
}

void ToMessage(const state::ThinnedSpan& span, v1::Thinned* message) {
  message->set_steps(span.steps);
  message->set_first_step(span.first_step);
  message->set_first_sequence(span.first_sequence);
  if (span.first_receive_time_ns != 0) SetTimestamp(span.first_receive_time_ns, message->mutable_first_receive_time());
  message->set_nonfinite_steps(span.nonfinite_steps);
  for (std::size_t i = 0; i < state::kStepValueCount; ++i) {
    if (!span.min[i] || !span.max[i]) continue;
    v1::ValueRange* range = message->add_ranges();
    range->set_name(state::kStepValues[i].name);
    range->set_min(*span.min[i]);
    range->set_max(*span.max[i]);
  }
}

const char* GradientReductionName(std::uint32_t reduction) {
  switch (reduction) {
    case LG_GRADIENT_REDUCTION_SUM: return "sum";
    case LG_GRADIENT_REDUCTION_MEAN: return "mean";
    default: return "unknown";
  }
}

void ToMessage(const state::RankSpread& spread, v1::RankSpread* message) {
  message->set_ranks(spread.ranks);
  const std::pair<const char*, const state::ValueSpread*> values[] = {{"loss_nats", &spread.loss_nats},
                                                                      {"grad_norm", &spread.grad_norm},
                                                                      {"max_abs_logit", &spread.max_abs_logit},
                                                                      {"unmasked_tokens", &spread.unmasked_tokens}};
  for (const auto& [name, value] : values) {
    if (value->ranks == 0) continue;
    v1::ValueSpread* out = message->add_values();
    out->set_name(name);
    out->set_ranks(value->ranks);
    out->set_min(value->min);
    out->set_mean(value->mean);
    out->set_max(value->max);
    out->set_min_rank(value->min_rank);
    out->set_max_rank(value->max_rank);
  }
}

}  // namespace

void SetTimestamp(state::TimeNs time_ns, google::protobuf::Timestamp* message) {
  std::int64_t seconds = time_ns / kNsPerSecond;
  std::int64_t nanos = time_ns % kNsPerSecond;
  if (nanos < 0) {  // a Timestamp counts its nanoseconds forward, also before 1970
    nanos += kNsPerSecond;
    --seconds;
  }
  message->set_seconds(seconds);
  message->set_nanos(static_cast<std::int32_t>(nanos));
}

void SetDuration(std::int64_t duration_ns, google::protobuf::Duration* message) {
  message->set_seconds(duration_ns / kNsPerSecond);
  message->set_nanos(static_cast<std::int32_t>(duration_ns % kNsPerSecond));
}

void ToMessage(const lg_layout& layout, v1::Layout* message) {
  message->set_world_size(layout.world_size);
  message->set_data_parallel(layout.dp.size);
  message->set_tensor_parallel(layout.tp.size);
  message->set_pipeline_parallel(layout.pp.size);
  message->set_context_parallel(layout.cp.size);
  message->set_expert_parallel(layout.ep.size);
  message->set_vocab_size(layout.vocab_size);
  message->set_gradient_reduction(GradientReductionName(layout.gradient_reduction));
}

void ToMessage(const state::StepSummary& step, bool include_ranks, v1::Step* message) {
  message->set_sequence(step.sequence);
  message->set_attempt(ValidUtf8(step.attempt));
  message->set_step(step.step);
  if (step.receive_time_ns != 0) SetTimestamp(step.receive_time_ns, message->mutable_receive_time());
  if (step.publish_time_ns != 0) SetTimestamp(step.publish_time_ns, message->mutable_publish_time());
  message->set_ranks(step.ranks);
  for (const std::uint32_t rank : step.missing_ranks) message->add_missing_ranks(rank);
  message->set_complete(step.complete);

  if (step.loss_nats) message->set_loss_nats(*step.loss_nats);
  if (step.perplexity) message->set_perplexity(*step.perplexity);
  if (step.bits_per_byte) message->set_bits_per_byte(*step.bits_per_byte);
  if (step.grad_norm) message->set_grad_norm(*step.grad_norm);
  if (step.logit_grad_norm) message->set_logit_grad_norm(*step.logit_grad_norm);
  if (step.max_abs_logit) message->set_max_abs_logit(*step.max_abs_logit);
  if (step.log_z_mean_nats) message->set_log_z_mean_nats(*step.log_z_mean_nats);
  if (step.log_z_max_nats) message->set_log_z_max_nats(*step.log_z_max_nats);
  if (step.z_loss_nats) message->set_z_loss_nats(*step.z_loss_nats);
  if (step.objective_nats) message->set_objective_nats(*step.objective_nats);
  if (step.learning_rate) message->set_learning_rate(*step.learning_rate);
  if (step.reported_loss_nats) message->set_reported_loss_nats(*step.reported_loss_nats);
  if (step.accuracy) message->set_accuracy(*step.accuracy);
  if (step.step_seconds) message->set_step_seconds(*step.step_seconds);
  if (step.denominator_min) message->set_denominator_min(*step.denominator_min);
  if (step.denominator_max) message->set_denominator_max(*step.denominator_max);
  if (step.hidden_grad_norm) message->set_hidden_grad_norm(*step.hidden_grad_norm);
  if (step.head_grad_norm) message->set_head_grad_norm(*step.head_grad_norm);

  message->set_tokens(step.tokens);
  message->set_unmasked_tokens(step.unmasked_tokens);
  message->set_finite_tokens(step.finite_tokens);
  message->set_nonfinite_rows(step.nonfinite_rows);
  message->set_nonfinite_grad_rows(step.nonfinite_grad_rows);
  message->set_bad_targets(step.bad_targets);
  message->set_micro_batches(step.micro_batches);
  message->set_target_bytes(step.target_bytes);
  message->set_target_fingerprint(step.target_fingerprint);
  message->set_mask_fingerprint(step.mask_fingerprint);

  if (step.worst_row) ToMessage(*step.worst_row, message->mutable_worst_row());
  if (step.worst_logit) ToMessage(*step.worst_logit, message->mutable_worst_logit());
  if (step.first_nonfinite_row) ToMessage(*step.first_nonfinite_row, message->mutable_first_nonfinite_row());
  if (include_ranks) {
    for (const state::RankSummary& rank : step.rank_steps) ToMessage(rank, message->add_rank_steps());
  }
  if (step.spread) ToMessage(*step.spread, message->mutable_rank_spread());
  if (step.thinned) ToMessage(*step.thinned, message->mutable_thinned());
}

}  // namespace lossgauge::api
