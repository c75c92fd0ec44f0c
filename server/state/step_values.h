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
  std::optional<double> StepSummary::*member;
  MeanWeight weight;
};

// The order is part of the history's format: append only.
inline constexpr std::array<StepValue, kStepValueCount> kStepValues = {{
    {&StepSummary::loss_nats, MeanWeight::kFiniteTokens},
    {&StepSummary::perplexity, MeanWeight::kExpOfLoss},
    {&StepSummary::bits_per_byte, MeanWeight::kTargetBytes},
    {&StepSummary::grad_norm, MeanWeight::kSteps},
    {&StepSummary::logit_grad_norm, MeanWeight::kSteps},
    {&StepSummary::max_abs_logit, MeanWeight::kSteps},
    {&StepSummary::log_z_mean_nats, MeanWeight::kFiniteTokens},
    {&StepSummary::log_z_max_nats, MeanWeight::kSteps},
    {&StepSummary::z_loss_nats, MeanWeight::kFiniteTokens},
    {&StepSummary::objective_nats, MeanWeight::kFiniteTokens},
    {&StepSummary::learning_rate, MeanWeight::kSteps},
    {&StepSummary::reported_loss_nats, MeanWeight::kSteps},
    {&StepSummary::accuracy, MeanWeight::kFiniteTokens},
    {&StepSummary::step_seconds, MeanWeight::kSteps},
    {&StepSummary::denominator_min, MeanWeight::kSteps},
    {&StepSummary::denominator_max, MeanWeight::kSteps},
    {&StepSummary::hidden_grad_norm, MeanWeight::kSteps},
    {&StepSummary::head_grad_norm, MeanWeight::kSteps},
}};
inline constexpr std::size_t kLossValue = 0;  // its place in the list

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STEP_VALUES_H_
