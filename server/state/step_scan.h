// Steps of a run out of one of the history's two tables, in order of sequence.
#ifndef LOSSGAUGE_SERVER_STATE_STEP_SCAN_H_
#define LOSSGAUGE_SERVER_STATE_STEP_SCAN_H_

#include <vector>

#include "absl/status/status.h"
#include "server/state/store.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {

// Adds to `steps` until there are query.limit. Walks in the order of sequence from query.after_sequence on, and jumps by the index over long
// stretches outside a range of steps: a page costs about the same wherever in a run it lies. `looked_at` counts, over calls, rows of other attempts;
// RESOURCE_EXHAUSTED beyond 200 000.
absl::Status ScanSteps(sqlite3* database, bool thinned, const StepQuery& query, int* looked_at, std::vector<StepSummary>* steps);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STEP_SCAN_H_
