// One attempt of a run: its producers on this node (or in this job) and the joining of their steps.
//
// Steps leave in rising order. A step leaves when every rank that owes it has delivered it or can no longer do so (it went past the step, or
// is dead and drained), or when the join timeout has passed since its first record. Memory is bounded: beyond `max_pending` samples
// the oldest step leaves at once. A step that left without all its ranks stays open for a while: what comes late is added to its sums.
// Drain thread only.
#ifndef LOSSGAUGE_SERVER_STATE_ATTEMPT_H_
#define LOSSGAUGE_SERVER_STATE_ATTEMPT_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/joined_step.h"
#include "server/state/snapshot.h"
#include "server/state/step_sums.h"
#include "server/state/tensor_group.h"
#include "server/state/window_maxima.h"

namespace lossgauge::state {

struct JoinOptions {
  std::int64_t join_timeout_ns = 2'000'000'000;
  std::size_t max_pending = 4096;            // samples of one attempt waiting for their step
  std::int64_t max_step_jump = 1'000'000;    // beyond the highest accepted step: flagged, not adopted
  std::size_t max_ranks = 1024;              // of one attempt on this node
  bool whole_job = false;                    // every rank of the world is expected here, whether it has been seen or not
  TimeNs hold_until_ns = 0;                  // until then a step leaves only when it is complete or there is no room: sidecars are coming back
  std::size_t max_open_bytes = std::size_t{32} << 20;  // of steps that left without all their ranks and are corrected by late ones; the oldest go
};

// One segment as the run book knows it.
struct ProducerSlot {
  std::shared_ptr<const ProducerInfo> info;
  std::uint64_t next_steps = 1;      // first publication not handed over yet
  std::uint64_t next_events = 1;
  std::uint64_t counted_steps = 1;   // publications below were counted as read or lost, perhaps before a restart
  std::uint64_t counted_events = 1;
  RankTotals seen;                   // the segment's cumulative totals applied so far
  LivenessReport liveness;
  bool has_liveness = false;
  bool gone = false;                 // file vanished: nothing more will come
  bool dirty = true;                 // cursor row differs from the store's
  std::int64_t last_step = -1;       // highest delivered (block 0)
  std::int64_t last_boot_ns = 0;     // of its last sample
  std::int64_t last_wall_ns = 0;
  int absurd_in_a_row = 0;
  std::int64_t absurd_step = 0;
  // The dead segment of this rank that this one follows, until its first step says whether the job went on or went back.
  std::shared_ptr<ProducerSlot> predecessor;
  std::int64_t reached = -1;  // highest step delivered; unknown after a restart of lossgauged
  // What a restart would ask for: publications below were joined or given up (settled), and that is in the store (committed).
  std::uint64_t settled_steps = 1;
  std::uint64_t settled_events = 1;
  std::uint64_t committed_steps = 1;
  std::uint64_t committed_events = 1;

  bool IsAlive() const {
    return !gone && (!has_liveness || liveness.producer_state == ProducerState::kLive ||
                     liveness.producer_state == ProducerState::kFrozen);
  }
  bool IsDone() const { return gone || (has_liveness && !IsAlive() && liveness.drained); }
  bool HasEnded() const { return has_liveness && liveness.producer_state == ProducerState::kEnded; }
};

// What a run shows of a rank of its newest attempt.
struct RankState {
  static constexpr std::uint32_t kNoOrdinal = UINT32_MAX;
  std::uint32_t rank = 0;
  std::uint32_t ordinal = kNoOrdinal;  // of the attempt's ranks as they came: a place in its bit sets
  std::shared_ptr<ProducerSlot> slot;  // the newest segment of this rank
  std::optional<RankSample> last_sample;
  std::optional<double> step_seconds;
  WindowTracker windows;
  TimeNs last_record_time_ns = 0;
};

enum class SampleFate { kPending, kLate, kDuplicate, kAbsurd };

class Attempt {
 public:
  // `name` is shown and unique in its run; `declared` is what the producers say. They differ from the second generation on: a job that
  // is started again under the same attempt name and goes back in its steps.
  Attempt(std::string name, TimeNs start_ns, TimeNs first_seen_ns);
  void Continue(std::string declared, std::uint64_t generation) {
    declared_ = std::move(declared);
    generation_ = generation;
  }

  // "" if admitted, else the cause of the refusal: "duplicate_rank", "max_ranks", "layout_mismatch".
  // A superseded slot is drained, but does not stand for its rank.
  std::string AddSlot(std::shared_ptr<ProducerSlot> slot, const JoinOptions& options, TimeNs now_ns, bool is_superseded = false);
  // The successor of a dead segment begins with `step`: does it repeat what this attempt already has?
  bool GoesBack(const ProducerSlot& slot, std::int64_t step) const;
  // Takes out all successors that have not delivered a step; the ranks' dead segments stand for them again.
  std::vector<std::shared_ptr<ProducerSlot>> TakeSuccessors();
  SampleFate AddSample(const std::shared_ptr<ProducerSlot>& slot, RankSample&& sample, const JoinOptions& options);
  // The next step that may leave, in rising order; nothing if none may yet.
  std::optional<JoinedStep> TakeStep(const JoinOptions& options, TimeNs now_ns);
  // The step that left last, incomplete, with its sequence: late ranks will be added to it. `rank_steps` of the summary are kept up to `max_rank_steps`.
  void KeepOpen(const JoinedStep& joined, const JoinOptions& options);
  // Open steps that late ranks were added to since the last call.
  std::vector<std::shared_ptr<const StepSummary>> TakeCorrected(std::size_t max_rank_steps);
  // Sets settled_steps of all slots: their first publication that still waits here, or the next to come.
  void MarkSettled() const;
  // The newest segment of its rank.
  bool StandsForRank(const ProducerSlot& slot) const {
    const auto rank = ranks_.find(slot.info->layout.rank);
    return rank != ranks_.end() && rank->second.slot.get() == &slot;
  }
  // True for the rank whose sums stand for its tensor-parallel group in run totals.
  bool Counts(const ProducerInfo& info) const;

