#include "server/state/store_read.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"
#include "server/state/step_scan.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {
namespace {

// One connection behind a mutex: history is read rarely, and the writer is never waited for (WAL).
class SqliteReader final : public HistoryReader {
 public:
  explicit SqliteReader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::vector<StepSummary>> ReadSteps(const StepQuery& query) override;
  absl::StatusOr<std::vector<Incident>> ReadIncidents(const std::string& run, bool open_only, int limit, int offset) override;
  absl::StatusOr<std::optional<Incident>> FindIncident(const std::string& run, const std::string& id) override;
  absl::StatusOr<std::vector<Verdict>> ReadVerdicts(const std::string& run, int limit, int offset) override;
  absl::StatusOr<EventPage> ReadEvents(const std::string& run, std::int64_t after_id, int limit) override;
  absl::StatusOr<std::vector<LedgerEntry>> ReadLedger(const std::string& run) override;
  absl::StatusOr<std::vector<PolicyRow>> ReadPolicies(const std::string& version) override;
  absl::StatusOr<JournalPage> ReadJournal(const std::string& run, std::int64_t after_id, TimeNs from_ns, TimeNs to_ns, std::size_t max_bytes) override;
  absl::StatusOr<std::vector<StoredRun>> ReadRuns(int limit) override;
  absl::StatusOr<std::optional<StoredRun>> FindRun(const std::string& run) override;

 private:
  absl::Status Open();
  absl::StatusOr<Statement> Prepare(const std::string& sql);

  const std::string path_;
  std::mutex mutex_;
  Database database_;
};

// A read transaction: what two statements see is of one moment. Ends with its scope.
class OneMoment {
 public:
  explicit OneMoment(sqlite3* database) : database_(database), status_(Execute(database, "BEGIN")) {}
  ~OneMoment() { (void)Execute(database_, "COMMIT"); }
  const absl::Status& status() const { return status_; }

 private:
  sqlite3* const database_;
  const absl::Status status_;
};

absl::Status SqliteReader::Open() {
  if (database_) return absl::OkStatus();
  auto opened = OpenForReading(path_);
  if (!opened.ok()) return opened.status();
  database_ = *std::move(opened);
  return absl::OkStatus();
}

absl::StatusOr<Statement> SqliteReader::Prepare(const std::string& sql) {
  if (auto status = Open(); !status.ok()) return status;
  return Statement::Prepare(database_.get(), sql.c_str());
}

absl::StatusOr<std::vector<StepSummary>> SqliteReader::ReadSteps(const StepQuery& query) {
  std::lock_guard lock(mutex_);
  if (auto status = Open(); !status.ok()) return status;
  const OneMoment moment(database_.get());
  if (!moment.status().ok()) return moment.status();
  std::vector<StepSummary> steps;
  int looked_at = 0;
  // All thinned rows of a run lie before all others: thinning takes the oldest.
  for (const bool thinned : {!query.newest_first, query.newest_first}) {
    if ((thinned && !query.thinned) || static_cast<int>(steps.size()) >= query.limit) continue;
    if (auto status = ScanSteps(database_.get(), thinned, query, &looked_at, &steps); !status.ok()) return status;
  }
  return steps;
}

// Up to `limit` of the statement's rows, column 0 of each; those that `decode` cannot read are passed over.
template <class Item>
absl::StatusOr<std::vector<Item>> ReadReadable(Statement* statement, int limit, std::optional<Item> (*decode)(std::string_view)) {
  std::vector<Item> items;
  while (static_cast<int>(items.size()) < limit) {
    const auto row = statement->Next();
    if (!row.ok()) return row.status();
    if (!*row) break;
    if (auto item = decode(statement->ColumnBytes(0))) items.push_back(*std::move(item));
  }
  return items;
}

absl::StatusOr<std::vector<Incident>> SqliteReader::ReadIncidents(const std::string& run, bool open_only, int limit, int offset) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare(absl::StrCat("SELECT data FROM incidents WHERE run_id=(SELECT id FROM runs WHERE name=?1)",
                                        open_only ? " AND open=1" : "", " ORDER BY onset_ns DESC, id DESC LIMIT -1 OFFSET ?2"));
  if (!statement.ok()) return statement.status();
  statement->Text(1, run).Int(2, offset);
  return ReadReadable(&*statement, limit, DecodeIncident);
}

absl::StatusOr<std::optional<Incident>> SqliteReader::FindIncident(const std::string& run, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare("SELECT data FROM incidents WHERE id=?2 AND run_id=(SELECT id FROM runs WHERE name=?1)");
  if (!statement.ok()) return statement.status();
  const auto row = statement->Text(1, run).Text(2, id).Next();
  if (!row.ok()) return row.status();
  if (!*row) return std::nullopt;
  return DecodeIncident(statement->ColumnBytes(0));
}

absl::StatusOr<std::vector<Verdict>> SqliteReader::ReadVerdicts(const std::string& run, int limit, int offset) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare(
      "SELECT data FROM verdicts WHERE run_id=(SELECT id FROM runs WHERE name=?1) ORDER BY id DESC LIMIT -1 OFFSET ?2");
  if (!statement.ok()) return statement.status();
  statement->Text(1, run).Int(2, offset);
  return ReadReadable(&*statement, limit, DecodeVerdict);
}

