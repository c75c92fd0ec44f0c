// Many old steps as one row of history.
#ifndef LOSSGAUGE_SERVER_STATE_THIN_STEPS_H_
#define LOSSGAUGE_SERVER_STATE_THIN_STEPS_H_

#include <vector>

#include "server/state/joined_step.h"

namespace lossgauge::state {

// `steps`: at least one, of one attempt, rising in sequence and step, none of them thinned. Pure.
//
// Sequence, step and times are those of the last; ThinnedSpan holds where it begins. Values: mean, minimum and maximum of those that are
// finite; NaN if a value was there but never finite; absent if it was never there. A mean over tokens is weighted by finite tokens and bits per
// byte by bytes, so loss stays sum over sum; the perplexity is that of the mean loss. Counts and fingerprints are summed (micro_batches and
// ranks: largest), missing ranks united, worst places those of the worst step. Values of single ranks are not kept.
StepSummary ThinSteps(const std::vector<StepSummary>& steps);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_THIN_STEPS_H_
