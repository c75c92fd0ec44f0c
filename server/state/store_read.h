// History for RPC threads, over a read-only connection of its own.
#ifndef LOSSGAUGE_SERVER_STATE_STORE_READ_H_
#define LOSSGAUGE_SERVER_STATE_STORE_READ_H_

#include <memory>
#include <string>

#include "server/state/store.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {

std::shared_ptr<HistoryReader> MakeHistoryReader(const std::string& path);

// A run's ledger, oldest entry first, over whichever connection.
absl::StatusOr<std::vector<LedgerEntry>> SelectLedger(sqlite3* database, const std::string& run);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STORE_READ_H_
