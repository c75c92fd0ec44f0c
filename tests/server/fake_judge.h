// A judge that finds nothing and writes down what it was told; it counts its steps, and that count is its saved state.
#ifndef LOSSGAUGE_TESTS_SERVER_FAKE_JUDGE_H_
#define LOSSGAUGE_TESTS_SERVER_FAKE_JUDGE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/state/judge.h"

namespace lossgauge::testing {

class FakeJudge final : public state::RunJudge {
 public:
  struct Told {
    std::vector<std::string> calls;             // "step 1/7", "event 6", "lost 3", "presence live,lost"
    std::vector<state::StepSummary> steps;
    std::vector<bool> all_ranks_visible;
    std::vector<state::Presence> presences;
    std::uint64_t lost = 0;
    std::uint64_t steps_known = 0;              // over restarts
    state::Action action = state::Action::kContinue;  // what Evaluate says
    std::vector<state::Incident> changed;             // to be taken once
    std::function<void()> on_step;
  };
  explicit FakeJudge(std::shared_ptr<Told> told) : told_(std::move(told)) {}

  void OnStep(const state::JoinedStep& step) override {
    told_->calls.push_back("step " + step.summary.attempt + "/" + std::to_string(step.summary.step));
    told_->steps.push_back(step.summary);
    told_->all_ranks_visible.push_back(step.all_ranks_visible);
    told_->steps_known = ++steps_;
    if (told_->on_step) told_->on_step();
  }
  void OnEvent(const state::ProducerEvent& event) override { told_->calls.push_back("event " + std::to_string(event.kind)); }
  void OnLoss(const state::LossReport& report) override {
    told_->calls.push_back("lost " + std::to_string(report.records));
    told_->lost += report.records;
  }
  void OnPresence(const state::Presence& presence) override { told_->presences.push_back(presence); }
  void OnAction(const state::LedgerEntry&) override { told_->calls.push_back("action"); }
  void SetMode(const std::string& mode) override { told_->calls.push_back("mode " + mode); }
  bool Acknowledge(const std::string&, const state::Acknowledgement&) override { return false; }
  state::Verdict Evaluate(state::TimeNs now_ns) const override {
    state::Verdict verdict;
    verdict.action = told_->action;
    verdict.evaluated_at_ns = now_ns;
    return verdict;
  }
  std::vector<state::Incident> Incidents() const override { return {}; }
  std::vector<state::Incident> TakeChangedIncidents() override { return std::exchange(told_->changed, {}); }
  Counters counters() const override { return {}; }
  std::string Save() const override { return std::to_string(steps_); }
  absl::Status Restore(std::string_view bytes) override {
    if (bytes.empty() || bytes.find_first_not_of("0123456789") != std::string_view::npos) return absl::InvalidArgumentError("not mine");
    steps_ = std::stoull(std::string(bytes));
    told_->steps_known = steps_;
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<Told> told_;
  std::uint64_t steps_ = 0;
};

class FakeJudges final : public state::JudgeFactory {
 public:
  std::unique_ptr<state::RunJudge> MakeJudge(const std::string& run) override { return std::make_unique<FakeJudge>(told(run)); }
  std::shared_ptr<FakeJudge::Told> told(const std::string& run) {
    auto& entry = told_[run];
    if (!entry) entry = std::make_shared<FakeJudge::Told>();
    return entry;
  }

 private:
  std::map<std::string, std::shared_ptr<FakeJudge::Told>> told_;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_FAKE_JUDGE_H_
