// Where the drain thread puts the newest snapshot and everybody else takes it from; and the mailbox in the other direction.
#ifndef LOSSGAUGE_SERVER_STATE_BOARD_H_
#define LOSSGAUGE_SERVER_STATE_BOARD_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "server/state/snapshot.h"

namespace lossgauge::state {

// Thread-safe. Readers hold a shared_ptr for as long as they like; the drain thread never waits for them.
class SnapshotBoard {
 public:
  SnapshotBoard();
  void Publish(std::shared_ptr<const Snapshot> snapshot);
  std::shared_ptr<const Snapshot> Get() const;  // never null
  // Waits until the version exceeds `seen`, `timeout_ns` passed, or Close was called. Returns the newest snapshot.
  std::shared_ptr<const Snapshot> WaitNewer(std::uint64_t seen, std::int64_t timeout_ns) const;
  void Close();  // wakes all waiters for good
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<const Snapshot> snapshot_;
  bool closed_ = false;
};

// Requests that change state, from RPC threads to the drain thread. Bounded; a full mailbox is RESOURCE_EXHAUSTED.
class Mailbox {
 public:
  struct Acknowledge {
    std::string incident_id;
    Acknowledgement acknowledgement;
  };
  struct Report {
    std::string run;
    LedgerEntry entry;
  };
  struct SetMode {
    std::string run;
    std::string mode;  // "policy", "advise", "shadow"
    std::string by;
  };
  // Called once, on the drain thread, with the outcome; Incident is set for an Acknowledge that succeeded.
  using AcknowledgeDone = std::function<void(absl::Status, const Incident*)>;
  using ReportDone = std::function<void(absl::Status, std::uint64_t ledger_entries)>;
  using SetModeDone = std::function<void(absl::Status, const std::string& mode)>;  // the mode that is in force now

  absl::Status Send(Acknowledge request, AcknowledgeDone done);
  absl::Status Send(Report request, ReportDone done);
  absl::Status Send(SetMode request, SetModeDone done);

  // Drain thread: runs `handle_*` for each waiting request.
  void Drain(const std::function<void(Acknowledge&, AcknowledgeDone&)>& handle_acknowledge,
             const std::function<void(Report&, ReportDone&)>& handle_report, const std::function<void(SetMode&, SetModeDone&)>& handle_set_mode);

 private:
  static constexpr std::size_t kCapacity = 1024;
  std::mutex mutex_;
  std::deque<std::pair<Acknowledge, AcknowledgeDone>> acknowledges_;
  std::deque<std::pair<Report, ReportDone>> reports_;
  std::deque<std::pair<SetMode, SetModeDone>> modes_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_BOARD_H_
