// One watcher of a run's verdict: the present one first, each change of substance, and a sign of life before its term runs out.
#ifndef LOSSGAUGE_SERVER_API_VERDICT_WATCH_H_
#define LOSSGAUGE_SERVER_API_VERDICT_WATCH_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/snapshot.h"

namespace lossgauge::api {

// Not thread-safe: one thread at a time.
class VerdictWatch {
 public:
  using Message = v1::Verdict;

  static absl::StatusOr<VerdictWatch> Create(const state::Snapshot& snapshot, const v1::WatchVerdictRequest& request);

  bool NeedsHistory(const state::Snapshot&) const { return false; }

  // Fills an empty message if there is something to say at `now_ns`: nothing was sent yet, the verdict changed in substance, or the one sent
  // is about to run out or 10 s old (at least one message every 30 s is promised). NOT_FOUND once the run is no longer kept.
  absl::StatusOr<bool> Next(const state::Snapshot& snapshot, state::TimeNs now_ns, Message* message);

 private:
  VerdictWatch() = default;

  std::string run_;
  std::optional<state::Verdict> sent_;
  state::TimeNs sent_ns_ = 0;
};

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_VERDICT_WATCH_H_
