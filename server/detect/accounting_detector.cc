#include "server/detect/accounting_detector.h"

#include "absl/strings/str_cat.h"

namespace lossgauge::detect {

void AccountingDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  std::array<std::optional<AccountingFinding>, 2> found = {CheckDenominator(*signals.joined), reported_.OnStep(*signals.joined)};
  // A step that cannot be judged (a rank missing, nothing reported) is neither good nor bad.
  const bool judged = signals.joined->all_ranks_visible;
  for (std::size_t kind = 0; kind < streaks_.size(); ++kind) {
    AccountingFinding* finding = nullptr;
    for (auto& candidate : found) {
      if (candidate && candidate->kind == state::kAccountingKinds[kind]) finding = &*candidate;
    }
    Streak& streak = streaks_[kind];
    const IncidentBook::Slot slot{state::Condition::kAccounting, state::kAccountingKinds[kind]};
    if (finding == nullptr) {
      if (!judged || streak.bad_steps == 0) continue;
      streak.Push(false, signals.moment.step);
      if (streak.clean >= policy.loss_close_steps) {
        book.Resolve(slot, signals.moment, streak.last_bad_step - streak.onset_step + 1);
        streak = Streak();
      }
      continue;
    }
    streak.Push(true, signals.moment.step);
    Finding report;
    report.condition = state::Condition::kAccounting;
    report.kind = std::string(finding->kind);
    report.severity = policy.accounting_halts != 0 ? state::Severity::kCritical : state::Severity::kWarning;
    report.onset_step = streak.onset_step;
    report.peak_step = streak.onset_step;
    report.rank = finding->rank;
    report.summary = absl::StrCat(finding->summary, "; ", streak.bad_steps, streak.bad_steps == 1 ? " step" : " steps", " since step ",
                                  streak.onset_step);
    report.evidence = std::move(finding->evidence);
    book.Report(slot, std::move(report), signals.moment);
  }
}

void AccountingDetector::OnAttempt() {
  streaks_ = {};
  reported_.OnAttempt();
}

void AccountingDetector::Save(StateWriter& out) const {
  for (const Streak& streak : streaks_) streak.Save(out);
  reported_.Save(out);
}

void AccountingDetector::Restore(StateReader& in) {
  for (Streak& streak : streaks_) streak.Restore(in);
  reported_.Restore(in);
}

}  // namespace lossgauge::detect
