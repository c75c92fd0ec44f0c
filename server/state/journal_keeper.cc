#include "server/state/journal_keeper.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lossgauge::state {

absl::Status JournalKeeper::Prepare() {
  const std::pair<Statement*, const char*> wanted[] = {
      {&oldest_, "SELECT run_id,id FROM journal ORDER BY id LIMIT 1"},
      {&next_beginning_, "SELECT min(id) FROM journal WHERE run_id=?1 AND begins=1 AND id>?2"},
      {&drop_, "DELETE FROM journal WHERE run_id=?1 AND id<?2"},
      {&size_, "SELECT total(length(data)) FROM journal WHERE run_id=?1 AND id<?2"},
      {&sum_, "SELECT total(length(data)) FROM journal"},
  };
  for (const auto& [statement, sql] : wanted) {
    auto prepared = Statement::Prepare(database_, sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  return Count();
}

absl::Status JournalKeeper::Count() {
  const auto row = sum_.Next();
  if (row.ok()) bytes_ = static_cast<std::uint64_t>(*row ? sum_.ColumnInt(0) : 0);
  sum_.Reset();
  is_counted_ = row.ok();
  return row.status();
}

absl::StatusOr<bool> JournalKeeper::Work() {
  if (!is_counted_) {
    if (auto status = Count(); !status.ok()) return status;
  }
  if (bytes_ <= max_bytes_) return false;
  const auto row = oldest_.Next();
  const bool found = row.ok() && *row;
  const std::int64_t run_id = found ? oldest_.ColumnInt(0) : 0, id = found ? oldest_.ColumnInt(1) : 0;
  oldest_.Reset();
  if (!row.ok()) return row.status();
  if (!found) {
    bytes_ = 0;
    return false;
  }
  const auto next = next_beginning_.Int(1, run_id).Int(2, id).Next();
  // None: the piece is still being written. What comes of it is of no use, until the next.
  const std::int64_t beginning = next.ok() && *next ? next_beginning_.ColumnInt(0) : 0;
  next_beginning_.Reset();
  if (!next.ok()) return next.status();
  const std::int64_t end = beginning > 0 ? beginning : std::numeric_limits<std::int64_t>::max();
  const auto size = size_.Int(1, run_id).Int(2, end).Next();
  const auto dropped = static_cast<std::uint64_t>(size.ok() && *size ? size_.ColumnInt(0) : 0);
  size_.Reset();
  if (!size.ok()) return size.status();
  if (auto status = drop_.Int(1, run_id).Int(2, end).Run(); !status.ok()) return status;
  bytes_ -= std::min(bytes_, dropped);
  return bytes_ > max_bytes_;
}

}  // namespace lossgauge::state
