#include "server/state/run_extras.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossgauge::state {
namespace {

constexpr std::int64_t kEntriesPerRow = 16;   // of an index that are counted, for the price of a row
constexpr std::int64_t kMostTooMany = 1024;   // that one count sees
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct Kind {
  const char* table;
  const char* order;   // oldest first
  const char* may_go;  // beyond how many are kept
  std::int64_t kept;   // per run
};
// The ledger is small and says who did what: it goes last, and only with its run. The journal is bounded by its bytes.
constexpr std::array<Kind, RunExtras::kKinds> kAll = {{{"verdicts", "id", "1", 10'000},
                                                       {"incidents", "onset_ns", "open=0", 10'000},
                                                       {"events", "id", "1", 10'000},
                                                       {"ledger", "id", "0", kNoLimit},
                                                       {"journal", "id", "0", kNoLimit}}};

absl::Status Make(sqlite3* database, const std::string& sql, Statement* statement) {
  auto prepared = Statement::Prepare(database, sql.c_str());
  if (!prepared.ok()) return prepared.status();
  *statement = *std::move(prepared);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunExtras::Prepare() {
  for (std::size_t i = 0; i < kKinds; ++i) {
    const Kind& kind = kAll[i];
    const std::string of_run = absl::StrCat(kind.table, " WHERE run_id=?1");
    const std::string drop = absl::StrCat("DELETE FROM ", kind.table, " WHERE id IN (SELECT id FROM ", of_run);
    const std::pair<Statement*, std::string> wanted[] = {
        {&kinds_[i].count, absl::StrCat("SELECT count(*) FROM (SELECT 1 FROM ", of_run, " LIMIT ?2)")},
        {&kinds_[i].drop_kept, absl::StrCat(drop, " AND ", kind.may_go, " ORDER BY ", kind.order, " LIMIT ?2)")},
        {&kinds_[i].drop_any, absl::StrCat(drop, " LIMIT ?2)")},
    };
    for (const auto& [statement, sql] : wanted) {
      if (auto status = Make(database_, sql, statement); !status.ok()) return status;
    }
  }
  if (auto status = Make(database_,
                         "SELECT updated_ns FROM runs WHERE id=?1 AND NOT EXISTS(SELECT 1 FROM steps WHERE run_id=?1) AND NOT EXISTS(SELECT 1 FROM "
                         "thinned WHERE run_id=?1)",
                         &run_updated_);
      !status.ok()) {
    return status;
  }
  return Make(database_, "DELETE FROM runs WHERE id=?1", &drop_run_);
}

absl::StatusOr<bool> RunExtras::Trim(std::int64_t run_id, std::size_t kind, std::int64_t* rows_left) {
  const std::int64_t kept = kAll[kind].kept;
  if (kept == kNoLimit) return false;
  const std::int64_t at_most = kept + kMostTooMany;
  Statement& count = kinds_[kind].count;
  const auto row = count.Int(1, run_id).Int(2, at_most).Next();
  const std::int64_t found = row.ok() && *row ? count.ColumnInt(0) : 0;
  count.Reset();
  if (!row.ok()) return row.status();
  *rows_left -= found / kEntriesPerRow;
  if (found <= kept) return false;
  const auto dropped = Drop(&kinds_[kind].drop_kept, run_id, std::min(found - kept, std::max<std::int64_t>(*rows_left, 1)), rows_left);
  if (!dropped.ok()) return dropped.status();
  return *dropped > 0 && (found == at_most || *dropped < found - kept);
}

absl::StatusOr<RunExtras::Fate> RunExtras::DropRunIfOld(std::int64_t run_id, TimeNs before_ns, std::int64_t* rows_left) {
  const auto row = run_updated_.Int(1, run_id).Next();
  const bool is_old = row.ok() && *row && run_updated_.ColumnInt(0) < before_ns;
  run_updated_.Reset();
  if (!row.ok()) return row.status();
  if (!is_old) return Fate::kStays;
  for (Statements& kind : kinds_) {
    for (std::int64_t dropped = 1; dropped > 0;) {
      if (*rows_left <= 0) return Fate::kIsGoing;
      const auto count = Drop(&kind.drop_any, run_id, *rows_left, rows_left);
      if (!count.ok()) return count.status();
      dropped = *count;
    }
  }
  if (auto status = drop_run_.Int(1, run_id).Run(); !status.ok()) return status;
  return Fate::kIsGone;
}

absl::StatusOr<std::int64_t> RunExtras::Drop(Statement* statement, std::int64_t run_id, std::int64_t rows, std::int64_t* rows_left) {
  if (auto status = statement->Int(1, run_id).Int(2, rows).Run(); !status.ok()) return status;
  const std::int64_t dropped = sqlite3_changes(database_);
  *rows_left -= dropped;
  return dropped;
}

}  // namespace lossgauge::state
