// What a restart needs to know: checkpoints, how earlier attempts ended, and what schedulers said they did.
#ifndef LOSSGAUGE_SERVER_DETECT_RUN_HISTORY_H_
#define LOSSGAUGE_SERVER_DETECT_RUN_HISTORY_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "server/detect/state_codec.h"
#include "server/state/judge.h"

namespace lossgauge::detect {

// A failure that asks for a restart: what, and at which step.
struct Failure {
  state::Condition condition = state::Condition::kCount;  // kCount: the job declared it
  std::int64_t step = 0;
};

struct AttemptRecord {
  std::string attempt;
  state::TimeNs start_ns = 0;
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  std::optional<Failure> failure;  // as it stood when the next attempt began
};

// Bounded: 8 checkpoints, 12 attempts, 4 reported actions.
class RunHistory {
 public:
  // Keeps the newest, and of the older ones a spread that reaches back; never drops the newest one at or before `good_step`.
  void AddCheckpoint(std::int64_t step, const std::string& path, std::int64_t good_step);
  // The job went back to after `step`: what was saved beyond it belongs to a course that was left.
  void ForgetCheckpointsAfter(std::int64_t step);
  std::optional<state::ResumePoint> CheckpointAtOrBefore(std::int64_t step) const;

  bool Knows(const std::string& attempt) const;
  // Closes the record of the present attempt with its failure, if any.
  void BeginAttempt(const std::string& attempt, state::TimeNs start_ns, const std::optional<Failure>& failure_of_last);
  void OnStep(std::int64_t step);
  const AttemptRecord* current() const { return attempts_.empty() ? nullptr : &attempts_.back(); }

  // An earlier attempt that failed in the same way within `span` steps of `failure`.
  const AttemptRecord* SameFailureBefore(const Failure& failure, std::int64_t span) const;
  // Newest attempts in a row, the present one included, that got no further than those before them.
  int AttemptsWithoutProgress() const;

  void AddAction(const state::LedgerEntry& entry);
  const state::LedgerEntry* last_action() const { return actions_.empty() ? nullptr : &actions_.back(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::vector<state::ResumePoint> checkpoints_;  // by step
  std::deque<AttemptRecord> attempts_;           // the present one last
  std::deque<state::LedgerEntry> actions_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_RUN_HISTORY_H_
