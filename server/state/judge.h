// The judge of one run: detectors, incidents and verdict policy behind one interface. server/detect implements it.
//
// Everything a judge decides follows from the calls below and their times, in order; it reads no clock. Called by the drain thread only.
#ifndef LOSSGAUGE_SERVER_STATE_JUDGE_H_
#define LOSSGAUGE_SERVER_STATE_JUDGE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/state/incident.h"
#include "server/state/joined_step.h"
#include "server/state/policy_view.h"
#include "server/state/verdict.h"

namespace lossgauge::state {

// What a run's producers look like now; rebuilt by the run book from LivenessReports.
struct Presence {
  TimeNs now_ns = 0;
  std::vector<LivenessReport> producers;  // newest attempt, by rank; and older attempts' producers that are still live
  std::string newest_attempt;
  std::optional<std::int64_t> last_step;  // joined, newest attempt
  TimeNs last_step_time_ns = 0;           // receive time; 0 = none yet
  TimeNs first_seen_ns = 0;               // of the newest attempt
  std::vector<std::uint32_t> expected_ranks;  // of this node, with has_loss
  std::uint64_t records_lost = 0;         // over the run's life
  bool source_reachable = true;           // ring directory or forwarder can be read
  std::size_t unreachable_ranks = 0;      // of a job: nothing is heard of their nodes, or not yet all that they have
  std::uint32_t first_unreachable_rank = 0;
};

// A scheduler's word, from ReportAction.
struct LedgerEntry {
  Action action = Action::kUnknown;
  std::string actor;
  std::string comment;
  std::string attempt;
  TimeNs time_ns = 0;
};

class RunJudge {
 public:
  virtual ~RunJudge() = default;

  // Steps come in order of joining: rising within an attempt; a new attempt may go back.
  virtual void OnStep(const JoinedStep& step) = 0;
  virtual void OnEvent(const ProducerEvent& event) = 0;
  virtual void OnLoss(const LossReport& report) = 0;
  // At least once a second, and after anything of the presence changed.
  virtual void OnPresence(const Presence& presence) = 0;
  virtual void OnAction(const LedgerEntry& entry) = 0;
  // False if there is no such incident.
  virtual bool Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement) = 0;

  // "advise" or "shadow", kept with the state, whatever the policy says; "": as the policy says.
  virtual void SetMode(const std::string& mode) { (void)mode; }
  // Another run had the same as this resolved incident, at the same step of the same data.
  virtual void NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) {
    (void)incident_id, (void)sibling, (void)now_ns;
  }

  // Pure: depends on what was handed in so far and on `now_ns` only.
  virtual Verdict Evaluate(TimeNs now_ns) const = 0;

  // Open ones and the resolved ones of late (bounded), newest onset last.
  virtual std::vector<Incident> Incidents() const = 0;
  // Incidents opened, changed or resolved since the last call; the run book writes them to the store.
  virtual std::vector<Incident> TakeChangedIncidents() = 0;

  struct Counters {
    // Since the run was first seen, kept with the state. kind as in Incident::kind, "" where there is none.
    struct Entry {
      Condition condition;
      std::string kind;
      std::uint64_t opened = 0;
    };
    std::vector<Entry> incidents;
  };
  virtual Counters counters() const = 0;

  // What it judges by; null if it does not tell.
  virtual std::shared_ptr<const PolicyView> policy() const { return nullptr; }

  // State for the store: versioned bytes. Restore refuses what it cannot read, and the judge then starts clean and says so in its verdict
  // ("baseline warming").
  virtual std::string Save() const = 0;
  virtual absl::Status Restore(std::string_view bytes) = 0;
};

class JudgeFactory {
 public:
  virtual ~JudgeFactory() = default;
  virtual std::unique_ptr<RunJudge> MakeJudge(const std::string& run) = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JUDGE_H_
