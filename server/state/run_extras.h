// What hangs on a run in the history besides its steps: verdicts, incidents, events, the ledger and the journal. So many of each are kept; all go with the run.
#ifndef LOSSGAUGE_SERVER_STATE_RUN_EXTRAS_H_
#define LOSSGAUGE_SERVER_STATE_RUN_EXTRAS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/records.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {

// In pieces: each call charges what it does to `rows_left`, which it may overdraw by the price of one count, about 700 rows.
class RunExtras {
 public:
  static constexpr std::size_t kKinds = 5;

  explicit RunExtras(sqlite3* database) : database_(database) {}
  absl::Status Prepare();
  // Drops the oldest of a kind beyond what is kept of it. True: more of it are to go.
  absl::StatusOr<bool> Trim(std::int64_t run_id, std::size_t kind, std::int64_t* rows_left);
  // Drops the run with all that hangs on it, if nothing was written of it since `before_ns` and no step is left of it.
  enum class Fate { kStays, kIsGoing, kIsGone };
  absl::StatusOr<Fate> DropRunIfOld(std::int64_t run_id, TimeNs before_ns, std::int64_t* rows_left);

 private:
  struct Statements {
    Statement count;      // ?1 run, ?2 at most so many
    Statement drop_kept;  // ?1 run, ?2 so many of the oldest that may go
    Statement drop_any;   // ?1 run, ?2 so many
  };
  absl::StatusOr<std::int64_t> Drop(Statement* statement, std::int64_t run_id, std::int64_t rows, std::int64_t* rows_left);

  sqlite3* const database_;
  std::array<Statements, kKinds> kinds_;
  Statement run_updated_, drop_run_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RUN_EXTRAS_H_
