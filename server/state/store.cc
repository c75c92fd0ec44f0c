#include "server/state/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"
#include "server/state/history_keeper.h"
#include "server/state/journal_keeper.h"
#include "server/state/state_directory.h"
#include "server/state/store_read.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPoliciesKept = 1024;  // of all runs, about 1.5 kB each
constexpr char kDamagedMark[] = ".damaged";   // beside the file: what was found damaged while it was in use

class SqliteStore final : public Store {
 public:
  SqliteStore(Database database, std::string path, const StoreOptions& options)
      : database_(std::move(database)), path_(std::move(path)),
        keeper_(std::in_place, database_.get(), options, [this] { return HistoryBytes(); }, [this] { ForgetRuns(); }),
        journal_(std::in_place, database_.get(), options.journal_bytes) {}
  ~SqliteStore() override {
    statements_ = {};
    keeper_.reset();
    journal_.reset();
    database_.reset();
    if (!owned_directory_.empty()) {
      std::error_code ignored;
      fs::remove_all(owned_directory_, ignored);
    }
  }

  // Statements, and a look at what every start reads.
  absl::Status Prepare();
  void set_note(std::string note) { note_ = std::move(note); }
  void own_directory(std::string directory) { owned_directory_ = std::move(directory); }
  std::string open_note() const override { return note_; }
  absl::Status Commit(const Transaction& transaction) override;
  absl::StatusOr<std::vector<CursorRow>> LoadCursors() override;
  absl::StatusOr<std::vector<RunRow>> LoadRuns() override;
  absl::StatusOr<std::optional<RunRow>> LoadRun(const std::string& run) override;
  absl::StatusOr<std::uint64_t> CountLedger(const std::string& run) override;
  absl::StatusOr<std::vector<LedgerEntry>> LoadLedger(const std::string& run) override;
  absl::StatusOr<bool> Prune(TimeNs now_ns) override;
  HistoryCounts history_counts() const override { return keeper_->counts(); }
  std::uint64_t bytes() const override;
  std::shared_ptr<HistoryReader> reader() override { return MakeHistoryReader(path_); }

 private:
  absl::Status Apply(const Transaction& transaction);
  absl::Status MarkIfDamaged(absl::Status status);
  absl::StatusOr<std::int64_t> RunId(const std::string& run);
  std::uint64_t HistoryBytes() const;
  void ForgetRuns() {
    run_ids_.clear();
    journal_->CountAgain();
  }

  struct Statements {
    Statement put_cursor, drop_cursor, add_run, get_run, put_run, put_step, put_incident, put_verdict, put_ledger, put_event;
    Statement put_journal, put_policy, drop_policies;
    Statement page_count, free_count, page_size;
  };

  Database database_;
  std::string path_;
  std::string note_;
  std::string owned_directory_;
  Statements statements_;
  std::optional<HistoryKeeper> keeper_;
  std::optional<JournalKeeper> journal_;
  std::unordered_map<std::string, std::int64_t> run_ids_;
};

