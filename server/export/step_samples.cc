#include "server/export/step_samples.h"

#include <array>
#include <cmath>
#include <string>

namespace lossgauge::export_ {
namespace {

using state::StepSummary;

// What is not finite is no measurement; that it happened is in by_step_nonfinite_rows.
template <auto member>
std::optional<double> Measured(const StepSummary& step) {
  const std::optional<double>& value = step.*member;
  return value && std::isfinite(*value) ? value : std::nullopt;
}

template <auto member>
std::optional<double> Counted(const StepSummary& step) {
  return static_cast<double>(step.*member);
}

// clang-format off
constexpr std::array kSeries = {
    StepSeries{"lossgauge_by_step_number", "steps", "The step's number: it goes back where a job was resumed.", &Counted<&StepSummary::step>},
    StepSeries{"lossgauge_by_step_loss_nats", "nats/token", "Loss: a ratio of sums over all ranks.", &Measured<&StepSummary::loss_nats>},
    StepSeries{"lossgauge_by_step_bits_per_byte", "bits/byte", "Bits per byte of the targets.", &Measured<&StepSummary::bits_per_byte>},
    StepSeries{"lossgauge_by_step_objective_nats", "nats/token", "What the gradient descends.", &Measured<&StepSummary::objective_nats>},
    StepSeries{"lossgauge_by_step_z_loss_nats", "nats/token", "z-loss term.", &Measured<&StepSummary::z_loss_nats>},
    StepSeries{"lossgauge_by_step_reported_loss_nats", "nats/token", "Loss that the trainer itself logs.", &Measured<&StepSummary::reported_loss_nats>},
    StepSeries{"lossgauge_by_step_accuracy_ratio", "1", "Correct tokens by finite tokens.", &Measured<&StepSummary::accuracy>},
    StepSeries{"lossgauge_by_step_grad_norm", "1", "Global gradient norm that the job handed over.", &Measured<&StepSummary::grad_norm>},
    StepSeries{"lossgauge_by_step_logit_grad_norm", "1", "Norm of the gradient with respect to the logits.", &Measured<&StepSummary::logit_grad_norm>},
    StepSeries{"lossgauge_by_step_max_abs_logit", "1", "Largest finite logit by magnitude.", &Measured<&StepSummary::max_abs_logit>},
    StepSeries{"lossgauge_by_step_log_z_nats", "nats", "Mean of log Z.", &Measured<&StepSummary::log_z_mean_nats>},
    StepSeries{"lossgauge_by_step_log_z_max_nats", "nats", "Maximum of log Z.", &Measured<&StepSummary::log_z_max_nats>},
    StepSeries{"lossgauge_by_step_learning_rate", "1", "Learning rate that the job handed over.", &Measured<&StepSummary::learning_rate>},
    StepSeries{"lossgauge_by_step_seconds", "s", "Since the step before; absent across gaps.", &Measured<&StepSummary::step_seconds>},
    StepSeries{"lossgauge_by_step_unmasked_tokens", "tokens", "Positions with a target that counts.", &Counted<&StepSummary::unmasked_tokens>},
    StepSeries{"lossgauge_by_step_nonfinite_rows", "rows", "Rows with a non-finite loss.", &Counted<&StepSummary::nonfinite_rows>},
    StepSeries{"lossgauge_by_step_ranks", "ranks", "Ranks whose records are in it.", &Counted<&StepSummary::ranks>},
};
// clang-format on

}  // namespace

std::span<const StepSeries> AllStepSeries() { return kSeries; }

std::string StepSeriesMarkdown() {
  std::string page =
      "\n## Sent, not scraped\n\n"
      "`--remote_write_url` and `--otlp_endpoint` send these for every joined step, at the step's own time, with the labels `run`, `job`, `instance` and\n"
      "those of `--sink_labels`. All are gauges; a value that was not measured, or is not finite, has no sample.\n\n"
      "| name | unit | meaning |\n| --- | --- | --- |\n";
  for (const StepSeries& series : kSeries) page += std::string("| `") + series.name + "` | " + series.unit + " | " + series.help + " |\n";
  return page;
}

}  // namespace lossgauge::export_
