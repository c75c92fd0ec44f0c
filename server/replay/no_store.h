// A store that keeps nothing: a replay has no history.
#ifndef LOSSGAUGE_SERVER_REPLAY_NO_STORE_H_
#define LOSSGAUGE_SERVER_REPLAY_NO_STORE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/store.h"

namespace lossgauge::replay {

class NoStore final : public state::Store {
 public:
  std::string open_note() const override { return ""; }
  absl::Status Commit(const state::Transaction&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<state::CursorRow>> LoadCursors() override { return std::vector<state::CursorRow>(); }
  absl::StatusOr<std::vector<state::RunRow>> LoadRuns() override { return std::vector<state::RunRow>(); }
  absl::StatusOr<std::optional<state::RunRow>> LoadRun(const std::string&) override { return std::optional<state::RunRow>(); }
  absl::StatusOr<std::uint64_t> CountLedger(const std::string&) override { return 0; }
  absl::StatusOr<std::vector<state::LedgerEntry>> LoadLedger(const std::string&) override { return std::vector<state::LedgerEntry>(); }
  absl::StatusOr<bool> Prune(state::TimeNs) override { return false; }
  state::HistoryCounts history_counts() const override { return {}; }
  std::uint64_t bytes() const override { return 0; }
  std::shared_ptr<state::HistoryReader> reader() override { return nullptr; }
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_NO_STORE_H_
