#include "server/state/step_scan.h"

#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"

namespace lossgauge::state {
namespace {

constexpr int kMaxLookedAt = 200'000;   // rows of other attempts in one call: others wait for the connection
constexpr int kMissesBeforeJump = 256;  // rows outside the range in a row

struct Names {
  const char* table;
  const char* index;
  const char* first;
  const char* last;
};
constexpr Names kWhole = {"steps", "steps_by_step", "step", "step"};
constexpr Names kThinned = {"thinned", "thinned_by_step", "first_step", "last_step"};

}  // namespace

absl::Status ScanSteps(sqlite3* database, bool thinned, const StepQuery& query, int* looked_at, std::vector<StepSummary>* steps) {
  const Names& names = thinned ? kThinned : kWhole;
  const char* run = "run_id=(SELECT id FROM runs WHERE name=?1)";
  const char* beyond = query.newest_first ? "sequence<?2" : "sequence>?2";
  const bool by_step = query.first_step || query.last_step;
  const std::int64_t first_step = query.first_step.value_or(std::numeric_limits<std::int64_t>::min());
  const std::int64_t last_step = query.last_step.value_or(std::numeric_limits<std::int64_t>::max());
  auto walk = Statement::Prepare(database, absl::StrCat("SELECT sequence,", names.first, ",", names.last, ",data FROM ", names.table, " WHERE ", run,
                                                        " AND ", beyond, " AND sequence>?3 ORDER BY sequence ", query.newest_first ? "DESC" : "ASC")
                                                       .c_str());
  if (!walk.ok()) return walk.status();
  std::optional<Statement> find;
  if (by_step) {
    auto prepared = Statement::Prepare(database, absl::StrCat("SELECT ", query.newest_first ? "max" : "min", "(sequence),count(*) FROM ", names.table,
                                                              " INDEXED BY ", names.index, " WHERE ", run, " AND ", names.last, ">=?4 AND ",
                                                              names.first, "<=?5 AND ", beyond, " AND sequence>?3")
                                                             .c_str());
    if (!prepared.ok()) return prepared.status();
    find.emplace(*std::move(prepared));
  }
  const auto after = static_cast<std::int64_t>(query.after_sequence);
  std::int64_t place = query.newest_first ? std::numeric_limits<std::int64_t>::max() : after;
  walk->Text(1, query.run).Int(2, place).Int(3, after);
  // A first page jumps to where the range begins; a later one most likely goes on inside it.
  int misses = by_step && !query.newest_first && after == 0 ? kMissesBeforeJump : 0;
  while (static_cast<int>(steps->size()) < query.limit) {
    if (misses >= kMissesBeforeJump && by_step) {
      misses = 0;
      const auto found = find->Text(1, query.run).Int(2, place).Int(3, after).Int(4, first_step).Int(5, last_step).Next();
      if (!found.ok()) return found.status();
      if (find->ColumnInt(1) == 0) return absl::OkStatus();
      place = find->ColumnInt(0) + (query.newest_first ? 1 : -1);
      find->Reset();
      walk->Reset();
      walk->Int(2, place);
    }
    const auto row = walk->Next();
    if (!row.ok()) return row.status();
    if (!*row) return absl::OkStatus();
    place = walk->ColumnInt(0);
    if (walk->ColumnInt(2) < first_step || walk->ColumnInt(1) > last_step) {
      ++misses;
      continue;
    }
    const std::string_view data = walk->ColumnBytes(3);
    if (!query.attempt.empty() && PeekStepAttempt(data) != query.attempt) {
      if (++*looked_at < kMaxLookedAt) continue;
      return absl::ResourceExhaustedError(absl::StrCat("run ", query.run, ": attempt ", query.attempt, " is not among ", kMaxLookedAt,
                                                       " steps looked at; give a range of steps or a place to begin"));
    }
    auto step = DecodeStep(data, !query.without_ranks);
    if (!step) return absl::DataLossError(absl::StrCat("a step of run ", query.run, " in history cannot be decoded"));
    steps->push_back(*std::move(step));
    misses = 0;
  }
  return absl::OkStatus();
}

}  // namespace lossgauge::state
