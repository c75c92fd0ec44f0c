#include "server/export/catalogue.h"

#include <array>

#include "server/export/step_samples.h"

namespace lossgauge::export_ {
namespace {

constexpr MetricKind kC = MetricKind::kCounter;
constexpr MetricKind kG = MetricKind::kGauge;
constexpr const char* kRunLabel = "run";
constexpr const char* kRankLabels = "run,rank";

// clang-format off
constexpr std::array<MetricSpec, kMetricCount> kCatalogue = {{
    {Metric::kSteps, kC, Life::kRun, "lossgauge_steps_total", "steps", kRankLabels, "Steps published, replayed ones included."},
    {Metric::kTokens, kC, Life::kRun, "lossgauge_tokens_total", "tokens", kRankLabels, "Positions seen."},
    {Metric::kUnmaskedTokens, kC, Life::kRun, "lossgauge_unmasked_tokens_total", "tokens", kRankLabels, "Positions with a target that counts."},
    {Metric::kFiniteTokens, kC, Life::kRun, "lossgauge_finite_tokens_total", "tokens", kRankLabels, "Unmasked positions with a finite loss: the denominator of every ratio per token."},
    {Metric::kNllNats, kC, Life::kRun, "lossgauge_nll_nats_total", "nats", kRankLabels, "Sum of the one-hot negative log-likelihood. Divided by finite tokens it is the loss."},
    {Metric::kScoredNllNats, kC, Life::kRun, "lossgauge_scored_nll_nats_total", "nats", kRankLabels, "The part of the negative log-likelihood whose targets have bytes."},
    {Metric::kTargetBytes, kC, Life::kRun, "lossgauge_target_bytes_total", "bytes", kRankLabels, "UTF-8 bytes of the targets; 0 if the job gave no byte table."},
    {Metric::kZLossNats, kC, Life::kRun, "lossgauge_z_loss_nats_total", "nats", kRankLabels, "Sum of the z-loss term."},
    {Metric::kCorrectTokens, kC, Life::kRun, "lossgauge_correct_tokens_total", "tokens", kRankLabels, "Positions whose target has the largest logit."},
    {Metric::kNonfiniteRows, kC, Life::kRun, "lossgauge_nonfinite_rows_total", "rows", kRankLabels, "Rows with a non-finite loss; they are in no other sum."},
    {Metric::kNonfiniteGradRows, kC, Life::kRun, "lossgauge_nonfinite_grad_rows_total", "rows", kRankLabels, "Rows with a finite loss whose emitted gradient is not finite."},
    {Metric::kNonfiniteSteps, kC, Life::kRun, "lossgauge_nonfinite_steps_total", "steps", kRankLabels, "Steps with a non-finite row, gradient row or handed-over scalar."},
    {Metric::kBadTargets, kC, Life::kRun, "lossgauge_bad_targets_total", "tokens", kRankLabels, "Targets that are neither ignored nor in the vocabulary."},
    {Metric::kClampedRows, kC, Life::kRun, "lossgauge_clamped_rows_total", "rows", kRankLabels, "Rows whose terms were clamped before summing."},
    {Metric::kMassErrorRows, kC, Life::kRun, "lossgauge_mass_error_rows_total", "rows", kRankLabels, "Rows whose probability mass differs from what the exchange implied."},
    {Metric::kRecordsRead, kC, Life::kRun, "lossgauge_records_read_total", "records", kRankLabels, "Records delivered from the ring."},
    {Metric::kRecordsLost, kC, Life::kRun, "lossgauge_records_lost_total", "records", "run,rank,reason", "Records that will never be delivered. Totals stay right, because records carry them."},

    {Metric::kRunSteps, kC, Life::kRun, "lossgauge_run_steps_total", "steps", kRunLabel, "Steps published, summed over one rank of each tensor-parallel group."},
    {Metric::kRunTokens, kC, Life::kRun, "lossgauge_run_tokens_total", "tokens", kRunLabel, "Positions seen, over one rank of each tensor-parallel group."},
    {Metric::kRunUnmaskedTokens, kC, Life::kRun, "lossgauge_run_unmasked_tokens_total", "tokens", kRunLabel, "Positions with a target that counts."},
    {Metric::kRunFiniteTokens, kC, Life::kRun, "lossgauge_run_finite_tokens_total", "tokens", kRunLabel, "Unmasked positions with a finite loss: the denominator of every ratio per token."},
    {Metric::kRunNllNats, kC, Life::kRun, "lossgauge_run_nll_nats_total", "nats", kRunLabel, "Sum of the one-hot negative log-likelihood. Divided by finite tokens it is the loss."},
    {Metric::kRunScoredNllNats, kC, Life::kRun, "lossgauge_run_scored_nll_nats_total", "nats", kRunLabel, "The part of the negative log-likelihood whose targets have bytes."},
    {Metric::kRunTargetBytes, kC, Life::kRun, "lossgauge_run_target_bytes_total", "bytes", kRunLabel, "UTF-8 bytes of the targets; 0 if the job gave no byte table."},
    {Metric::kRunZLossNats, kC, Life::kRun, "lossgauge_run_z_loss_nats_total", "nats", kRunLabel, "Sum of the z-loss term."},
    {Metric::kRunCorrectTokens, kC, Life::kRun, "lossgauge_run_correct_tokens_total", "tokens", kRunLabel, "Positions whose target has the largest logit."},
    {Metric::kRunNonfiniteRows, kC, Life::kRun, "lossgauge_run_nonfinite_rows_total", "rows", kRunLabel, "Rows with a non-finite loss."},
    {Metric::kRunNonfiniteGradRows, kC, Life::kRun, "lossgauge_run_nonfinite_grad_rows_total", "rows", kRunLabel, "Rows with a finite loss whose emitted gradient is not finite."},
    {Metric::kRunNonfiniteSteps, kC, Life::kRun, "lossgauge_run_nonfinite_steps_total", "steps", kRunLabel, "Steps with a non-finite row, gradient row or handed-over scalar, summed over one rank of each tensor-parallel group."},
    {Metric::kRunBadTargets, kC, Life::kRun, "lossgauge_run_bad_targets_total", "tokens", kRunLabel, "Targets that are neither ignored nor in the vocabulary."},
    {Metric::kRunClampedRows, kC, Life::kRun, "lossgauge_run_clamped_rows_total", "rows", kRunLabel, "Rows whose terms were clamped before summing."},
    {Metric::kRunMassErrorRows, kC, Life::kRun, "lossgauge_run_mass_error_rows_total", "rows", kRunLabel, "Rows whose probability mass differs from what the exchange implied."},
    {Metric::kRunRecordsRead, kC, Life::kRun, "lossgauge_run_records_read_total", "records", kRunLabel, "Records delivered from the rings."},
    {Metric::kRunRecordsLost, kC, Life::kRun, "lossgauge_run_records_lost_total", "records", "run,reason", "Records that will never be delivered."},

    {Metric::kVerdict, kG, Life::kRun, "lossgauge_verdict", "1", "run,action", "1 for the action that is advised now, 0 for the others."},
    {Metric::kVerdictReason, kG, Life::kRun, "lossgauge_verdict_reason", "1", "run,action,reason", "1 for each reason code of the present verdict. The sentence for a person is at /api/v1/ and in lossgaugectl verdict."},
    {Metric::kVerdictChanges, kC, Life::kRun, "lossgauge_verdict_changes_total", "changes", kRunLabel, "Changes of the verdict."},
    {Metric::kVerdictEvaluated, kG, Life::kRun, "lossgauge_verdict_evaluated_timestamp_seconds", "s", kRunLabel, "When the verdict was last evaluated."},
    {Metric::kVerdictValidUntil, kG, Life::kRun, "lossgauge_verdict_valid_until_timestamp_seconds", "s", kRunLabel, "Do not act on the verdict after this time."},
    {Metric::kVerdictSince, kG, Life::kRun, "lossgauge_verdict_since_timestamp_seconds", "s", kRunLabel, "Since when the verdict says what it says, where it knows."},
    {Metric::kIncidentsOpen, kG, Life::kRun, "lossgauge_incidents_open", "incidents", "run,condition,severity", "Open incidents that no root incident explains. 0 once the run has ended."},
    {Metric::kIncidentsHidden, kG, Life::kRun, "lossgauge_incidents_hidden", "incidents", kRunLabel, "Open incidents that a root incident explains. 0 once the run has ended."},
    {Metric::kIncidents, kC, Life::kRun, "lossgauge_incidents_total", "incidents", "run,condition", "Incidents opened, hidden ones included."},
    {Metric::kSpikes, kC, Life::kRun, "lossgauge_spikes_total", "incidents", "run,cause", "Loss spikes by cause; blips are not in it."},
    {Metric::kMismatches, kC, Life::kRun, "lossgauge_reduction_mismatches_total", "incidents", "run,kind", "Integrity and accounting incidents opened, by kind."},
    {Metric::kMismatchesOpen, kG, Life::kRun, "lossgauge_reduction_mismatches_open", "incidents", "run,kind", "Open integrity and accounting incidents that no root incident explains, by kind. 0 once the run has ended."},

    {Metric::kRunInfo, kG, Life::kRun, "lossgauge_run_info", "1", "run,mode,gradient_reduction", "Always 1: what the run declared of itself."},
    {Metric::kRunActive, kG, Life::kRun, "lossgauge_run_active", "1", kRunLabel, "1 until the run has ended, cleanly or declared failed; 0 after that. A killed run stays 1."},
    {Metric::kRunShadow, kG, Life::kRun, "lossgauge_run_shadow", "1", kRunLabel, "1 if the run is judged and shown but must alert nobody."},
    {Metric::kRunEnded, kG, Life::kRun, "lossgauge_run_ended_timestamp_seconds", "s", kRunLabel, "When the run ended; absent before."},
    {Metric::kRunFirstSeen, kG, Life::kRun, "lossgauge_run_first_seen_timestamp_seconds", "s", kRunLabel, "When the run was first seen."},
    {Metric::kRunWorldSize, kG, Life::kLive, "lossgauge_run_world_size", "ranks", kRunLabel, "Ranks that the job declared."},
    {Metric::kRunRanks, kG, Life::kLive, "lossgauge_run_ranks", "ranks", kRunLabel, "Ranks of the newest attempt that this process sees."},
    {Metric::kRunAttempts, kG, Life::kLive, "lossgauge_run_attempts", "attempts", kRunLabel, "Attempts known of the run."},
    {Metric::kRunPhase, kG, Life::kLive, "lossgauge_run_phase", "1", "run,phase", "1 for the phase that the job declared, 0 for the others."},
    {Metric::kRunCheckpointStep, kG, Life::kLive, "lossgauge_run_checkpoint_step", "steps", kRunLabel, "Step of the newest checkpoint that the job reported."},
    {Metric::kRunEvaluationLoss, kG, Life::kLive, "lossgauge_run_evaluation_loss_nats", "nats/token", kRunLabel, "Newest evaluation loss that the job reported."},
    {Metric::kRunEvaluationStep, kG, Life::kLive, "lossgauge_run_evaluation_step", "steps", kRunLabel, "Step of the newest evaluation."},
    {Metric::kRunVocabSize, kG, Life::kLive, "lossgauge_run_vocab_size", "columns", kRunLabel, "Real vocabulary columns over all shards. Absent where the job did not say."},

    {Metric::kRunStep, kG, Life::kLive, "lossgauge_run_step", "steps", kRunLabel, "Last joined step of the newest attempt."},
    {Metric::kRunLoss, kG, Life::kLive, "lossgauge_run_loss_nats", "nats/token", kRunLabel, "Loss of the last step: sum of the negative log-likelihood over all ranks by the sum of finite tokens."},
    {Metric::kRunPerplexity, kG, Life::kLive, "lossgauge_run_perplexity", "1", kRunLabel, "exp of the loss of the last step."},
    {Metric::kRunBitsPerByte, kG, Life::kLive, "lossgauge_run_bits_per_byte", "bits/byte", kRunLabel, "Bits per byte of the last step."},
    {Metric::kRunObjective, kG, Life::kLive, "lossgauge_run_objective_nats", "nats/token", kRunLabel, "What the gradient of the last step descends, per finite token."},
    {Metric::kRunZLoss, kG, Life::kLive, "lossgauge_run_z_loss_nats", "nats/token", kRunLabel, "z-loss term of the last step per finite token."},
    {Metric::kRunReportedLoss, kG, Life::kLive, "lossgauge_run_reported_loss_nats", "nats/token", kRunLabel, "Loss that the trainer itself logs."},
    {Metric::kRunAccuracy, kG, Life::kLive, "lossgauge_run_accuracy_ratio", "1", kRunLabel, "Correct tokens by finite tokens of the last step."},
    {Metric::kRunGradNorm, kG, Life::kLive, "lossgauge_run_grad_norm", "1", kRunLabel, "Global gradient norm that the job handed over."},
    {Metric::kRunLogitGradNorm, kG, Life::kLive, "lossgauge_run_logit_grad_norm", "1", kRunLabel, "Norm of the gradient with respect to the logits."},
    {Metric::kRunHiddenGradNorm, kG, Life::kLive, "lossgauge_run_hidden_grad_norm", "1", kRunLabel, "Norm of the gradient with respect to the last hidden states, where head and loss are one call."},
    {Metric::kRunHeadGradNorm, kG, Life::kLive, "lossgauge_run_head_grad_norm", "1", kRunLabel, "Norm of the gradient of the head's weight, where head and loss are one call and one rank has them."},
    {Metric::kRunMaxAbsLogit, kG, Life::kLive, "lossgauge_run_max_abs_logit", "1", kRunLabel, "Largest absolute logit of the last step."},
    {Metric::kRunLogZ, kG, Life::kLive, "lossgauge_run_log_z_nats", "nats", kRunLabel, "Mean log Z of the last step."},
    {Metric::kRunLogZMax, kG, Life::kLive, "lossgauge_run_log_z_max_nats", "nats", kRunLabel, "Largest log Z of the last step."},
    {Metric::kRunLearningRate, kG, Life::kLive, "lossgauge_run_learning_rate", "1", kRunLabel, "Learning rate that the job handed over."},
    {Metric::kRunStepSeconds, kG, Life::kLive, "lossgauge_run_step_seconds", "s", kRunLabel, "Duration of the last step by the producers' own clock."},
    {Metric::kRunStepTokens, kG, Life::kLive, "lossgauge_run_step_tokens", "tokens", kRunLabel, "Positions of the last step."},
    {Metric::kRunStepUnmaskedTokens, kG, Life::kLive, "lossgauge_run_step_unmasked_tokens", "tokens", kRunLabel, "Positions of the last step with a target that counts."},
    {Metric::kRunMissingRanks, kG, Life::kLive, "lossgauge_run_missing_ranks", "ranks", kRunLabel, "Ranks of this node, or of the job where it is watched as a whole, without a record of the last step; at most 1024."},
    {Metric::kRunUnreachableRanks, kG, Life::kLive, "lossgauge_run_unreachable_ranks", "ranks", kRunLabel, "Ranks whose node is not heard, or has not sent all that it had kept."},
    {Metric::kRunLastStepTime, kG, Life::kLive, "lossgauge_run_last_step_timestamp_seconds", "s", kRunLabel, "When the last record of the last step was received, by the clock of lossgauged."},
    {Metric::kRunMaxLoss, kG, Life::kLive, "lossgauge_run_loss_nats_max_60s", "nats/token", kRunLabel, "Largest loss of a step over fixed windows covering the last 60 s."},
    {Metric::kRunMaxGradNorm, kG, Life::kLive, "lossgauge_run_grad_norm_max_60s", "1", kRunLabel, "Largest gradient norm over fixed windows covering the last 60 s."},
    {Metric::kRunMaxAbsLogit60, kG, Life::kLive, "lossgauge_run_max_abs_logit_max_60s", "1", kRunLabel, "Largest absolute logit over fixed windows covering the last 60 s."},
    {Metric::kRunMaxLogZ, kG, Life::kLive, "lossgauge_run_log_z_nats_max_60s", "nats", kRunLabel, "Largest log Z of a row over fixed windows covering the last 60 s."},
    {Metric::kRunMaxStepSeconds, kG, Life::kLive, "lossgauge_run_step_seconds_max_60s", "s", kRunLabel, "Longest step over fixed windows covering the last 60 s."},

    {Metric::kStep, kG, Life::kLive, "lossgauge_step", "steps", kRankLabels, "Last step of the rank."},
    {Metric::kLoss, kG, Life::kLive, "lossgauge_loss_nats", "nats/token", kRankLabels, "Loss of the rank's last step. Absent if it had no finite token."},
    {Metric::kPerplexity, kG, Life::kLive, "lossgauge_perplexity", "1", kRankLabels, "exp of the rank's loss."},
    {Metric::kBitsPerByte, kG, Life::kLive, "lossgauge_bits_per_byte", "bits/byte", kRankLabels, "Bits per byte of the rank's last step."},
    {Metric::kGradNorm, kG, Life::kLive, "lossgauge_grad_norm", "1", kRankLabels, "Global gradient norm that the rank handed over. Absent if not finite."},
    {Metric::kLogitGradNorm, kG, Life::kLive, "lossgauge_logit_grad_norm", "1", kRankLabels, "Norm of the gradient with respect to the rank's logits."},
    {Metric::kHiddenGradNorm, kG, Life::kLive, "lossgauge_hidden_grad_norm", "1", kRankLabels, "Norm of the gradient with respect to the rank's last hidden states, where head and loss are one call."},
    {Metric::kHeadGradNorm, kG, Life::kLive, "lossgauge_head_grad_norm", "1", kRankLabels, "Norm of the rank's own part of the gradient of the head's weight, before any reduction."},
    {Metric::kMaxAbsLogit, kG, Life::kLive, "lossgauge_max_abs_logit", "1", kRankLabels, "Largest absolute logit of the rank's last step."},
    {Metric::kLogZ, kG, Life::kLive, "lossgauge_log_z_nats", "nats", kRankLabels, "Mean log Z of the rank's last step."},
    {Metric::kLogZMax, kG, Life::kLive, "lossgauge_log_z_max_nats", "nats", kRankLabels, "Largest log Z of the rank's last step."},
    {Metric::kLearningRate, kG, Life::kLive, "lossgauge_learning_rate", "1", kRankLabels, "Learning rate that the rank handed over."},
    {Metric::kStepSeconds, kG, Life::kLive, "lossgauge_step_seconds", "s", kRankLabels, "Duration of the rank's last step by its own clock."},
    {Metric::kStepUnmaskedTokens, kG, Life::kLive, "lossgauge_step_unmasked_tokens", "tokens", kRankLabels, "Positions of the rank's last step with a target that counts."},
    {Metric::kStepFiniteTokens, kG, Life::kLive, "lossgauge_step_finite_tokens", "tokens", kRankLabels, "Unmasked positions of the rank's last step with a finite loss."},
    {Metric::kProbabilityMass, kG, Life::kLive, "lossgauge_probability_mass_tokens", "tokens", kRankLabels, "Probability of the last step over the rank's columns, summed over tokens. Over the ranks of a tensor-parallel group it is the finite tokens."},
    {Metric::kTargetHits, kG, Life::kLive, "lossgauge_target_hits", "tokens", kRankLabels, "Positions of the last step whose target lies in the rank's columns. Over the ranks of a tensor-parallel group they are the finite tokens."},
    {Metric::kExchangeBadRows, kG, Life::kLive, "lossgauge_exchange_bad_rows", "rows", kRankLabels, "Rows of the last step whose contribution did not arrive as it was sent. Absent without an exchange."},
    {Metric::kDenominatorMin, kG, Life::kLive, "lossgauge_denominator_min_tokens", "tokens", kRankLabels, "Smallest number that a launch of the rank's last step divided by."},
    {Metric::kDenominatorMax, kG, Life::kLive, "lossgauge_denominator_max_tokens", "tokens", kRankLabels, "Largest number that a launch of the rank's last step divided by."},
    {Metric::kMaxLoss, kG, Life::kLive, "lossgauge_loss_nats_max_60s", "nats/token", kRankLabels, "Largest loss of the rank over fixed windows covering the last 60 s."},
    {Metric::kMaxGradNorm, kG, Life::kLive, "lossgauge_grad_norm_max_60s", "1", kRankLabels, "Largest gradient norm over fixed windows covering the last 60 s."},
    {Metric::kMaxAbsLogit60, kG, Life::kLive, "lossgauge_max_abs_logit_max_60s", "1", kRankLabels, "Largest absolute logit over fixed windows covering the last 60 s."},
    {Metric::kMaxLogZ, kG, Life::kLive, "lossgauge_log_z_nats_max_60s", "nats", kRankLabels, "Largest log Z of a row over fixed windows covering the last 60 s."},
    {Metric::kMaxStepSeconds, kG, Life::kLive, "lossgauge_step_seconds_max_60s", "s", kRankLabels, "Longest step over fixed windows covering the last 60 s."},
    {Metric::kLastRecordTime, kG, Life::kLive, "lossgauge_last_record_timestamp_seconds", "s", kRankLabels, "When the rank's last record was received, by the clock of lossgauged."},

    {Metric::kRankInfo, kG, Life::kLive, "lossgauge_rank_info", "1", "run,rank,tensor_group,shard", "Always 1: the tensor-parallel group of the rank, named by its indices on the other axes, and its place in it."},
    {Metric::kShardColumns, kG, Life::kLive, "lossgauge_shard_columns", "columns", kRankLabels, "Real vocabulary columns that the rank holds. Absent where the job did not say."},
    {Metric::kProducerUp, kG, Life::kLive, "lossgauge_producer_up", "1", kRankLabels, "1 if the rank's process holds its lock, frozen or not; else 0."},
    {Metric::kProducerState, kG, Life::kLive, "lossgauge_producer_state", "1", "run,rank,state", "1 for the state of the rank's producer, 0 for the others."},
    {Metric::kHeartbeatTime, kG, Life::kLive, "lossgauge_last_heartbeat_timestamp_seconds", "s", kRankLabels, "When the rank's process last beat, by the clock of lossgauged."},
    {Metric::kEnteredStep, kG, Life::kLive, "lossgauge_entered_step", "steps", kRankLabels, "Last step whose first loss call the rank made. Behind its peers: that rank never entered the step."},
    {Metric::kEnqueuedStep, kG, Life::kLive, "lossgauge_enqueued_step", "steps", kRankLabels, "Last step that the rank's host handed to publish."},
    {Metric::kPublishedStep, kG, Life::kLive, "lossgauge_published_step", "steps", kRankLabels, "Last step whose record is whole. Behind the enqueued step: the device or a collective is stuck."},

    {Metric::kForwardConnected, kG, Life::kProcess, "lossgauge_forward_connected", "1", "daemon", "Sidecar: 1 while this daemon takes records. daemon: 1 or 2, its place in --forward_to."},
    {Metric::kForwardSent, kC, Life::kProcess, "lossgauge_forward_records_sent_total", "records", "daemon", "Sidecar: records sent to this daemon, repeated ones included."},
    {Metric::kForwardAcknowledged, kC, Life::kProcess, "lossgauge_forward_records_acknowledged_total", "records", "daemon", "Sidecar: of the records sent, those that this daemon has acknowledged."},
    {Metric::kForwardDropped, kC, Life::kProcess, "lossgauge_forward_records_dropped_total", "records", "daemon", "Sidecar: records that left the spool before this daemon had them: it was away too long."},
    {Metric::kForwardFailures, kC, Life::kProcess, "lossgauge_forward_failures_total", "streams", "daemon", "Sidecar: streams to this daemon that ended, or never began."},
    {Metric::kForwardSpoolBytes, kG, Life::kProcess, "lossgauge_forward_spool_bytes", "bytes", "", "Sidecar: size of the spool."},
    {Metric::kForwardSpoolErrors, kC, Life::kProcess, "lossgauge_forward_spool_write_errors_total", "errors", "", "Sidecar: batches that could not be written to the spool; no daemon gets them."},
    {Metric::kIngestSenders, kG, Life::kProcess, "lossgauge_ingest_senders", "nodes", "", "Daemon: sidecars connected now."},
    {Metric::kIngestBatches, kC, Life::kProcess, "lossgauge_ingest_batches_total", "batches", "", "Daemon: batches read."},
    {Metric::kIngestRepeated, kC, Life::kProcess, "lossgauge_ingest_records_repeated_total", "records", "", "Daemon: records that were here already. Sent again after a broken connection or a restart; counted once."},
    {Metric::kIngestRecordsRefused, kC, Life::kProcess, "lossgauge_ingest_records_refused_total", "records", "", "Daemon: records of producers that are refused."},
    {Metric::kIngestRefused, kC, Life::kProcess, "lossgauge_ingest_refused_total", "refusals", "cause", "Daemon: what senders sent and was refused, by cause; the log names the sender."},
    {Metric::kBuildInfo, kG, Life::kProcess, "lossgauge_build_info", "1", "version,revision,compiler", "Always 1: what lossgauged was built from."},
    {Metric::kSnapshotTime, kG, Life::kProcess, "lossgauge_snapshot_timestamp_seconds", "s", "", "When the snapshot behind this page was taken, by the clock of lossgauged."},
    {Metric::kRuns, kG, Life::kProcess, "lossgauge_runs", "runs", "state", "Runs known, by state."},
    {Metric::kRunsRefused, kC, Life::kProcess, "lossgauge_runs_refused_total", "runs", "cause", "Producers refused."},
    {Metric::kRanksNotExported, kG, Life::kProcess, "lossgauge_ranks_not_exported", "ranks", "", "Ranks without series of their own, because there are too many; their run's series are complete."},
    {Metric::kNamesRepaired, kC, Life::kProcess, "lossgauge_names_repaired_total", "names", "", "Run names that were cut or had invalid UTF-8 replaced."},
    {Metric::kRingsAttached, kG, Life::kProcess, "lossgauge_rings_attached", "rings", "", "Ring files mapped now."},
    {Metric::kRingErrors, kC, Life::kProcess, "lossgauge_ring_errors_total", "errors", "cause", "Ring files that could not be read, by cause."},
    {Metric::kDrainCycles, kC, Life::kProcess, "lossgauge_drain_cycles_total", "cycles", "", "Cycles of the drain thread."},
    {Metric::kDrainLag, kG, Life::kProcess, "lossgauge_drain_lag_seconds", "s", "", "Age of the oldest record delivered in the last cycle."},
    {Metric::kDrainBusy, kC, Life::kProcess, "lossgauge_drain_busy_seconds_total", "s", "", "Time that the drain thread worked."},
    {Metric::kStepsJoined, kC, Life::kProcess, "lossgauge_steps_joined_total", "steps", "", "Steps joined over their ranks."},
    {Metric::kStepsCorrected, kC, Life::kProcess, "lossgauge_steps_corrected_total", "corrections", "", "Corrections of joined steps by ranks that came late."},
    {Metric::kLateRecords, kC, Life::kProcess, "lossgauge_late_records_total", "records", "", "Records of steps that were joined already."},
    {Metric::kDuplicateRecords, kC, Life::kProcess, "lossgauge_duplicate_records_total", "records", "", "Second records of a rank for the same step of an attempt: the first one counts."},
    {Metric::kAbsurdSteps, kC, Life::kProcess, "lossgauge_absurd_steps_total", "records", "", "Records whose step jumped absurdly and was not adopted."},
    {Metric::kBaselineResets, kC, Life::kProcess, "lossgauge_baseline_resets_total", "resets", "", "Detector states that could not be restored: those detectors started warming again."},
    {Metric::kStateWriteErrors, kC, Life::kProcess, "lossgauge_state_write_errors_total", "errors", "", "Writes of the state directory that failed."},
    {Metric::kStateBytes, kG, Life::kProcess, "lossgauge_state_bytes", "bytes", "", "Size of state and history."},
    {Metric::kHistoryThinned, kC, Life::kProcess, "lossgauge_history_steps_thinned_total", "steps", "", "Steps of the history that became part of a row with mean, minimum and maximum."},
    {Metric::kHistoryDropped, kC, Life::kProcess, "lossgauge_history_steps_dropped_total", "steps", "reason", "Steps that left the history: too old, beyond its size, damaged, or never written because the store could not write."},
    {Metric::kListeningWithoutTls, kG, Life::kProcess, "lossgauge_listening_without_tls", "1", "protocol", "1 while this server listens on more than loopback without TLS."},
    {Metric::kCertificateExpiry, kG, Life::kProcess, "lossgauge_tls_certificate_expiry_timestamp_seconds", "s", "", "When the certificate of our servers expires; absent without TLS."},
    {Metric::kTlsReloads, kC, Life::kProcess, "lossgauge_tls_reloads_total", "reloads", "", "Certificates of our servers that were replaced and taken."},
    {Metric::kTlsReloadErrors, kC, Life::kProcess, "lossgauge_tls_reload_errors_total", "errors", "", "Replaced certificates that could not be taken: the old ones stay."},
    {Metric::kRequestsRefused, kC, Life::kProcess, "lossgauge_requests_refused_total", "requests", "protocol,cause", "Requests, streams and connections refused before they were looked at."},
    {Metric::kSinkPending, kG, Life::kProcess, "lossgauge_sink_pending_steps", "steps", "sink", "Steps that wait to be sent; absent where the sink is not in use."},
    {Metric::kSinkSteps, kC, Life::kProcess, "lossgauge_sink_steps_sent_total", "steps", "sink", "Steps that the receiver has taken."},
    {Metric::kSinkSamples, kC, Life::kProcess, "lossgauge_sink_samples_sent_total", "samples", "sink", "Samples of these steps."},
    {Metric::kSinkDropped, kC, Life::kProcess, "lossgauge_sink_steps_dropped_total", "steps", "sink,reason", "Steps that will never be sent: given up by us, or refused by the receiver."},
    {Metric::kSinkRequests, kC, Life::kProcess, "lossgauge_sink_requests_total", "requests", "sink,result", "Requests to the receiver by how they ended. Busy, failed and unreachable ones are tried again."},
    {Metric::kSinkMoved, kC, Life::kProcess, "lossgauge_sink_timestamps_moved_total", "steps", "sink", "Steps whose timestamp was moved: to now because it lay in the future, or behind the step before it."},
    {Metric::kSinkLastSent, kG, Life::kProcess, "lossgauge_sink_last_sent_timestamp_seconds", "s", "sink", "When the receiver last took a step; absent before."},
    {Metric::kScrapes, kC, Life::kProcess, "lossgauge_scrapes_total", "scrapes", "", "Pages rendered before this one."},
    {Metric::kScrapeSeconds, kC, Life::kProcess, "lossgauge_scrape_seconds_total", "s", "", "Time spent rendering pages before this one."},
    {Metric::kScrapeBytes, kG, Life::kProcess, "lossgauge_scrape_bytes", "bytes", "", "Size of the page before this one."},
    {Metric::kDuplicatesDropped, kC, Life::kProcess, "lossgauge_duplicates_dropped_total", "series", "kind", "Runs or ranks left off pages before this one, because a duplicate series would fail the whole scrape."},
    {Metric::kProcessCpu, kC, Life::kProcess, "process_cpu_seconds_total", "s", "", "User and system CPU time."},
    {Metric::kProcessRss, kG, Life::kProcess, "process_resident_memory_bytes", "bytes", "", "Resident memory."},
    {Metric::kProcessFds, kG, Life::kProcess, "process_open_fds", "files", "", "Open file descriptors."},
    {Metric::kProcessMaxFds, kG, Life::kProcess, "process_max_fds", "files", "", "Limit of open file descriptors."},
    {Metric::kProcessThreads, kG, Life::kProcess, "process_threads", "threads", "", "Threads."},
    {Metric::kProcessStart, kG, Life::kProcess, "process_start_time_seconds", "s", "", "When the process started, by the clock of lossgauged."},
}};
// clang-format on

constexpr bool InOrder() {
  for (std::size_t i = 0; i < kCatalogue.size(); ++i) {
    if (static_cast<std::size_t>(kCatalogue[i].metric) != i || kCatalogue[i].name == nullptr) return false;
  }
  return true;
}
static_assert(InOrder(), "rows of the catalogue stand in the order of Metric, none missing");

const char* LifeText(Life life) {
  switch (life) {
    case Life::kProcess: return "process";
    case Life::kRun: return "run, lingers";
    case Life::kLive: return "while it lives";
  }
  return "";
}

}  // namespace

const MetricSpec& Spec(Metric metric) { return kCatalogue[static_cast<std::size_t>(metric)]; }

std::string CatalogueMarkdown() {
  std::string page =
      "# Metrics of lossgauged\n\n"
      "Generated from `server/export/catalogue.cc` by `lossgauge_metrics_doc`; a test keeps it current.\n\n"
      "A value that does not exist is an absent series, never 0 and never NaN. Counters exist at 0 before their first event.\n"
      "Life: *while it lives* = gone at the first scrape after the run, or the rank's process, ended; *run, lingers* = stays a few\n"
      "minutes after the end, long enough for the last scrape; *process* = as long as lossgauged.\n"
      "`lossgauge_run_...{run}` is the run over all its ranks that this lossgauged sees, ratios formed from sums; above 500 ranks on a\n"
      "page only those are exported.\n\n"
      "| name | type | unit | labels | life | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
  for (const MetricSpec& spec : kCatalogue) {
    page += std::string("| `") + spec.name + "` | " + (spec.kind == MetricKind::kCounter ? "counter" : "gauge") + " | " + spec.unit +
            " | " + spec.labels + " | " + LifeText(spec.life) + " | " + spec.help + " |\n";
  }
  return page + StepSeriesMarkdown();
}

}  // namespace lossgauge::export_