absl::Status SqliteStore::Prepare() {
  const std::pair<Statement*, const char*> wanted[] = {
      {&statements_.put_cursor,
       "INSERT INTO cursors VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT(segment) DO UPDATE SET next_steps=?5, next_events=?6, ended=?7, totals=?8, "
       "updated_ns=?9"},
      {&statements_.drop_cursor, "DELETE FROM cursors WHERE segment=?1"},
      {&statements_.add_run, "INSERT OR IGNORE INTO runs(name) VALUES(?1)"},
      {&statements_.get_run, "SELECT id FROM runs WHERE name=?1"},
      {&statements_.put_run, "UPDATE runs SET state=?2, judge=?3, updated_ns=?4 WHERE id=?1"},
      {&statements_.put_step, "INSERT OR REPLACE INTO steps VALUES(?1,?2,?3,?4,?5)"},
      {&statements_.put_incident, "INSERT OR REPLACE INTO incidents VALUES(?1,?2,?3,?4,?5)"},
      {&statements_.put_verdict, "INSERT INTO verdicts(run_id,data) VALUES(?1,?2)"},
      {&statements_.put_ledger, "INSERT INTO ledger(run_id,action,actor,comment,attempt,time_ns) VALUES(?1,?2,?3,?4,?5,?6)"},
      {&statements_.put_event, "INSERT INTO events(run_id,receive_ns,data) VALUES(?1,?2,?3)"},
      {&statements_.put_journal, "INSERT INTO journal(run_id,begins,time_ns,data) VALUES(?1,?2,?3,?4)"},
      {&statements_.put_policy, "INSERT OR IGNORE INTO policies(version,time_ns,data) VALUES(?1,?2,?3)"},
      {&statements_.drop_policies, "DELETE FROM policies WHERE id<=(SELECT max(id) FROM policies)-?1"},
      {&statements_.page_count, "PRAGMA page_count"},
      {&statements_.free_count, "PRAGMA freelist_count"},
      {&statements_.page_size, "PRAGMA page_size"},
  };
  for (const auto& [statement, sql] : wanted) {
    auto prepared = Statement::Prepare(database_.get(), sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  if (auto status = keeper_->Prepare(); !status.ok()) return status;
  if (auto status = journal_->Prepare(); !status.ok()) return status;
  if (auto cursors = LoadCursors(); !cursors.ok()) return cursors.status();
  return LoadRuns().status();
}

// A damaged page fails every transaction that meets it, and moving the file aside now would tear cursors, which are in it, from the counts of this process,
// which are not. So it is left to the next start, which knows nothing else.
absl::Status SqliteStore::MarkIfDamaged(absl::Status status) {
  if (!absl::IsDataLoss(status)) return status;
  const std::string mark = path_ + kDamagedMark;
  const int fd = open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
  if (fd >= 0) close(fd);
  return absl::DataLossError(absl::StrCat(std::string(status.message()), "; the next start moves ", path_, " aside and begins with an empty one"));
}

absl::StatusOr<bool> SqliteStore::Prune(TimeNs now_ns) {
  const auto more_journal = journal_->Work();
  if (!more_journal.ok()) return MarkIfDamaged(more_journal.status());
  const auto more = keeper_->Work(now_ns);
  if (!more.ok()) return MarkIfDamaged(more.status());
  return *more_journal || *more;
}

absl::StatusOr<std::int64_t> SqliteStore::RunId(const std::string& run) {
  if (const auto it = run_ids_.find(run); it != run_ids_.end()) return it->second;
  if (auto status = statements_.add_run.Text(1, run).Run(); !status.ok()) return status;
  const auto row = statements_.get_run.Text(1, run).Next();
  if (!row.ok()) return row.status();
  const std::int64_t id = statements_.get_run.ColumnInt(0);
  statements_.get_run.Reset();
  run_ids_.emplace(run, id);
  return id;
}

absl::Status SqliteStore::Commit(const Transaction& transaction) {
  if (transaction.empty()) return absl::OkStatus();
  if (auto status = Execute(database_.get(), "BEGIN IMMEDIATE"); !status.ok()) return status;
  absl::Status status = Apply(transaction);
  if (status.ok()) status = Execute(database_.get(), "COMMIT");
  if (status.ok()) {
    for (const JournalRow& row : transaction.journal) journal_->Add(row.data.size());
  } else {
    // SQLite may already have rolled back by itself (disk full); a second rollback then fails, harmlessly.
    if (sqlite3_get_autocommit(database_.get()) == 0) (void)Execute(database_.get(), "ROLLBACK");
    run_ids_.clear();
  }
  return MarkIfDamaged(std::move(status));
}

absl::Status SqliteStore::Apply(const Transaction& transaction) {
  for (const auto& row : transaction.runs) {
    const auto id = RunId(row.run);
    if (!id.ok()) return id.status();
    if (auto s = statements_.put_run.Int(1, *id).Blob(2, row.state).Blob(3, row.judge).Int(4, row.updated_ns).Run(); !s.ok()) return s;
  }
  for (const auto& row : transaction.cursors) {
    const std::string key = row.segment.Hex();
    auto s = statements_.put_cursor.Blob(1, key).Text(2, row.run).Text(3, row.attempt).Int(4, row.rank)
                 .Int(5, static_cast<std::int64_t>(row.next_steps_publication))
                 .Int(6, static_cast<std::int64_t>(row.next_events_publication))
                 .Int(7, row.ended).Blob(8, row.totals).Int(9, row.updated_ns).Run();
    if (!s.ok()) return s;
  }
  for (const auto& segment : transaction.forget_cursors) {
    const std::string key = segment.Hex();
    if (auto s = statements_.drop_cursor.Blob(1, key).Run(); !s.ok()) return s;
  }
  for (const auto& [run, step] : transaction.steps) {
    const auto id = RunId(run);
    if (!id.ok()) return id.status();
    const std::string data = EncodeStep(*step);
    auto s = statements_.put_step.Int(1, *id).Int(2, static_cast<std::int64_t>(step->sequence)).Int(3, step->step)
                 .Int(4, step->receive_time_ns).Blob(5, data).Run();
    if (!s.ok()) return s;
  }
  for (const auto& incident : transaction.incidents) {
    const auto id = RunId(incident.run);
    if (!id.ok()) return id.status();
    const std::string data = EncodeIncident(incident);
    auto s = statements_.put_incident.Text(1, incident.id).Int(2, *id).Int(3, incident.open).Int(4, incident.onset_time_ns)
                 .Blob(5, data).Run();
    if (!s.ok()) return s;
  }
  for (const auto& [run, verdict] : transaction.verdicts) {
    const auto id = RunId(run);
    if (!id.ok()) return id.status();
    const std::string data = EncodeVerdict(verdict);
    if (auto s = statements_.put_verdict.Int(1, *id).Blob(2, data).Run(); !s.ok()) return s;
  }
  for (const auto& [run, entry] : transaction.ledger) {
    const auto id = RunId(run);
    if (!id.ok()) return id.status();
    auto s = statements_.put_ledger.Int(1, *id).Int(2, static_cast<int>(entry.action)).Text(3, entry.actor).Text(4, entry.comment)
                 .Text(5, entry.attempt).Int(6, entry.time_ns).Run();
    if (!s.ok()) return s;
  }
  for (const auto& [run, event] : transaction.events) {
    const auto id = RunId(run);
    if (!id.ok()) return id.status();
    const std::string data = EncodeEvent(event);
    if (auto s = statements_.put_event.Int(1, *id).Int(2, event.receive_time_ns).Blob(3, data).Run(); !s.ok()) return s;
  }
  for (const PolicyRow& row : transaction.policies) {
    const std::string data = EncodePolicy(*row.policy);
    if (auto s = statements_.put_policy.Text(1, row.policy->version).Int(2, row.time_ns).Blob(3, data).Run(); !s.ok()) return s;
    if (auto s = statements_.drop_policies.Int(1, kPoliciesKept).Run(); !s.ok()) return s;
  }
  for (const JournalRow& row : transaction.journal) {
    const auto id = RunId(row.run);
    if (!id.ok()) return id.status();
    if (auto s = statements_.put_journal.Int(1, *id).Int(2, row.begins).Int(3, row.time_ns).Blob(4, row.data).Run(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CursorRow>> SqliteStore::LoadCursors() {
  auto statement = Statement::Prepare(database_.get(), "SELECT * FROM cursors");
  if (!statement.ok()) return statement.status();
  std::vector<CursorRow> rows;
  for (auto more = statement->Next();; more = statement->Next()) {
    if (!more.ok()) return more.status();
    if (!*more) return rows;
    const std::string key(statement->ColumnBytes(0));
    if (key.size() != 32) continue;
    CursorRow& row = rows.emplace_back();
    row.segment.words[0] = std::strtoull(key.substr(0, 16).c_str(), nullptr, 16);
    row.segment.words[1] = std::strtoull(key.substr(16).c_str(), nullptr, 16);
    row.run = statement->ColumnBytes(1);
    row.attempt = statement->ColumnBytes(2);
    row.rank = static_cast<std::uint32_t>(statement->ColumnInt(3));
    row.next_steps_publication = static_cast<std::uint64_t>(statement->ColumnInt(4));
    row.next_events_publication = static_cast<std::uint64_t>(statement->ColumnInt(5));
    row.ended = statement->ColumnInt(6) != 0;
    row.totals = statement->ColumnBytes(7);
    row.updated_ns = statement->ColumnInt(8);
  }
}

absl::StatusOr<std::optional<RunRow>> SqliteStore::LoadRun(const std::string& run) {
  auto statement = Statement::Prepare(database_.get(), "SELECT state,judge,updated_ns FROM runs WHERE name=?1");
  if (!statement.ok()) return statement.status();
  const auto found = statement->Text(1, run).Next();
  if (!found.ok()) return found.status();
  if (!*found) return std::nullopt;
  RunRow row;
  row.run = run;
  row.state = statement->ColumnBytes(0);
  row.judge = statement->ColumnBytes(1);
  row.updated_ns = statement->ColumnInt(2);
  return row;
}

absl::StatusOr<std::uint64_t> SqliteStore::CountLedger(const std::string& run) {
  auto statement = Statement::Prepare(database_.get(), "SELECT count(*) FROM ledger WHERE run_id=(SELECT id FROM runs WHERE name=?1)");
  if (!statement.ok()) return statement.status();
  const auto row = statement->Text(1, run).Next();
  if (!row.ok()) return row.status();
  return static_cast<std::uint64_t>(*row ? statement->ColumnInt(0) : 0);
}

absl::StatusOr<std::vector<RunRow>> SqliteStore::LoadRuns() {
  auto statement = Statement::Prepare(database_.get(), "SELECT name,state,judge,updated_ns FROM runs ORDER BY name");
  if (!statement.ok()) return statement.status();
  std::vector<RunRow> rows;
  for (auto more = statement->Next();; more = statement->Next()) {
    if (!more.ok()) return more.status();
    if (!*more) return rows;
    RunRow& row = rows.emplace_back();
    row.run = statement->ColumnBytes(0);
    row.state = statement->ColumnBytes(1);
    row.judge = statement->ColumnBytes(2);
    row.updated_ns = statement->ColumnInt(3);
  }
}

absl::StatusOr<std::vector<LedgerEntry>> SqliteStore::LoadLedger(const std::string& run) { return SelectLedger(database_.get(), run); }

std::uint64_t SqliteStore::bytes() const {
  auto& s = const_cast<Statements&>(statements_);
  const auto read = [](Statement& statement) {
    const auto row = statement.Next();
    const std::int64_t value = row.ok() && *row ? statement.ColumnInt(0) : 0;
    statement.Reset();
    return static_cast<std::uint64_t>(value);
  };
  return (read(s.page_count) - read(s.free_count)) * read(s.page_size);
}

std::uint64_t SqliteStore::HistoryBytes() const {
  const std::uint64_t all = bytes();
  return all - std::min(all, journal_->bytes());
}

absl::StatusOr<std::unique_ptr<SqliteStore>> OpenFile(const std::string& path, const StoreOptions& options) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError("it is no file (a directory, a link, a device); move it away");
  }
  auto database = OpenForWriting(path);
  if (!database.ok()) return database.status();
  auto store = std::make_unique<SqliteStore>(*std::move(database), path, options);
  if (auto prepared = store->Prepare(); !prepared.ok()) return prepared;
  return store;
}

absl::Status NotOpened(const std::string& path, const absl::Status& why) {
  const char* advice = absl::IsResourceExhausted(why) ? "; make room there, or choose another --state_dir" : "";
  return absl::Status(why.code(), absl::StrCat("cannot open the state in ", path, ": ", std::string(why.message()), advice));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  const bool temporary = options.directory.empty();
  const auto directory = temporary ? MakeTemporaryStateDirectory() : MakeStateDirectory(options.directory);
  if (!directory.ok()) return directory.status();
  const std::string path = *directory + "/lossgauge.db", mark = path + kDamagedMark;
  std::string note;
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = absl::DataLossError("it was found damaged while it was in use");
  if (access(mark.c_str(), F_OK) != 0) store = OpenFile(path, options);
  if (absl::IsDataLoss(store.status())) {
    const std::string aside = absl::StrCat(path, ".unreadable");
    for (const char* suffix : {"", "-wal", "-shm"}) (void)std::rename((path + suffix).c_str(), (aside + suffix).c_str());
    (void)unlink(mark.c_str());  // after the renames: a start that dies in between comes here again
    note = absl::StrCat(path, " could not be read (", std::string(store.status().message()), "); moved to ", aside, ", starting empty");
    store = OpenFile(path, options);
  }
  if (!store.ok()) return NotOpened(path, store.status());
  (*store)->set_note(std::move(note));
  if (temporary) (*store)->own_directory(*directory);
  return std::unique_ptr<Store>(*std::move(store));
}

}  // namespace lossgauge::state
