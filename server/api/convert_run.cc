#include "server/api/convert_run.h"

#include "proto/lossgauge/ring/fixed128.h"
#include "server/api/convert_incident.h"
#include "server/api/convert_step.h"
#include "server/api/convert_verdict.h"
#include "server/api/text.h"
#include "server/state/ring_names.h"

namespace lossgauge::api {
namespace {

const char* ProducerStateName(state::ProducerState producer_state) {
  switch (producer_state) {
    case state::ProducerState::kLive: return "live";
    case state::ProducerState::kFrozen: return "frozen";
    case state::ProducerState::kLost: return "lost";
    case state::ProducerState::kEnded: return "ended";
  }
  return "";
}

std::uint64_t RecordsLost(const state::RankTotals& totals) {
  std::uint64_t sum = 0;
  for (const std::uint64_t records : totals.records_lost) sum += records;
  return sum;
}

void ToMessage(const state::AttemptComparison& comparison, v1::AttemptComparison* message) {
  message->set_with_attempt(ValidUtf8(comparison.with_attempt));
  message->set_first_step(comparison.first_step);
  message->set_last_step(comparison.last_step);
  message->set_steps(comparison.steps);
  message->set_loss(std::string(state::LossMatchName(comparison.loss)));
  if (comparison.first_unequal_step) message->set_first_unequal_step(*comparison.first_unequal_step);
  if (comparison.diverged_step) message->set_diverged_step(*comparison.diverged_step);
  message->set_mean_difference_nats(comparison.mean_difference_nats);
  message->set_largest_difference_nats(comparison.largest_difference_nats);
  message->set_largest_difference_step(comparison.largest_difference_step);
  message->set_noise_nats(comparison.noise_nats);
  message->set_data(std::string(state::DataMatchName(comparison.data)));
  if (comparison.first_different_data_step) message->set_first_different_data_step(*comparison.first_different_data_step);
  message->set_data_offset_steps(comparison.data_offset_steps);
  if (comparison.nonfinite_step) message->set_nonfinite_step(*comparison.nonfinite_step);
  message->set_not_compared(comparison.not_compared);
  if (comparison.first_not_compared_step) message->set_first_not_compared_step(*comparison.first_not_compared_step);
  if (comparison.last_not_compared_step) message->set_last_not_compared_step(*comparison.last_not_compared_step);
  message->set_text(ValidUtf8(state::Describe(comparison)));
}

void ToMessage(const state::AttemptView& attempt, v1::Attempt* message) {
  message->set_attempt(ValidUtf8(attempt.attempt));
  if (attempt.start_time_ns != 0) SetTimestamp(attempt.start_time_ns, message->mutable_start_time());
  message->set_first_step(attempt.first_step);
  message->set_last_step(attempt.last_step);
  message->set_steps(attempt.steps);
  message->set_state(ValidUtf8(attempt.state));
  if (attempt.resumed_after_step) message->set_resumed_after_step(*attempt.resumed_after_step);
  if (attempt.comparison) ToMessage(*attempt.comparison, message->mutable_comparison());
}

void ToMessage(const state::RankView& rank, v1::Producer* message) {
  message->set_rank(rank.rank);
  message->set_state(ProducerStateName(rank.liveness.producer_state));
  if (rank.last_record_time_ns != 0) SetTimestamp(rank.last_record_time_ns, message->mutable_last_record_time());
  message->set_enqueued_step(rank.liveness.enqueued_step);
  message->set_published_step(rank.liveness.published_step);
  message->set_entered_step(rank.liveness.entered_step);
  message->set_last_call(state::CallName(rank.liveness.last_call));
  message->set_records_lost(RecordsLost(rank.totals));
  if (rank.producer) message->set_ring(ValidUtf8(rank.producer->ring_path));
}

void ToMessage(const state::RankTotals& totals, v1::RunTotals* message) {
  message->set_steps(totals.steps);
  message->set_nll_nats(lg_fixed128_to_double(totals.nll_sum));
  message->set_tokens(totals.tokens);
  message->set_unmasked_tokens(totals.unmasked_tokens);
  message->set_finite_tokens(totals.finite_tokens);
  message->set_nonfinite_rows(totals.nonfinite_rows);
  message->set_target_bytes(totals.target_bytes);
  message->set_bad_targets(totals.bad_targets);
  message->set_records_lost(RecordsLost(totals));
}

}  // namespace

void ToMessage(const state::RunSnapshot& run, const std::string& instance, state::TimeNs now_ns, RunDetail detail, v1::Run* message) {
  message->set_run(ValidUtf8(run.run));
  if (!run.attempts.empty()) message->set_attempt(ValidUtf8(run.attempts.back().attempt));
  for (const state::AttemptView& attempt : run.attempts) ToMessage(attempt, message->add_attempts());
  ToMessage(run.layout, message->mutable_layout());
  if (run.last_step) ToMessage(*run.last_step, false, message->mutable_last_step());
  ToMessage(run.run, CurrentVerdict(run, now_ns), instance, message->mutable_verdict());
  for (const state::Incident& incident : run.incidents) {
    if (incident.open) ToMessage(incident, message->add_open_incidents());
  }
  if (detail == RunDetail::kFull) {
    for (const state::RankView& rank : run.ranks) ToMessage(rank, message->add_producers());
    message->set_producers_left_out(run.ranks_left_out);
  }
  message->set_unreachable_ranks(run.unreachable_ranks);
  ToMessage(run.totals, message->mutable_totals());
  message->set_phase(run.ended ? "ended" : ValidUtf8(run.phase));
  message->set_ended(run.ended);
  if (run.first_seen_ns != 0) SetTimestamp(run.first_seen_ns, message->mutable_first_seen());
  if (run.ended_time_ns != 0) SetTimestamp(run.ended_time_ns, message->mutable_ended_time());
  if (run.last_checkpoint) {
    message->set_last_checkpoint_path(ValidUtf8(run.last_checkpoint->path));
    message->set_last_checkpoint_step(run.last_checkpoint->step);
  }
  if (run.evaluation_loss_nats) message->set_evaluation_loss_nats(*run.evaluation_loss_nats);
  if (run.evaluation_step) message->set_evaluation_step(*run.evaluation_step);
  message->set_instance(ValidUtf8(instance));
  message->set_mode(ValidUtf8(run.mode));
}

}  // namespace lossgauge::api
