// The last steps of a run in chunks, so that a new snapshot shares all but the newest chunk with the one before it.
#ifndef LOSSGAUGE_SERVER_STATE_RECENT_STEPS_H_
#define LOSSGAUGE_SERVER_STATE_RECENT_STEPS_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "server/state/snapshot.h"

namespace lossgauge::state {

class RecentSteps {
 public:
  void Push(std::shared_ptr<const StepSummary> step);
  // A corrected one in the place of the one with its sequence, if that is still kept. Snapshots made before keep what they had.
  void Replace(std::shared_ptr<const StepSummary> step);
  // Drops whole chunks from the old end while more than `max_steps` are kept.
  void Trim(std::size_t max_steps);
  // Shares full chunks; copies the pointers of the open one.
  std::vector<std::shared_ptr<const StepChunk>> Chunks() const;
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kChunk = 64;
  std::deque<std::shared_ptr<const StepChunk>> full_;
  StepChunk open_;
  std::size_t size_ = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RECENT_STEPS_H_