absl::StatusOr<EventPage> SqliteReader::ReadEvents(const std::string& run, std::int64_t after_id, int limit) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare("SELECT id,data FROM events WHERE run_id=(SELECT id FROM runs WHERE name=?1) AND id>?2 ORDER BY id LIMIT ?3");
  if (!statement.ok()) return statement.status();
  statement->Text(1, run).Int(2, after_id).Int(3, std::int64_t{limit} + 1);
  EventPage page;
  page.last_id = after_id;
  for (int rows = 0;; ++rows) {
    const auto row = statement->Next();
    if (!row.ok()) return row.status();
    page.more = *row && rows == limit;
    if (!*row || page.more) return page;
    page.last_id = statement->ColumnInt(0);
    if (auto event = DecodeEvent(statement->ColumnBytes(1))) {
      page.events.emplace_back(page.last_id, *std::move(event));
    } else {
      ++page.damaged;
    }
  }
}

absl::StatusOr<std::vector<LedgerEntry>> SqliteReader::ReadLedger(const std::string& run) {
  std::lock_guard lock(mutex_);
  if (auto status = Open(); !status.ok()) return status;
  return SelectLedger(database_.get(), run);
}

absl::StatusOr<std::vector<PolicyRow>> SqliteReader::ReadPolicies(const std::string& version) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare("SELECT data,time_ns FROM policies WHERE version=?1 ORDER BY id DESC LIMIT 16");
  if (!statement.ok()) return statement.status();
  statement->Text(1, version);
  std::vector<PolicyRow> policies;
  for (auto row = statement->Next();; row = statement->Next()) {
    if (!row.ok()) return row.status();
    if (!*row) return policies;
    auto policy = DecodePolicy(statement->ColumnBytes(0));
    if (policy) policies.push_back({std::make_shared<const PolicyView>(*std::move(policy)), statement->ColumnInt(1)});
  }
}

absl::StatusOr<JournalPage> SqliteReader::ReadJournal(const std::string& run, std::int64_t after_id, TimeNs from_ns, TimeNs to_ns,
                                                      std::size_t max_bytes) {
  std::lock_guard lock(mutex_);
  if (auto status = Open(); !status.ok()) return status;
  const OneMoment moment(database_.get());
  if (!moment.status().ok()) return moment.status();
  const char* of_run = "run_id=(SELECT id FROM runs WHERE name=?1)";
  auto begin = Prepare(absl::StrCat("SELECT id FROM journal WHERE ", of_run, " AND begins=1 AND time_ns<=?2 ORDER BY id DESC LIMIT 1"));
  if (!begin.ok()) return begin.status();
  const auto found = begin->Text(1, run).Int(2, from_ns).Next();
  if (!found.ok()) return found.status();
  const std::int64_t first = std::max(*found ? begin->ColumnInt(0) : 0, after_id + 1);
  auto walk = Prepare(absl::StrCat("SELECT id,begins,time_ns,data FROM journal WHERE ", of_run, " AND id>=?2 ORDER BY id"));
  if (!walk.ok()) return walk.status();
  walk->Text(1, run).Int(2, first);
  JournalPage page;
  std::size_t bytes = 0;
  for (bool is_last = false; !is_last;) {
    const auto row = walk->Next();
    if (!row.ok()) return row.status();
    if (!*row) break;
    const std::string_view data = walk->ColumnBytes(3);
    page.more = !page.rows.empty() && bytes + data.size() > max_bytes;
    if (page.more) break;
    bytes += data.size();
    page.rows.push_back({run, walk->ColumnInt(0), walk->ColumnInt(1) != 0, walk->ColumnInt(2), std::string(data)});
    is_last = page.rows.back().time_ns > to_ns;
  }
  return page;
}

absl::StatusOr<std::vector<StoredRun>> SqliteReader::ReadRuns(int limit) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare("SELECT name,updated_ns FROM runs ORDER BY updated_ns DESC,name LIMIT ?1");
  if (!statement.ok()) return statement.status();
  statement->Int(1, limit);
  std::vector<StoredRun> runs;
  for (auto row = statement->Next();; row = statement->Next()) {
    if (!row.ok()) return row.status();
    if (!*row) return runs;
    runs.push_back({std::string(statement->ColumnBytes(0)), statement->ColumnInt(1)});
  }
}

absl::StatusOr<std::optional<StoredRun>> SqliteReader::FindRun(const std::string& run) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare("SELECT updated_ns FROM runs WHERE name=?1");
  if (!statement.ok()) return statement.status();
  const auto row = statement->Text(1, run).Next();
  if (!row.ok()) return row.status();
  if (!*row) return std::nullopt;
  return StoredRun{run, statement->ColumnInt(0)};
}

}  // namespace

absl::StatusOr<std::vector<LedgerEntry>> SelectLedger(sqlite3* database, const std::string& run) {
  auto statement = Statement::Prepare(
      database, "SELECT action,actor,comment,attempt,time_ns FROM ledger WHERE run_id=(SELECT id FROM runs WHERE name=?1) ORDER BY id");
  if (!statement.ok()) return statement.status();
  statement->Text(1, run);
  std::vector<LedgerEntry> entries;
  for (auto more = statement->Next();; more = statement->Next()) {
    if (!more.ok()) return more.status();
    if (!*more) return entries;
    const std::int64_t action = statement->ColumnInt(0);
    if (action < 1 || action > 5) continue;
    LedgerEntry& entry = entries.emplace_back();
    entry.action = static_cast<Action>(action);
    entry.actor = statement->ColumnBytes(1);
    entry.comment = statement->ColumnBytes(2);
    entry.attempt = statement->ColumnBytes(3);
    entry.time_ns = statement->ColumnInt(4);
  }
}

std::shared_ptr<HistoryReader> MakeHistoryReader(const std::string& path) { return std::make_shared<SqliteReader>(path); }

}  // namespace lossgauge::state
