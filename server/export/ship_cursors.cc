#include "server/export/ship_cursors.h"

#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/store_schema.h"

namespace lossgauge::export_ {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS sent (receiver TEXT NOT NULL, run TEXT NOT NULL, sequence INTEGER NOT NULL, last_ms INTEGER NOT NULL, "
    "in_flight INTEGER NOT NULL, updated_ns INTEGER NOT NULL, PRIMARY KEY (receiver, run)) WITHOUT ROWID";

class SqliteCursors final : public ShipCursors {
 public:
  explicit SqliteCursors(state::Database database) : database_(std::move(database)) {}

  absl::StatusOr<std::map<std::string, ShipCursor>> Load(const std::string& receiver) override {
    auto select = state::Statement::Prepare(database_.get(), "SELECT run, sequence, last_ms, in_flight, updated_ns FROM sent WHERE receiver = ?");
    if (!select.ok()) return select.status();
    select->Text(1, receiver);
    std::map<std::string, ShipCursor> cursors;
    while (true) {
      const absl::StatusOr<bool> row = select->Next();
      if (!row.ok()) return row.status();
      if (!*row) return cursors;
      ShipCursor cursor;
      cursor.sent = static_cast<std::uint64_t>(select->ColumnInt(1));
      cursor.last_ms = select->ColumnInt(2);
      cursor.in_flight = static_cast<std::uint64_t>(select->ColumnInt(3));
      cursor.updated_ns = select->ColumnInt(4);
      cursors.emplace(std::string(select->ColumnBytes(0)), cursor);
    }
  }

  absl::Status Save(const std::string& receiver, const std::map<std::string, ShipCursor>& cursors, const std::vector<std::string>& forget) override {
    absl::Status status = state::Execute(database_.get(), "BEGIN IMMEDIATE");
    if (!status.ok()) return status;
    status = Write(receiver, cursors, forget);
    if (status.ok()) return state::Execute(database_.get(), "COMMIT");
    (void)state::Execute(database_.get(), "ROLLBACK");
    return status;
  }

 private:
  absl::Status Write(const std::string& receiver, const std::map<std::string, ShipCursor>& cursors, const std::vector<std::string>& forget) {
    auto insert = state::Statement::Prepare(database_.get(), "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?, ?)");
    if (!insert.ok()) return insert.status();
    for (const auto& [run, cursor] : cursors) {
      insert->Text(1, receiver).Text(2, run).Int(3, static_cast<std::int64_t>(cursor.sent)).Int(4, cursor.last_ms);
      insert->Int(5, static_cast<std::int64_t>(cursor.in_flight)).Int(6, cursor.updated_ns);
      if (const absl::Status status = insert->Run(); !status.ok()) return status;
    }
    auto remove = state::Statement::Prepare(database_.get(), "DELETE FROM sent WHERE receiver = ? AND run = ?");
    if (!remove.ok()) return remove.status();
    for (const std::string& run : forget) {
      if (const absl::Status status = remove->Text(1, receiver).Text(2, run).Run(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const state::Database database_;
};

absl::StatusOr<state::Database> OpenDatabase(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nullptr);
  state::Database database(raw);
  if (code != SQLITE_OK) return state::SqliteStatus(raw, absl::StrCat("opening ", path));
  sqlite3_busy_timeout(raw, 1000);
  for (const char* sql : {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA temp_store = MEMORY", kSchema}) {
    if (const absl::Status status = state::Execute(raw, sql); !status.ok()) return status;
  }
  return database;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShipCursors>> ShipCursors::Open(const std::string& directory, const std::string& file_name) {
  const std::string path = directory.empty() ? ":memory:" : directory + "/" + file_name;
  absl::StatusOr<state::Database> database = OpenDatabase(path);
  if (!database.ok() && absl::IsDataLoss(database.status())) {
    spdlog::error("{}; what was sent before is not known any more: some steps may be sent twice", std::string(database.status().message()));
    for (const char* suffix : {"", "-wal", "-shm"}) unlink((path + suffix).c_str());
    database = OpenDatabase(path);
  }
  if (!database.ok()) return database.status();
  return std::unique_ptr<ShipCursors>(std::make_unique<SqliteCursors>(*std::move(database)));
}

}  // namespace lossgauge::export_
