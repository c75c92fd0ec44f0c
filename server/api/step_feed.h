// The steps of a run in order of sequence, from wherever they are kept: history for the old ones, the snapshot for the recent ones.
#ifndef LOSSGAUGE_SERVER_API_STEP_FEED_H_
#define LOSSGAUGE_SERVER_API_STEP_FEED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/state/snapshot.h"
#include "server/state/store.h"

namespace lossgauge::api {

// Steps with thousands of ranks are large: history is read in pieces.
inline constexpr int kStepsPerRead = 500;

using StepList = std::vector<std::shared_ptr<const state::StepSummary>>;

// True if steps after `after_sequence` may have to come from history, which means reading a file.
bool NeedsHistory(const state::RunSnapshot& run, std::uint64_t after_sequence);

// At most query.limit steps with a greater sequence than query.after_sequence that match attempt and range, rising. `history` may be null.
// Fewer than the limit means that there are no more. Thread-safe as far as `history` is.
absl::StatusOr<StepList> ReadAfter(const state::RunSnapshot& run, state::HistoryReader* history, const state::StepQuery& query);

// The newest query.limit matching steps, rising; after_sequence is not looked at.
absl::StatusOr<StepList> ReadTail(const state::RunSnapshot& run, state::HistoryReader* history, const state::StepQuery& query);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_STEP_FEED_H_
