#include "server/state/board.h"

#include <chrono>
#include <utility>

namespace lossgauge::state {

SnapshotBoard::SnapshotBoard() : snapshot_(std::make_shared<const Snapshot>()) {}

void SnapshotBoard::Publish(std::shared_ptr<const Snapshot> snapshot) {
  {
    std::lock_guard lock(mutex_);
    snapshot_.swap(snapshot);
  }
  changed_.notify_all();
  // The old snapshot, now in `snapshot`, dies here: outside the lock, in case this was its last holder.
}

std::shared_ptr<const Snapshot> SnapshotBoard::Get() const {
  std::lock_guard lock(mutex_);
  return snapshot_;
}

std::shared_ptr<const Snapshot> SnapshotBoard::WaitNewer(std::uint64_t seen, std::int64_t timeout_ns) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return closed_ || snapshot_->version > seen; });
  return snapshot_;
}

void SnapshotBoard::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool SnapshotBoard::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

absl::Status Mailbox::Send(Acknowledge request, AcknowledgeDone done) {
  std::lock_guard lock(mutex_);
  if (acknowledges_.size() >= kCapacity) return absl::ResourceExhaustedError("too many acknowledgements are waiting; try again later");
  acknowledges_.emplace_back(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status Mailbox::Send(Report request, ReportDone done) {
  std::lock_guard lock(mutex_);
  if (reports_.size() >= kCapacity) return absl::ResourceExhaustedError("too many action reports are waiting; try again later");
  reports_.emplace_back(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status Mailbox::Send(SetMode request, SetModeDone done) {
  std::lock_guard lock(mutex_);
  if (modes_.size() >= kCapacity) return absl::ResourceExhaustedError("too many settings of modes are waiting; try again later");
  modes_.emplace_back(std::move(request), std::move(done));
  return absl::OkStatus();
}

void Mailbox::Drain(const std::function<void(Acknowledge&, AcknowledgeDone&)>& handle_acknowledge,
                    const std::function<void(Report&, ReportDone&)>& handle_report,
                    const std::function<void(SetMode&, SetModeDone&)>& handle_set_mode) {
  std::deque<std::pair<Acknowledge, AcknowledgeDone>> acknowledges;
  std::deque<std::pair<Report, ReportDone>> reports;
  std::deque<std::pair<SetMode, SetModeDone>> modes;
  {
    std::lock_guard lock(mutex_);
    acknowledges.swap(acknowledges_);
    reports.swap(reports_);
    modes.swap(modes_);
  }
  for (auto& [request, done] : acknowledges) handle_acknowledge(request, done);
  for (auto& [request, done] : reports) handle_report(request, done);
  for (auto& [request, done] : modes) handle_set_mode(request, done);
}

}  // namespace lossgauge::state
