// One step of a run over all ranks that this process sees.
#ifndef LOSSGAUGE_SERVER_STATE_JOINED_STEP_H_
#define LOSSGAUGE_SERVER_STATE_JOINED_STEP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/records.h"

namespace lossgauge::state {

struct Place {
  std::uint32_t rank = 0;
  std::int64_t position = -1;
  std::int64_t token = -1;  // target of a worst row, column of a worst logit
  double value = 0;
};

struct RankSummary {
  std::uint32_t rank = 0;
  std::optional<double> loss_nats;
  std::optional<double> grad_norm;
  std::optional<double> max_abs_logit;
  std::uint64_t unmasked_tokens = 0;
  std::uint64_t nonfinite_rows = 0;
  std::uint64_t lost_before = 0;
};

// One value over ranks: those that have it and whose value is finite.
struct ValueSpread {
  std::uint64_t ranks = 0;
  double min = 0;
  double mean = 0;
  double max = 0;
  std::uint32_t min_rank = 0;
  std::uint32_t max_rank = 0;
};

// Stands for the ranks of a step that has too many of them.
struct RankSpread {
  std::uint64_t ranks = 0;
  ValueSpread loss_nats;
  ValueSpread grad_norm;
  ValueSpread max_abs_logit;
  ValueSpread unmasked_tokens;
};

inline constexpr std::size_t kStepValueCount = 18;  // values of a step that may be absent: step_values.h lists them

// What a row of history stands for that was thinned: many steps, whose means stand in the StepSummary itself.
struct ThinnedSpan {
  std::uint64_t steps = 0;
  std::int64_t first_step = 0;
  std::uint64_t first_sequence = 0;
  TimeNs first_receive_time_ns = 0;
  std::uint64_t nonfinite_steps = 0;  // that have a value which is not finite, and is in no mean, minimum or maximum
  std::array<std::optional<double>, kStepValueCount> min;
  std::array<std::optional<double>, kStepValueCount> max;
};

// What is kept of a joined step: in snapshots, in history and on the wire. Absent = not measured.
// Sums run over one rank of each tensor-parallel group and all micro-batches; losses are ratios of those sums.
struct StepSummary {
  std::uint64_t sequence = 0;  // per run, rising by one; 0 = not assigned yet
  std::string attempt;
  std::int64_t step = 0;
  TimeNs receive_time_ns = 0;  // of the step's last record
  TimeNs publish_time_ns = 0;  // latest producer wall clock, informative
  std::uint32_t ranks = 0;
  // Ranks with has_loss that gave no record within the join timeout: of this node, or of the whole job where that is watched (the first 1024).
  std::vector<std::uint32_t> missing_ranks;
  bool complete = true;

  std::optional<double> loss_nats;
  std::optional<double> perplexity;
  std::optional<double> bits_per_byte;
  std::optional<double> grad_norm;
  std::optional<double> logit_grad_norm;
  std::optional<double> max_abs_logit;
  std::optional<double> log_z_mean_nats;
  std::optional<double> log_z_max_nats;
  std::optional<double> z_loss_nats;  // z_loss_sum / finite_tokens
  std::optional<double> objective_nats;
  std::optional<double> learning_rate;
  std::optional<double> reported_loss_nats;
  std::optional<double> accuracy;  // correct_tokens / finite_tokens
  std::optional<double> step_seconds;  // since the step before of the same attempt, by the producers' boot clock; absent across gaps
  std::optional<double> denominator_min;
  std::optional<double> denominator_max;
  std::optional<double> hidden_grad_norm;
  std::optional<double> head_grad_norm;  // of the only rank that has one

  std::uint64_t tokens = 0;
  std::uint64_t unmasked_tokens = 0;
  std::uint64_t finite_tokens = 0;
  std::uint64_t nonfinite_rows = 0;
  std::uint64_t nonfinite_grad_rows = 0;
  std::uint64_t bad_targets = 0;
  std::uint64_t micro_batches = 0;  // of one rank (the maximum)
  std::uint64_t target_bytes = 0;
  std::uint64_t target_fingerprint = 0;  // summed mod 2^64 over the ranks counted
  std::uint64_t mask_fingerprint = 0;

  std::optional<Place> worst_row;
  std::optional<Place> worst_logit;
  std::optional<Place> first_nonfinite_row;
  std::vector<RankSummary> rank_steps;  // by rank; only those that stand apart if `spread` is set
  std::shared_ptr<const RankSpread> spread;  // null: rank_steps has all

  std::shared_ptr<const ThinnedSpan> thinned;  // null: one step, as it was
};

// What detectors get: the summary and the ranks' own records. Lives only while the step passes through the pipeline.
struct JoinedStep {
  std::string run;
  lg_layout layout{};  // of the lowest rank present; sizes are equal over ranks or the step is not joined
  StepSummary summary;
  std::vector<RankSample> samples;  // block 0 ("train"), one a rank, by rank
  bool all_ranks_visible = false;  // records of every rank of the world that owns a loss are here: accounting may be judged
};

// Joins the samples of one step (same run, attempt, step; block 0; sorted by rank). Pure. Fills everything but sequence, missing_ranks,
// complete and step_seconds.
JoinedStep JoinSamples(std::vector<RankSample> samples);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JOINED_STEP_H_
