// The SQLite file: opening, schema, and thin ownership of handles and statements.
#ifndef LOSSGAUGE_SERVER_STATE_STORE_SCHEMA_H_
#define LOSSGAUGE_SERVER_STATE_STORE_SCHEMA_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossgauge::state {

inline constexpr int kSchemaVersion = 2;

struct DatabaseCloser {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, DatabaseCloser>;

// What SQLite says of the last failure, as a status that names `what` we were doing. A full disk is RESOURCE_EXHAUSTED.
absl::Status SqliteStatus(sqlite3* database, std::string_view what);

// Opens for writing, brings the schema up, sets WAL. DATA_LOSS: the file is not ours, damaged, or of a newer schema; whatever
// may pass (locked, full, not readable) is another code, and the file is left as it is.
absl::StatusOr<Database> OpenForWriting(const std::string& path);
absl::StatusOr<Database> OpenForReading(const std::string& path);

absl::Status Execute(sqlite3* database, const char* sql);

// A prepared statement; Bind* count parameters from 1. Reset happens at each Run or First.
class Statement {
 public:
  Statement() = default;
  static absl::StatusOr<Statement> Prepare(sqlite3* database, const char* sql);
  Statement(Statement&& other) noexcept : statement_(other.statement_) { other.statement_ = nullptr; }
  Statement& operator=(Statement&& other) noexcept {
    std::swap(statement_, other.statement_);
    return *this;
  }
  ~Statement() { sqlite3_finalize(statement_); }

  Statement& Int(int index, std::int64_t value) {
    sqlite3_bind_int64(statement_, index, value);
    return *this;
  }
  // The bytes must live until the statement has run.
  Statement& Text(int index, std::string_view value) {
    sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
    return *this;
  }
  Statement& Blob(int index, std::string_view value) {
    sqlite3_bind_blob(statement_, index, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
    return *this;
  }
  absl::Status Run();                // for statements without rows
  absl::StatusOr<bool> Next();       // true: a row is there
  void Reset() { sqlite3_reset(statement_); }
  std::int64_t ColumnInt(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string_view ColumnBytes(int column) const;  // valid until the next call

 private:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STORE_SCHEMA_H_
