// Keeps the journals of all runs within their bytes: the oldest piece goes as a whole, since nothing of it can be understood without its beginning.
#ifndef LOSSGAUGE_SERVER_STATE_JOURNAL_KEEPER_H_
#define LOSSGAUGE_SERVER_STATE_JOURNAL_KEEPER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/store_schema.h"

namespace lossgauge::state {

class JournalKeeper {
 public:
  JournalKeeper(sqlite3* database, std::uint64_t max_bytes) : database_(database), max_bytes_(max_bytes) {}
  absl::Status Prepare();
  // Committed beside it.
  void Add(std::uint64_t bytes) { bytes_ += bytes; }
  // Rows went with their runs.
  void CountAgain() { is_counted_ = false; }
  std::uint64_t bytes() const { return bytes_; }
  // Drops one piece, if there is too much. True: there still is.
  absl::StatusOr<bool> Work();

 private:
  absl::Status Count();

  sqlite3* const database_;
  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;
  bool is_counted_ = false;
  Statement oldest_, next_beginning_, size_, drop_, sum_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JOURNAL_KEEPER_H_
