#include "server/state/store_schema.h"

#include "absl/strings/str_cat.h"

namespace lossgauge::state {
namespace {

// Steps are clustered by (run, sequence): a live run appends to one end of its own range. The index serves queries by step number.
//
// Schema 1 had neither thinned nor events; early files of schema 2 have neither journal nor policies. Whatever is only added needs no other migration than
// to be created; a version that changes a table rewrites it in CheckAndCreate, by the version found.
constexpr const char* kSchema = R"sql(
CREATE TABLE IF NOT EXISTS runs(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state BLOB NOT NULL DEFAULT x'', judge BLOB NOT NULL DEFAULT x'',
  updated_ns INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS cursors(
  segment BLOB PRIMARY KEY, run TEXT NOT NULL, attempt TEXT NOT NULL, rank INTEGER NOT NULL, next_steps INTEGER NOT NULL,
  next_events INTEGER NOT NULL, ended INTEGER NOT NULL, totals BLOB NOT NULL, updated_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps(
  run_id INTEGER NOT NULL, sequence INTEGER NOT NULL, step INTEGER NOT NULL, receive_ns INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY(run_id, sequence)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_step ON steps(run_id, step);
CREATE TABLE IF NOT EXISTS incidents(
  id TEXT PRIMARY KEY, run_id INTEGER NOT NULL, open INTEGER NOT NULL, onset_ns INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS incidents_by_run ON incidents(run_id, onset_ns);
CREATE TABLE IF NOT EXISTS verdicts(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS verdicts_by_run ON verdicts(run_id, id);
CREATE TABLE IF NOT EXISTS ledger(
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, action INTEGER NOT NULL, actor TEXT NOT NULL, comment TEXT NOT NULL,
  attempt TEXT NOT NULL, time_ns INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS ledger_by_run ON ledger(run_id, id);
CREATE TABLE IF NOT EXISTS thinned(
  run_id INTEGER NOT NULL, sequence INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, receive_ns INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(run_id, sequence)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS thinned_by_step ON thinned(run_id, last_step, first_step);
CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, receive_ns INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_run ON events(run_id, id);
CREATE TABLE IF NOT EXISTS journal(
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, begins INTEGER NOT NULL, time_ns INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS policies(
  id INTEGER PRIMARY KEY AUTOINCREMENT, version TEXT NOT NULL, time_ns INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE(version, data));
CREATE INDEX IF NOT EXISTS journal_by_run ON journal(run_id, id);
CREATE INDEX IF NOT EXISTS journal_beginnings ON journal(run_id, id) WHERE begins=1;
)sql";

// "lgst": tells our files from any other SQLite file.
constexpr int kApplicationId = 0x6c677374;

absl::StatusOr<std::int64_t> ReadPragma(sqlite3* database, const char* sql) {
  auto statement = Statement::Prepare(database, sql);
  if (!statement.ok()) return statement.status();
  const auto row = statement->Next();
  if (!row.ok()) return row.status();
  return *row ? statement->ColumnInt(0) : 0;
}

absl::Status CheckAndCreate(sqlite3* database) {
  const auto application = ReadPragma(database, "PRAGMA application_id");
  if (!application.ok()) return application.status();
  const auto version = ReadPragma(database, "PRAGMA user_version");
  if (!version.ok()) return version.status();
  const auto objects = ReadPragma(database, "SELECT count(*) FROM sqlite_schema");
  if (!objects.ok()) return objects.status();
  if (*objects > 0 && *application != kApplicationId) return absl::DataLossError("the file holds another program's tables");
  if (*version > kSchemaVersion) {
    return absl::DataLossError(absl::StrCat("schema version ", *version, " is newer than this program's ", kSchemaVersion));
  }
  if (auto status = Execute(database, "BEGIN IMMEDIATE"); !status.ok()) return status;
  if (auto status = Execute(database, kSchema); !status.ok()) return status;
  const std::string marks = absl::StrCat("PRAGMA application_id=", kApplicationId, "; PRAGMA user_version=", kSchemaVersion);
  if (auto status = Execute(database, marks.c_str()); !status.ok()) return status;
  return Execute(database, "COMMIT");
}

}  // namespace

absl::Status SqliteStatus(sqlite3* database, std::string_view what) {
  const int code = sqlite3_errcode(database);
  const std::string message = absl::StrCat(std::string(what), ": ", sqlite3_errmsg(database));
  switch (code & 0xff) {
    case SQLITE_FULL: return absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return absl::DataLossError(message);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return absl::PermissionDeniedError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return absl::UnavailableError(message);
    default: return absl::InternalError(message);
  }
}

absl::Status Execute(sqlite3* database, const char* sql) {
  if (sqlite3_exec(database, sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteStatus(database, std::string_view(sql).substr(0, 40));
  }
  return absl::OkStatus();
}

absl::StatusOr<Database> OpenForWriting(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", sqlite3_errstr(code)));
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 200);
  // NORMAL in WAL mode survives the death of the process at any moment; only a power cut may take the last commits.
  auto mode = Statement::Prepare(raw, "PRAGMA journal_mode=WAL");
  if (!mode.ok()) return mode.status();
  if (const auto row = mode->Next(); !row.ok()) return row.status();
  mode->Reset();
  if (auto status = Execute(raw, "PRAGMA synchronous=NORMAL; PRAGMA cache_size=-2048; PRAGMA wal_autocheckpoint=1000"); !status.ok()) {
    return status;
  }
  if (auto status = CheckAndCreate(raw); !status.ok()) return status;
  return database;
}

absl::StatusOr<Database> OpenForReading(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READONLY, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", sqlite3_errstr(code)));
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 200);
  if (auto status = Execute(raw, "PRAGMA cache_size=-1024"); !status.ok()) return status;
  return database;
}

absl::StatusOr<Statement> Statement::Prepare(sqlite3* database, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(database, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
    return SqliteStatus(database, "prepare");
  }
  return Statement(statement);
}

absl::Status Statement::Run() {
  const int code = sqlite3_step(statement_);
  absl::Status status = code == SQLITE_DONE || code == SQLITE_ROW ? absl::OkStatus() : SqliteStatus(sqlite3_db_handle(statement_), "write");
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  return status;
}

absl::StatusOr<bool> Statement::Next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqliteStatus(sqlite3_db_handle(statement_), "read");
}

std::string_view Statement::ColumnBytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(data), static_cast<std::size_t>(size));
}

}  // namespace lossgauge::state
