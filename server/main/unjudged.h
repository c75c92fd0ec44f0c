// The judge of a build without detectors: it knows nothing and says so.
#ifndef LOSSGAUGE_SERVER_MAIN_UNJUDGED_H_
#define LOSSGAUGE_SERVER_MAIN_UNJUDGED_H_

#include <memory>
#include <string>

#include "server/state/judge.h"

namespace lossgauge::main {

class Unjudged final : public state::RunJudge {
 public:
  void OnStep(const state::JoinedStep& step) override {
    attempt_ = step.summary.attempt;
    last_step_ = step.summary.step;
  }
  void OnEvent(const state::ProducerEvent&) override {}
  void OnLoss(const state::LossReport&) override {}
  void OnPresence(const state::Presence&) override {}
  void OnAction(const state::LedgerEntry&) override {}
  bool Acknowledge(const std::string&, const state::Acknowledgement&) override { return false; }
  state::Verdict Evaluate(state::TimeNs now_ns) const override {
    state::Verdict verdict;
    verdict.action = state::Action::kUnknown;
    verdict.reason = "this build has no detectors";
    verdict.reason_codes = {"no_data"};
    verdict.attempt = attempt_;
    verdict.last_step = last_step_;
    verdict.evaluated_at_ns = now_ns;
    verdict.valid_until_ns = now_ns + 30'000'000'000;
    return verdict;
  }
  std::vector<state::Incident> Incidents() const override { return {}; }
  std::vector<state::Incident> TakeChangedIncidents() override { return {}; }
  Counters counters() const override { return {}; }
  std::string Save() const override { return {}; }
  absl::Status Restore(std::string_view) override { return absl::OkStatus(); }

 private:
  std::string attempt_;
  std::optional<std::int64_t> last_step_;
};

class UnjudgedFactory final : public state::JudgeFactory {
 public:
  std::unique_ptr<state::RunJudge> MakeJudge(const std::string&) override { return std::make_unique<Unjudged>(); }
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_UNJUDGED_H_
