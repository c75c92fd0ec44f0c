// What is kept of the ranks of a step when there are too many to keep each: minimum, mean and maximum, and who stands apart.
#ifndef LOSSGAUGE_SERVER_STATE_RANK_SPREAD_H_
#define LOSSGAUGE_SERVER_STATE_RANK_SPREAD_H_

#include <cstddef>

#include "server/state/joined_step.h"

namespace lossgauge::state {

RankSummary SummaryOf(const RankSample& sample);

// With more than `max_rank_steps` of them: sets `spread`, and leaves in `rank_steps` only ranks with non-finite or lost records and those whose
// loss is far from the median (32 at most, by rank). Else, and when that was done before, changes nothing.
void BoundRankSteps(std::size_t max_rank_steps, StepSummary* summary);

// A rank more, come late.
void AddRankStep(const RankSample& sample, StepSummary* summary);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RANK_SPREAD_H_
