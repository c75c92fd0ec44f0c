// The calls of lossgauge.v1 as functions over the newest snapshot and history: what gRPC and HTTP both serve.
#ifndef LOSSGAUGE_SERVER_API_API_H_
#define LOSSGAUGE_SERVER_API_API_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "lossgauge/v1/post_mortem.pb.h"
#include "server/api/step_watch.h"
#include "server/api/verdict_watch.h"
#include "server/state/board.h"
#include "server/state/clock.h"
#include "server/state/store.h"

namespace lossgauge::api {

// Thread-safe. References must outlive it. Errors: INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE, RESOURCE_EXHAUSTED with text that names the
// field and the remedy; what history cannot read comes as history says it.
class Api {
 public:
  // `history` may be null: then only what snapshots hold is served.
  Api(const state::SnapshotBoard& board, state::Mailbox& mailbox, std::shared_ptr<state::HistoryReader> history, state::Clock& clock)
      : board_(board), mailbox_(mailbox), history_(std::move(history)), clock_(clock) {}

  // From the newest snapshot: never wait, but for runs of the past.
  absl::StatusOr<v1::ListRunsResponse> ListRuns(const v1::ListRunsRequest& request) const;
  absl::StatusOr<v1::Run> GetRun(const v1::GetRunRequest& request) const;
  absl::StatusOr<v1::Policy> GetPolicy(const v1::GetPolicyRequest& request) const;
  absl::StatusOr<v1::Verdict> GetVerdict(const v1::GetVerdictRequest& request) const;
  absl::StatusOr<VerdictWatch> WatchVerdict(const v1::WatchVerdictRequest& request) const;
  absl::StatusOr<StepWatch> WatchSteps(const v1::WatchStepsRequest& request) const;

  // May read history: not for threads that must not block.
  absl::StatusOr<v1::ListVerdictsResponse> ListVerdicts(const v1::ListVerdictsRequest& request) const;
  absl::StatusOr<v1::ListStepsResponse> ListSteps(const v1::ListStepsRequest& request) const;
  absl::StatusOr<v1::ListIncidentsResponse> ListIncidents(const v1::ListIncidentsRequest& request) const;
  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request) const;
  // Looks at up to 600 000 rows: `is_cancelled`, where given, is asked every 500, and ends it with CANCELLED.
  absl::StatusOr<v1::Comparison> CompareRuns(const v1::CompareRunsRequest& request, const std::function<bool()>& is_cancelled = nullptr) const;
  absl::StatusOr<v1::Explanation> Explain(const v1::ExplainRequest& request) const;
  absl::StatusOr<v1::ListJournalResponse> ListJournal(const v1::ListJournalRequest& request) const;
  absl::StatusOr<v1::ListPoliciesResponse> ListPolicies(const v1::ListPoliciesRequest& request) const;

  // `done` is called once, on the drain thread when it comes round, or at once if the request is refused. If the drain thread has stopped,
  // never: callers keep a deadline of their own.
  void AcknowledgeIncident(const v1::AcknowledgeIncidentRequest& request, std::function<void(absl::StatusOr<v1::Incident>)> done) const;
  void ReportAction(const v1::ReportActionRequest& request, std::function<void(absl::StatusOr<v1::ReportActionResponse>)> done) const;

  void SetMode(const v1::SetModeRequest& request, std::function<void(absl::StatusOr<v1::SetModeResponse>)> done) const;

  const state::SnapshotBoard& board() const { return board_; }
  state::Clock& clock() const { return clock_; }

 private:
  const state::SnapshotBoard& board_;
  state::Mailbox& mailbox_;
  std::shared_ptr<state::HistoryReader> history_;
  state::Clock& clock_;
};

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_API_H_
