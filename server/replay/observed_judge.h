// A judge that is listened to: what it tells the run book about incidents and verdicts is told to an observer, too, at the moment it is told.
#ifndef LOSSGAUGE_SERVER_REPLAY_OBSERVED_JUDGE_H_
#define LOSSGAUGE_SERVER_REPLAY_OBSERVED_JUDGE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/state/judge.h"

namespace lossgauge::replay {

class JudgeObserver {
 public:
  virtual ~JudgeObserver() = default;
  virtual void OnIncidents(const std::vector<state::Incident>& changed) = 0;
  virtual void OnVerdict(const state::Verdict& verdict) = 0;
};

class ObservedJudge final : public state::RunJudge {
 public:
  ObservedJudge(std::unique_ptr<state::RunJudge> judge, JudgeObserver* observer) : judge_(std::move(judge)), observer_(observer) {}

  void OnStep(const state::JoinedStep& step) override { judge_->OnStep(step); }
  void OnEvent(const state::ProducerEvent& event) override { judge_->OnEvent(event); }
  void OnLoss(const state::LossReport& report) override { judge_->OnLoss(report); }
  void OnPresence(const state::Presence& presence) override { judge_->OnPresence(presence); }
  void OnAction(const state::LedgerEntry& entry) override { judge_->OnAction(entry); }
  bool Acknowledge(const std::string& incident_id, const state::Acknowledgement& acknowledgement) override {
    return judge_->Acknowledge(incident_id, acknowledgement);
  }
  void SetMode(const std::string& mode) override { judge_->SetMode(mode); }
  void NameSibling(const std::string& incident_id, const std::string& sibling, state::TimeNs now_ns) override {
    judge_->NameSibling(incident_id, sibling, now_ns);
  }
  state::Verdict Evaluate(state::TimeNs now_ns) const override {
    state::Verdict verdict = judge_->Evaluate(now_ns);
    observer_->OnVerdict(verdict);
    return verdict;
  }
  std::vector<state::Incident> Incidents() const override { return judge_->Incidents(); }
  std::vector<state::Incident> TakeChangedIncidents() override {
    std::vector<state::Incident> changed = judge_->TakeChangedIncidents();
    observer_->OnIncidents(changed);
    return changed;
  }
  Counters counters() const override { return judge_->counters(); }
  std::string Save() const override { return judge_->Save(); }
  absl::Status Restore(std::string_view bytes) override { return judge_->Restore(bytes); }

 private:
  const std::unique_ptr<state::RunJudge> judge_;
  JudgeObserver* const observer_;
};

// Makes the judges of another factory listened to. Both outlive it.
class ObservedJudgeFactory final : public state::JudgeFactory {
 public:
  ObservedJudgeFactory(state::JudgeFactory* judges, JudgeObserver* observer) : judges_(judges), observer_(observer) {}
  std::unique_ptr<state::RunJudge> MakeJudge(const std::string& run) override {
    return std::make_unique<ObservedJudge>(judges_->MakeJudge(run), observer_);
  }

 private:
  state::JudgeFactory* const judges_;
  JudgeObserver* const observer_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_OBSERVED_JUDGE_H_