  bool HasLiveProducer() const;
  bool HasLostProducer() const;
  // All producers have ended, are drained, and nothing waits.
  bool HasEnded() const;
  bool HasFailed() const;
  bool HasPending() const { return !pending_.empty(); }
  AttemptView View() const;

  const std::string& name() const { return view_.attempt; }
  const std::string& declared() const { return declared_; }
  std::uint64_t generation() const { return generation_; }
  TimeNs start_ns() const { return view_.start_time_ns; }
  void set_start_ns(TimeNs start_ns) { view_.start_time_ns = start_ns; }
  const std::optional<AttemptComparison>& comparison() const { return view_.comparison; }
  void set_comparison(const AttemptComparison& comparison) { view_.comparison = comparison; }
  void set_resumed_after(std::int64_t step) { view_.resumed_after_step = step; }
  // Steps up to here are known of the run: the first record of this attempt is believed up to max_step_jump beyond.
  void set_known_step(std::int64_t step) { known_step_ = std::max(known_step_, step); }
  template <class Clamp>
  void ClampTimes(const Clamp& clamp) {
    clamp(&first_seen_ns_);
    clamp(&last_step_time_ns_);
    for (auto& [rank, state] : ranks_) {
      clamp(&state.last_record_time_ns);
      if (state.slot != nullptr) clamp(&state.slot->liveness.time_ns);
    }
  }
  // Lets go of gone segments that do not stand for their rank.
  void TrimSlots();
  TimeNs first_seen_ns() const { return first_seen_ns_; }
  // A producer of it was last seen alive; 0 = not since this process began.
  TimeNs last_alive_ns() const { return last_alive_ns_; }
  void set_last_alive_ns(TimeNs time) { last_alive_ns_ = std::max(last_alive_ns_, time); }
  std::optional<std::int64_t> last_joined_step() const { return last_joined_; }
  TimeNs last_step_time_ns() const { return last_step_time_ns_; }
  const std::map<std::uint32_t, RankState>& ranks() const { return ranks_; }
  std::map<std::uint32_t, RankState>& ranks() { return ranks_; }
  const std::vector<std::shared_ptr<ProducerSlot>>& slots() const { return slots_; }
  std::vector<std::shared_ptr<ProducerSlot>>& slots() { return slots_; }

 private:
  friend class RunCodec;
  struct Pending {
    std::vector<RankSample> samples;  // as they came
    std::vector<std::shared_ptr<ProducerSlot>> slots;  // of each
    std::vector<bool> has;  // by ordinal
    TimeNs first_ns = 0;
    std::uint32_t owing = 0;  // a rank that was seen to owe the step: asked first
  };
  struct OpenStep {
    StepSums sums;
    StepSummary summary;
    std::vector<bool> has;  // by ordinal
    std::size_t missing = 0;  // ranks; more than the summary names
    bool corrected = false;
    std::size_t bytes = 0;  // about
  };

  static bool Has(const std::vector<bool>& bits, std::uint32_t ordinal) { return ordinal < bits.size() && bits[ordinal]; }
  static void Set(std::vector<bool>* bits, std::uint32_t ordinal) {
    if (ordinal >= bits->size()) bits->resize(std::size_t{ordinal} + 1);
    (*bits)[ordinal] = true;
  }
  // Its rank has not gone past the step, lives, and has a loss.
  static bool Owes(const RankState& state, std::int64_t step, const Pending& pending);
  bool IsComplete(std::int64_t step, Pending* pending) const;
  void FinishStep(JoinedStep* joined, const JoinOptions& options, TimeNs now_ns);
  void NameUnseen(JoinedStep* joined);
  bool AddLate(const RankState& state, const RankSample& sample);
  std::map<std::int64_t, OpenStep>::iterator DropOpen(std::map<std::int64_t, OpenStep>::iterator step);
  // Gives new ranks their places; after ranks were taken out, finds anew who stands for each tensor-parallel group.
  void Index(bool anew);

  AttemptView view_;
  std::string declared_;
  std::uint64_t generation_ = 1;
  std::int64_t known_step_ = 0;
  TimeNs first_seen_ns_;
  TimeNs last_alive_ns_ = 0;
  TimeNs newest_producer_ns_ = 0;  // when the last producer was admitted
  std::map<std::uint32_t, RankState> ranks_;
  std::uint32_t next_ordinal_ = 0;
  std::map<TensorGroup, std::uint32_t> lowest_;  // index within its group of the lowest rank with a loss; empty without tensor parallelism
  std::map<std::int64_t, OpenStep> open_steps_;
  std::size_t open_bytes_ = 0;
  std::size_t missing_of_last_ = 0;  // ranks of the step that left last; its summary names the first of them
  std::vector<std::shared_ptr<ProducerSlot>> slots_;  // all segments, successors of a rank included
  std::map<std::int64_t, Pending> pending_;
  std::size_t pending_samples_ = 0;
  std::optional<std::int64_t> last_joined_;
  std::optional<std::int64_t> highest_;  // accepted step
  std::int64_t last_boot_ns_ = 0;        // of the last joined step
  std::int64_t last_wall_ns_ = 0;
  TimeNs last_step_time_ns_ = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_ATTEMPT_H_
