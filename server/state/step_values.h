// The values of a step that may be absent, in one list: what codec, thinning, messages and exports walk over.
#ifndef LOSSGAUGE_SERVER_STATE_STEP_VALUES_H_
#define LOSSGAUGE_SERVER_STATE_STEP_VALUES_H_

#include <array>
#include <optional>

#include "server/state/joined_step.h"

namespace lossgauge::state {

// What the mean over several steps is weighted by, so that a ratio of sums stays one.
enum class MeanWeight {
  kSteps,         // each step counts the same
  kFiniteTokens,  // a mean over tokens
  kTargetBytes,
  kExpOfLoss,     // no mean of its own: exp of the mean loss
};

struct StepValue {
  const char* name;  // as in lossgauge.v1.Step
  std::optional<double> StepSummary::*member;
  MeanWeight weight;
};

// The order is part of the history's format: append only.
inline constexpr std::array<StepValue, kStepValueCount> kStepValues = {{
    {"loss_nats", &StepSummary::loss_nats, MeanWeight::kFiniteTokens},
    {"perplexity", &StepSummary::perplexity, MeanWeight::kExpOfLoss},
    {"bits_per_byte", &StepSummary::bits_per_byte, MeanWeight::kTargetBytes},
    {"grad_norm", &StepSummary::grad_norm, MeanWeight::kSteps},
    {"logit_grad_norm", &StepSummary::logit_grad_norm, MeanWeight::kSteps},
    {"max_abs_logit", &StepSummary::max_abs_logit, MeanWeight::kSteps},
    {"log_z_mean_nats", &StepSummary::log_z_mean_nats, MeanWeight::kFiniteTokens},
    {"log_z_max_nats", &StepSummary::log_z_max_nats, MeanWeight::kSteps},
    {"z_loss_nats", &StepSummary::z_loss_nats, MeanWeight::kFiniteTokens},
    {"objective_nats", &StepSummary::objective_nats, MeanWeight::kFiniteTokens},
    {"learning_rate", &StepSummary::learning_rate, MeanWeight::kSteps},
    {"reported_loss_nats", &StepSummary::reported_loss_nats, MeanWeight::kSteps},
    {"accuracy", &StepSummary::accuracy, MeanWeight::kFiniteTokens},
    {"step_seconds", &StepSummary::step_seconds, MeanWeight::kSteps},
    {"denominator_min", &StepSummary::denominator_min, MeanWeight::kSteps},
    {"denominator_max", &StepSummary::denominator_max, MeanWeight::kSteps},
    {"hidden_grad_norm", &StepSummary::hidden_grad_norm, MeanWeight::kSteps},
    {"head_grad_norm", &StepSummary::head_grad_norm, MeanWeight::kSteps},
}};
inline constexpr std::size_t kLossValue = 0;  // its place in the list

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STEP_VALUES_H_
