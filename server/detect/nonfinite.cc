#include "server/detect/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/state/tensor_group.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kNonfinite};

struct Count {
  std::uint64_t rows = 0;
  std::uint64_t grad_rows = 0;
  std::optional<double> grad_norm;
  std::optional<double> reported_loss;
  std::optional<std::uint32_t> rank;  // the only one concerned
  int ranks = 0;
  bool any() const { return rows > 0 || grad_rows > 0 || grad_norm || reported_loss; }
};

Count CountNonfinite(const state::JoinedStep& joined) {
  Count count;
  // The ranks of a tensor-parallel group count the same rows: once for the group, and by whoever saw most.
  struct Rows {
    std::uint64_t loss = 0;
    std::uint64_t grad = 0;
  };
  std::map<state::TensorGroup, Rows> groups;
  for (const state::RankSample& sample : joined.samples) {
    const lg_step_record& record = sample.record;
    const bool grad_norm = (record.present & LG_HAS_GRAD_NORM) != 0 && !std::isfinite(record.grad_norm);
    const bool reported = (record.present & LG_HAS_REPORTED_LOSS) != 0 && !std::isfinite(record.reported_loss);
    if (record.nonfinite_rows == 0 && record.nonfinite_grad_rows == 0 && !grad_norm && !reported) continue;
    Rows& rows = groups[state::TensorGroupOf(sample.producer->layout)];
    rows.loss = std::max(rows.loss, record.nonfinite_rows);
    rows.grad = std::max(rows.grad, record.nonfinite_grad_rows);
    if (grad_norm) count.grad_norm = record.grad_norm;
    if (reported) count.reported_loss = record.reported_loss;
    ++count.ranks;
    if (record.nonfinite_rows > 0 || record.nonfinite_grad_rows > 0) {
      if (!count.rank) count.rank = sample.producer->layout.rank;
    }
  }
  for (const auto& [group, rows] : groups) {
    count.rows += rows.loss;
    count.grad_rows += rows.grad;
  }
  if (count.ranks != 1) count.rank.reset();
  return count;
}

std::string Parts(const Count& count, const state::StepSummary& summary) {
  std::vector<std::string> parts;
  if (count.rows > 0) parts.push_back(absl::StrCat(count.rows, " of ", summary.unmasked_tokens, " loss rows"));
  if (count.grad_rows > 0) parts.push_back(absl::StrCat(count.grad_rows, " gradient rows"));
  if (count.grad_norm) parts.push_back(absl::StrFormat("the gradient norm (%f)", *count.grad_norm));
  if (count.reported_loss) parts.push_back(absl::StrFormat("the reported loss (%f)", *count.reported_loss));
  return absl::StrJoin(parts, ", ");
}

}  // namespace

bool NonfiniteDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const state::StepSummary& summary = signals.joined->summary;
  const Count count = CountNonfinite(*signals.joined);
  if (!count.any()) {
    run_ = 0;
    if (!open_) return false;
    if (++clean_ >= policy.nonfinite_close_steps) {
      book.Resolve(kSlot, signals.moment, last_bad_step_ - onset_step_ + 1);
      OnAttempt();
    } else if (const state::Incident* incident = book.FindOpen(kSlot);
               clean_ == 1 && incident != nullptr && incident->severity != state::Severity::kWarning) {
      // Finite again: no longer critical, but watched until the clean steps have passed. Its last step stays the last that was not.
      Finding finding{incident->condition, incident->kind, state::Severity::kWarning, onset_step_, incident->peak_step, incident->rank,
                      incident->summary, incident->evidence};
      absl::StrAppend(&finding.summary, "; finite again since step ", signals.moment.step);
      book.Report(kSlot, std::move(finding), {signals.moment.attempt, last_bad_step_, signals.moment.time_ns});
    }
    return false;
  }
  if (!open_) {
    open_ = true;
    onset_step_ = signals.moment.step;
    bad_steps_ = longest_ = run_ = 0;
  }
  clean_ = 0;
  ++run_;
  ++bad_steps_;
  longest_ = std::max(longest_, run_);
  last_bad_step_ = signals.moment.step;
  Finding finding;
  finding.condition = state::Condition::kNonfinite;
  finding.severity = run_ >= policy.nonfinite_persist_steps ? state::Severity::kCritical : state::Severity::kWarning;
  finding.onset_step = onset_step_;
  finding.peak_step = signals.moment.step;
  finding.rank = count.rank;
  finding.summary = absl::StrCat("Not finite at step ", signals.moment.step, ": ", Parts(count, summary));
  if (count.rank) absl::StrAppend(&finding.summary, "; rank ", *count.rank, " alone");
  if (bad_steps_ > 1) absl::StrAppend(&finding.summary, "; ", bad_steps_, " such steps since ", onset_step_, ", ", run_, " in a row");
  finding.evidence = {{"nonfinite_rows", static_cast<double>(count.rows), "rows", ""},
                      {"nonfinite_grad_rows", static_cast<double>(count.grad_rows), "rows", ""},
                      {"unmasked_tokens", static_cast<double>(summary.unmasked_tokens), "tokens", ""},
                      {"steps_in_a_row", static_cast<double>(run_), "steps", ""},
                      {"steps", static_cast<double>(bad_steps_), "steps", ""}};
  if (count.grad_norm) finding.evidence.push_back({"grad_norm", *count.grad_norm, "", ""});
  if (count.reported_loss) finding.evidence.push_back({"reported_loss", *count.reported_loss, "nats", ""});
  if (summary.first_nonfinite_row) {
    finding.evidence.push_back({"first_nonfinite_row", static_cast<double>(summary.first_nonfinite_row->position), "",
                                absl::StrCat("rank ", summary.first_nonfinite_row->rank)});
  }
  book.Report(kSlot, std::move(finding), signals.moment);
  return true;
}

void NonfiniteDetector::Save(StateWriter& out) const {
  out.Put<std::uint8_t>(open_);
  out.Put(run_);
  out.Put(longest_);
  out.Put(clean_);
  out.Put(onset_step_);
  out.Put(last_bad_step_);
  out.Put(bad_steps_);
}

void NonfiniteDetector::Restore(StateReader& in) {
  open_ = in.GetBool();
  run_ = in.GetIn<std::int32_t>(0, 1 << 30);
  longest_ = in.GetIn<std::int32_t>(0, 1 << 30);
  clean_ = in.GetIn<std::int32_t>(0, 1 << 30);
  onset_step_ = in.GetStep();
  last_bad_step_ = in.GetStep();
  bad_steps_ = in.GetStep();
}

}  // namespace lossgauge::detect
