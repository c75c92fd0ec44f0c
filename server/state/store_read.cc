#include "server/state/store_read.h"

#include <limits>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {
namespace {

constexpr int kMaxLookedAt = 200'000;  // rows of other attempts in one call: others wait for the connection

// One connection behind a mutex: history is read rarely, and the writer is never waited for (WAL).
class SqliteReader final : public HistoryReader {
 public:
  explicit SqliteReader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::vector<StepSummary>> ReadSteps(const StepQuery& query) override;
  absl::StatusOr<std::vector<Incident>> ReadIncidents(const std::string& run, bool open_only, int limit, int offset) override;
  absl::StatusOr<std::vector<Verdict>> ReadVerdicts(const std::string& run, int limit, int offset) override;

 private:
  absl::StatusOr<Statement> Prepare(const std::string& sql);

  const std::string path_;
  std::mutex mutex_;
  Database database_;
};

absl::StatusOr<Statement> SqliteReader::Prepare(const std::string& sql) {
  if (!database_) {
    auto opened = OpenForReading(path_);
    if (!opened.ok()) return opened.status();
    database_ = *std::move(opened);
  }
  return Statement::Prepare(database_.get(), sql.c_str());
}

absl::StatusOr<std::vector<StepSummary>> SqliteReader::ReadSteps(const StepQuery& query) {
  std::lock_guard lock(mutex_);
  const bool by_step = query.first_step || query.last_step;
  auto statement = Prepare(absl::StrCat(
      "SELECT data FROM steps", by_step ? " INDEXED BY steps_by_step" : "",
      " WHERE run_id=(SELECT id FROM runs WHERE name=?1) AND sequence>?2", by_step ? " AND step BETWEEN ?3 AND ?4" : "",
      " ORDER BY sequence ", query.newest_first ? "DESC" : "ASC"));
  if (!statement.ok()) return statement.status();
  statement->Text(1, query.run).Int(2, static_cast<std::int64_t>(query.after_sequence));
  if (by_step) {
    statement->Int(3, query.first_step.value_or(std::numeric_limits<std::int64_t>::min()));
    statement->Int(4, query.last_step.value_or(std::numeric_limits<std::int64_t>::max()));
  }
  std::vector<StepSummary> steps;
  int looked_at = 0;
  while (static_cast<int>(steps.size()) < query.limit) {
    const auto row = statement->Next();
    if (!row.ok()) return row.status();
    if (!*row) break;
    const std::string_view data = statement->ColumnBytes(0);
    if (!query.attempt.empty() && PeekStepAttempt(data) != query.attempt) {
      if (++looked_at < kMaxLookedAt) continue;
      return absl::ResourceExhaustedError(absl::StrCat("run ", query.run, ": attempt ", query.attempt, " is not among ", kMaxLookedAt,
                                                       " steps looked at; give a range of steps or a place to begin"));
    }
    auto step = DecodeStep(data);
    if (!step) return absl::DataLossError(absl::StrCat("a step of run ", query.run, " in ", path_, " cannot be decoded"));
    steps.push_back(*std::move(step));
  }
  return steps;
}

absl::StatusOr<std::vector<Incident>> SqliteReader::ReadIncidents(const std::string& run, bool open_only, int limit, int offset) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare(absl::StrCat("SELECT data FROM incidents WHERE run_id=(SELECT id FROM runs WHERE name=?1)",
                                        open_only ? " AND open=1" : "", " ORDER BY onset_ns DESC, id DESC LIMIT ?2 OFFSET ?3"));
  if (!statement.ok()) return statement.status();
  statement->Text(1, run).Int(2, limit).Int(3, offset);
  std::vector<Incident> incidents;
  for (auto row = statement->Next();; row = statement->Next()) {
    if (!row.ok()) return row.status();
    if (!*row) return incidents;
    if (auto incident = DecodeIncident(statement->ColumnBytes(0))) incidents.push_back(*std::move(incident));
  }
}

absl::StatusOr<std::vector<Verdict>> SqliteReader::ReadVerdicts(const std::string& run, int limit, int offset) {
  std::lock_guard lock(mutex_);
  auto statement = Prepare(
      "SELECT data FROM verdicts WHERE run_id=(SELECT id FROM runs WHERE name=?1) ORDER BY id DESC LIMIT ?2 OFFSET ?3");
  if (!statement.ok()) return statement.status();
  statement->Text(1, run).Int(2, limit).Int(3, offset);
  std::vector<Verdict> verdicts;
  for (auto row = statement->Next();; row = statement->Next()) {
    if (!row.ok()) return row.status();
    if (!*row) return verdicts;
    if (auto verdict = DecodeVerdict(statement->ColumnBytes(0))) verdicts.push_back(*std::move(verdict));
  }
}

}  // namespace

std::shared_ptr<HistoryReader> MakeHistoryReader(const std::string& path) { return std::make_shared<SqliteReader>(path); }

}  // namespace lossgauge::state
