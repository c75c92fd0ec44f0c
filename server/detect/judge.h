// All detectors of a run, their incidents, and its verdict.
//
// Step of the path: JoinedStep -> signals -> exact checks (integrity, non-finite, presence) -> statistics (factors, loss episode, level shift) ->
// incident book -> verdict on demand. Reads no clock and draws no random number: the same calls give the same bits. Not thread-safe.
#ifndef LOSSGAUGE_SERVER_DETECT_JUDGE_H_
#define LOSSGAUGE_SERVER_DETECT_JUDGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/detect/accounting_detector.h"
#include "server/detect/factor_watch.h"
#include "server/detect/grad_explosion.h"
#include "server/detect/incident_book.h"
#include "server/detect/integrity.h"
#include "server/detect/level_shift.h"
#include "server/detect/damage.h"
#include "server/detect/logit_blowup.h"
#include "server/detect/loss_collapse.h"
#include "server/detect/loss_episode.h"
#include "server/detect/nonfinite.h"
#include "server/detect/normalizer_drift.h"
#include "server/detect/policy.h"
#include "server/detect/producer_watch.h"
#include "server/detect/rank_checks.h"
#include "server/detect/run_history.h"
#include "server/detect/shard_watch.h"
#include "server/detect/slowdown.h"
#include "server/detect/step_interval.h"
#include "server/detect/verdict_policy.h"
#include "server/state/judge.h"

namespace lossgauge::detect {

// Largest state that Restore looks at; Save stays far below it (about 4 KiB with nothing open).
inline constexpr std::size_t kMaxStateBytes = 256 * 1024;
inline constexpr std::size_t kStateBudgetBytes = 12 * 1024;

// A checksum over saved bytes, as Save appends it. Public so that a fuzzer can get past it.
std::uint64_t StateChecksum(std::string_view bytes);

class Judge final : public state::RunJudge {
 public:
  Judge(std::string run, Policy policy);

  void OnStep(const state::JoinedStep& step) override;
  void OnEvent(const state::ProducerEvent& event) override;
  void OnLoss(const state::LossReport& report) override;
  void OnPresence(const state::Presence& presence) override;
  void OnAction(const state::LedgerEntry& entry) override;
  bool Acknowledge(const std::string& incident_id, const state::Acknowledgement& acknowledgement) override;
  void SetMode(const std::string& mode) override { state_.mode = mode; }
  void NameSibling(const std::string& incident_id, const std::string& sibling, state::TimeNs now_ns) override;
  state::Verdict Evaluate(state::TimeNs now_ns) const override;
  std::vector<state::Incident> Incidents() const override;
  std::vector<state::Incident> TakeChangedIncidents() override;
  Counters counters() const override;
  std::shared_ptr<const state::PolicyView> policy() const override { return policy_view_; }
  std::string Save() const override;
  absl::Status Restore(std::string_view bytes) override;

 private:
  // Everything that is saved: copied as a whole when a restore succeeds, dropped as a whole when it fails.
  struct State {
    explicit State(const std::string& run) : book(run) {}
    void Save(StateWriter& out) const;
    void Restore(StateReader& in);

    StepInterval interval;
    GradExplosionDetector grad_explosion;
    LogitBlowupDetector logit_blowup;
    FactorWatch tokens;
    LossEpisode loss;
    LevelShiftDetector level_shift;
    NonfiniteDetector nonfinite;
    LossCollapseDetector collapse;
    NormalizerDriftDetector normalizer_drift;
    IntegrityDetector integrity;
    ShardWatch shards;
    AccountingDetector accounting;
    RankMissingDetector rank_missing;
    RankOutlierDetector rank_outlier;
    RepeatedBatchDetector repeated_batch;
    SlowdownDetector slowdown;
    ProducerWatch producers;
    RunHistory history;
    Damage damage;

    std::string attempt;
    bool attempt_has_step = false;
    std::int64_t last_step = -1;           // of the attempt
    std::int64_t previous_last_step = -1;  // of the attempt before
    state::TimeNs last_step_time_ns = 0;
    state::TimeNs first_seen_ns = 0;
    state::TimeNs presence_ns = 0;
    state::TimeNs now_ns = 0;  // latest time handed in
    state::TimeNs unreachable_since_ns = 0;
    std::size_t unreachable_ranks = 0;  // of the last presence; not saved: the next one says it again
    std::uint32_t first_unreachable_rank = 0;
    state::TimeNs ended_ns = 0;
    std::int64_t steps_seen = 0;
    std::string mode;  // set by a person; empty: the policy's
    bool baseline_lost = false;
    bool last_step_time_known = true;  // false: it lay in the future and was brought back to the present
    std::array<double, 8> learning_rates{};  // newest first; 0 = absent
    IncidentBook book;
  };

  // False if the step belongs to an attempt that a newer one has replaced.
  bool EnterAttempt(const std::string& attempt, state::TimeNs start_ns, state::TimeNs now_ns, bool by_presence);
  StepSignals MakeSignals(const state::JoinedStep& step);
  void WatchFactors(StepSignals& signals);
  void WatchLoss(const StepSignals& signals);
  RunFacts Facts() const;
  Moment Now() const { return {state_.attempt, state_.last_step, state_.now_ns}; }

  const std::string run_;
  const Policy policy_;
  const std::shared_ptr<const state::PolicyView> policy_view_;
  State state_;
};

// One judge a run, with that run's policy. The factory outlives nothing: judges keep copies.
class DetectorJudgeFactory final : public state::JudgeFactory {
 public:
  explicit DetectorJudgeFactory(PolicySet policies) : policies_(std::move(policies)) {}
  std::unique_ptr<state::RunJudge> MakeJudge(const std::string& run) override;

 private:
  const PolicySet policies_;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_JUDGE_H_
