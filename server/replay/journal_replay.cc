#include "server/replay/journal_replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/detect/judge.h"
#include "server/detect/policy_fields.h"
#include "server/replay/bundle.h"
#include "server/replay/replay_record.h"
#include "server/state/journal_reader.h"
#include "server/state/judge_journal.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMostKept = 65'536;

class JournalJudge final : public state::JournalSink {
 public:
  JournalJudge(std::string run, const std::optional<detect::PolicySet>& other) : run_(std::move(run)), other_(other), record_(kMostKept) {}

  void OnBeginning(const state::JournalBeginning& beginning) override {
    if (judge_ != nullptr && beginning.goes_on) return;
    if (judge_ != nullptr) ++outcome.pieces_lost;
    judge_ = std::make_unique<detect::Judge>(run_, other_ ? other_->For(run_) : detect::PolicyOf(beginning.policy));
    if (!beginning.judge.empty() && !judge_->Restore(beginning.judge).ok()) outcome.error = "the judge's state in it is of another version of lossgauged";
    std::vector<state::Incident> open = judge_->Incidents();
    std::erase_if(open, [](const state::Incident& incident) { return !incident.open; });
    record_.OnIncidents(open);
  }
  void OnPolicy(const state::PolicyView& policy) override {
    if (other_) return;
    auto next = std::make_unique<detect::Judge>(run_, detect::PolicyOf(policy));
    (void)next->Restore(judge_->Save());  // as lossgauged did: what it cannot read it begins anew
    judge_ = std::move(next);
  }
  void OnStep(const state::JoinedStep& step) override {
    const Moment& before = record_.now;
    if (outcome.steps == 0 || step.summary.attempt != before.attempt) ++outcome.attempts;
    record_.now = {outcome.steps++, 0, step.summary.attempt, step.summary.step};
    if (!outcome.first) outcome.first = record_.now;
    outcome.most_ranks = std::max(outcome.most_ranks, step.summary.ranks);
    judge_->OnStep(step);
  }
  void OnEvent(const state::ProducerEvent& event) override { judge_->OnEvent(event); }
  void OnLoss(const state::LossReport& report) override { judge_->OnLoss(report); }
  void OnPresence(const state::Presence& presence) override { judge_->OnPresence(presence); }
  void OnAction(const state::LedgerEntry& entry) override { judge_->OnAction(entry); }
  void OnAcknowledge(const std::string& incident_id, const state::Acknowledgement& acknowledgement) override {
    (void)judge_->Acknowledge(incident_id, acknowledgement);
  }
  void OnMode(const std::string& mode) override { judge_->SetMode(mode); }
  void OnSibling(const std::string& incident_id, const std::string& sibling, state::TimeNs now_ns) override {
    judge_->NameSibling(incident_id, sibling, now_ns);
  }
  void OnVerdict(state::TimeNs now_ns, std::uint64_t hash) override {
    record_.OnIncidents(judge_->TakeChangedIncidents());
    const state::Verdict verdict = judge_->Evaluate(now_ns);
    record_.OnVerdict(verdict);
    ++outcome.verdicts;
    if (state::VerdictHash(verdict) == hash) return;
    ++outcome.verdicts_unlike;
    if (!outcome.first_unlike) outcome.first_unlike = record_.now;
  }

  bool has_begun() const { return judge_ != nullptr; }
  JournalOutcome Finish() {
    outcome.result = std::move(record_.result);
    return std::move(outcome);
  }

  JournalOutcome outcome;

 private:
  const std::string run_;
  const std::optional<detect::PolicySet>& other_;
  ReplayRecord record_;
  std::unique_ptr<detect::Judge> judge_;
};

}  // namespace

absl::StatusOr<std::optional<JournalOutcome>> ReplayJournal(const std::string& path, const std::optional<detect::PolicySet>& other) {
  const auto run = ReadBundleRun(path);
  if (!run.ok()) return run.status();
  JournalJudge judge(*run, other);
  state::JournalReader reader(*run, &judge);
  const absl::Status status = ReadBundleJournal(path, [&](std::string_view part) {
    if (const absl::Status read = reader.Read(part); !read.ok()) judge.outcome.error = std::string(read.message());
    return judge.outcome.error.empty();
  });
  if (!judge.has_begun()) {
    if (!status.ok()) return status;
    return std::optional<JournalOutcome>();
  }
  if (!status.ok()) judge.outcome.error = std::string(status.message());
  return std::optional<JournalOutcome>(judge.Finish());
}

}  // namespace lossgauge::replay
