// Keeps the history within its age and size: steps that are old become rows of 64 with mean, minimum and maximum, what is older still is
// dropped; beyond the size, the oldest steps are thinned first, and once nothing is left to thin, the oldest rows dropped.
#ifndef LOSSGAUGE_SERVER_STATE_HISTORY_KEEPER_H_
#define LOSSGAUGE_SERVER_STATE_HISTORY_KEEPER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/run_extras.h"
#include "server/state/store.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {

// Works on the drain thread's connection, so each call does a bounded amount: about a thousand rows or a MiB of them, whichever comes first, and
// whatever they are.
class HistoryKeeper {
 public:
  // `bytes`: how much of the file is in use. `on_runs_dropped`: ids of runs are no longer valid.
  HistoryKeeper(sqlite3* database, const StoreOptions& options, std::function<std::uint64_t()> bytes, std::function<void()> on_runs_dropped)
      : database_(database),
        options_(options),
        bytes_(std::move(bytes)),
        on_runs_dropped_(std::move(on_runs_dropped)),
        extras_(database) {}

  absl::Status Prepare();
  // One transaction. True: more is waiting, call again soon.
  absl::StatusOr<bool> Work(TimeNs now_ns);
  const HistoryCounts& counts() const { return counts_; }

 private:
  struct Oldest {
    std::optional<TimeNs> whole;    // of the oldest step that is there as it was
    std::optional<TimeNs> thinned;  // of the oldest thinned row
    bool can_thin = true;           // the last try found a whole bucket
  };
  struct Statements {
    Statement runs_after, oldest_step, oldest_thinned, read_steps, size_steps, drop_steps, put_thinned, drop_thinned_to, drop_one_thinned;
  };

  absl::Status WorkWithin(TimeNs now_ns, bool* more);
  absl::Status Sweep(TimeNs now_ns, bool* more);
  absl::Status KeepAge(std::int64_t run_id, TimeNs now_ns, bool* more);
  absl::Status KeepSize(bool* more);
  // Steps older than `before_ns` (any age without it) become one row; false if there is no whole bucket of them.
  absl::StatusOr<bool> ThinOne(std::int64_t run_id, std::optional<TimeNs> before_ns);
  absl::StatusOr<std::uint64_t> DropSteps(std::int64_t run_id, std::optional<TimeNs> before_ns);
  absl::StatusOr<std::uint64_t> DropThinned(std::int64_t run_id, std::optional<TimeNs> before_ns);
  absl::Status Look(std::int64_t run_id);
  absl::Status KeepSteps(std::int64_t run_id, TimeNs now_ns);
  bool HasBudget() const { return rows_left_ > 0 && bytes_left_ > 0; }

  sqlite3* const database_;
  const StoreOptions options_;
  const std::function<std::uint64_t()> bytes_;
  const std::function<void()> on_runs_dropped_;
  Statements statements_;
  RunExtras extras_;
  std::map<std::int64_t, Oldest> runs_;  // as of the last look
  std::int64_t swept_to_ = 0;            // run ids up to here were looked at in this sweep
  std::size_t swept_part_ = 0;           // of the run that comes next: its steps, then each kind, then the run itself
  bool is_sweeping_ = false;
  TimeNs next_sweep_ns_ = 0;
  std::int64_t rows_left_ = 0;
  std::int64_t bytes_left_ = 0;
  HistoryCounts counts_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_HISTORY_KEEPER_H_
