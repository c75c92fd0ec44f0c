// Shards that are whole but in the wrong place: two ranks of a tensor-parallel group with each other's columns, or one with those of another layer.
//
// Every sum of the integrity checks stays right, so a step alone shows nothing. Against a healthy baseline it does: the loss jumps from one step to the
// next, and a rank has more or less probability than it has targets, (probability_mass - target_hits) / finite_tokens, while where the targets lie is as
// before. Two ranks whose shares of the probability have changed places hold each other's shards. A spike of training may move probability, too: it
// comes with a gradient norm that rose first, or over several steps, and an odd batch with other targets; those are not spoken of. Without a baseline, and
// where the shards' shares are alike and the batches large, the fault cannot be seen.
#ifndef LOSSGAUGE_SERVER_DETECT_SHARD_WATCH_H_
#define LOSSGAUGE_SERVER_DETECT_SHARD_WATCH_H_

#include <cstdint>
#include <map>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"
#include "server/detect/streak.h"

namespace lossgauge::detect {

// What the loss says of the step.
struct LossJump {
  bool high = false;   // flagged, or in an open episode
  double nats = 0;     // above what it should be
};

class ShardWatch {
 public:
  static constexpr std::size_t kMostRanks = 128;  // watched; of more, the lowest

  // After the loss was looked at.
  void OnStep(const StepSignals& signals, const LossJump& jump, const Policy& policy, IncidentBook& book);
  // The baseline stays: a resume is when shards get mixed up.
  void OnAttempt();
  int BrokenSteps(const Policy& policy) const { return streak_.BadOfLast(static_cast<int>(policy.integrity_window_steps)); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  // Of a rank: means of its shares, and variances of a token's part in them, so that batches of any size compare.
  struct Shares {
    std::int32_t steps = 0;
    double mass = 0;
    double hits = 0;
    double surplus_variance = 0;
    double hits_variance = 0;
  };
  struct RankNow;
  struct Suspicion;
  bool Look(const StepSignals& signals, const Policy& policy, Suspicion* found) const;
  void Learn(const StepSignals& signals);

  std::map<std::uint32_t, Shares> ranks_;
  Streak streak_;
  std::int32_t steps_since_gradient_ = 1 << 20;  // was high
  bool loss_was_high_ = false;                   // at the step before
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_SHARD_WATCH_H_
