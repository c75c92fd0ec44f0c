// What of a run is to be sent next, from the snapshot if it still holds it, else from history, and with which timestamps. No state of its own: the
// same cursor over the same steps gives the same batch, also in the process after this one.
#ifndef LOSSGAUGE_SERVER_EXPORT_STEP_BACKLOG_H_
#define LOSSGAUGE_SERVER_EXPORT_STEP_BACKLOG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/export/ship_cursors.h"
#include "server/export/step_samples.h"
#include "server/state/snapshot.h"
#include "server/state/store.h"

namespace lossgauge::export_ {

struct BacklogLimits {
  std::size_t max_steps = 200;           // of a batch
  std::int64_t max_age_ns = std::int64_t{3600} * 1'000'000'000;  // of a step, and of what a producer's clock may say of it
};

struct StepBatch {
  std::vector<TimedStep> steps;
  std::uint64_t end = 0;        // the cursor's next `sent`, if the batch is done with
  std::uint64_t too_old = 0;    // left out
  std::uint64_t missing = 0;    // sequences that nobody has any more
  std::uint64_t moved = 0;      // timestamps
  bool more = false;            // steps follow that could be sent now
};

// When a step happened, not before `last_ms` + 1: its producer's clock, unless that lies after its arrival or `max_age_ns` before it.
// `moved` says that this is not what the producer said.
std::int64_t TimestampMs(const state::StepSummary& step, std::int64_t last_ms, std::int64_t max_age_ns, state::TimeNs now_ns, bool* moved);

// `run` may be null: then only history is asked. `last_sequence`: the run's last step that may be sent. `now_ns`: no timestamp is later; steps
// that would have one wait. A batch with nothing in it may still move the cursor.
absl::StatusOr<StepBatch> NextBatch(const std::string& name, const state::RunSnapshot* run, state::HistoryReader* history, const ShipCursor& cursor,
                                    std::uint64_t last_sequence, state::TimeNs now_ns, const BacklogLimits& limits);

// The sequence before the first step that arrived at or after `since_ns`, for a run that was never sent.
absl::StatusOr<std::uint64_t> SequenceBefore(const std::string& name, const state::RunSnapshot* run, state::HistoryReader* history,
                                             std::uint64_t last_sequence, state::TimeNs since_ns);

// The last step of a run that no snapshot shows; 0: there is none.
absl::StatusOr<std::uint64_t> LastSequence(const std::string& name, state::HistoryReader* history);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_STEP_BACKLOG_H_
