#include "server/detect/rank_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lossgauge::detect {
namespace {

using state::Condition;

constexpr int kCompleteSteps = 3;
constexpr std::size_t kNamedRanks = 8;

}  // namespace

void RankMissingDetector::OnStep(const StepSignals& signals, IncidentBook& book) {
  const std::vector<std::uint32_t>& missing = signals.joined->summary.missing_ranks;
  streak_.Push(!missing.empty(), signals.moment.step);
  const IncidentBook::Slot slot{Condition::kRankMissing};
  if (missing.empty()) {
    if (streak_.bad_steps > 0 && streak_.clean >= kCompleteSteps) {
      book.Resolve(slot, signals.moment, streak_.last_bad_step - streak_.onset_step + 1);
      streak_ = Streak();
    }
    return;
  }
  const std::size_t shown = std::min(missing.size(), kNamedRanks);
  std::string names = absl::StrJoin(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (shown < missing.size()) absl::StrAppend(&names, " and ", missing.size() - shown, " more");
  Finding finding;
  finding.condition = Condition::kRankMissing;
  finding.onset_step = streak_.onset_step;
  finding.peak_step = streak_.onset_step;
  if (missing.size() == 1) finding.rank = missing[0];
  finding.summary = absl::StrCat("No record of ", missing.size() == 1 ? "rank " : "ranks ", names, " since step ", streak_.onset_step,
                                 ": sums of these steps are incomplete");
  finding.evidence = {{"missing_ranks", static_cast<double>(missing.size()), "ranks", names},
                      {"steps", static_cast<double>(streak_.bad_steps), "steps", ""}};
  book.Report(slot, std::move(finding), signals.moment);
}

void RankOutlierDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const auto& ranks = signals.joined->summary.rank_steps;
  constexpr int kWindow = 5;
  if (ranks.size() < 4) return;
  struct Value {
    double loss;
    double tokens;
    std::uint32_t rank;
  };
  std::vector<Value> values;
  values.reserve(ranks.size());
  for (const state::RankSummary& rank : ranks) {
    if (rank.loss_nats && std::isfinite(*rank.loss_nats)) values.push_back({*rank.loss_nats, static_cast<double>(rank.unmasked_tokens), rank.rank});
  }
  if (values.size() < 4) return;
  std::vector<double> sorted(values.size());
  const auto median_of = [&sorted](auto&& get, const std::vector<Value>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) sorted[i] = get(all[i]);
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  };
  const double median = median_of([](const Value& v) { return v.loss; }, values);
  const double deviation = 1.4826 * median_of([median](const Value& v) { return std::fabs(v.loss - median); }, values);
  const double usual_tokens = median_of([](const Value& v) { return v.tokens; }, values);
  const double limit = std::max(policy.outlier_nats, policy.outlier_deviations * deviation);
  const Value* worst = nullptr;
  for (const Value& value : values) {
    if (value.tokens < 0.25 * usual_tokens) continue;  // a handful of tokens may have any loss
    if (worst == nullptr || std::fabs(value.loss - median) > std::fabs(worst->loss - median)) worst = &value;
  }
  bool bad = worst != nullptr && std::fabs(worst->loss - median) > limit;
  if (bad && streak_.bad_steps > 0 && worst->rank != rank_ && streak_.BadOfLast(kWindow) > 0 && book.FindOpen({Condition::kRankOutlier}) == nullptr) {
    streak_ = Streak();  // another rank: begin again
  }
  if (bad) rank_ = worst->rank;
  streak_.Push(bad, signals.moment.step);
  const IncidentBook::Slot slot{Condition::kRankOutlier};
  if (!bad) {
    if (streak_.bad_steps > 0 && streak_.clean >= policy.loss_close_steps) {
      book.Resolve(slot, signals.moment, streak_.last_bad_step - streak_.onset_step + 1);
      streak_ = Streak();
    }
    return;
  }
  if (book.FindOpen(slot) == nullptr && streak_.BadOfLast(kWindow) < policy.outlier_steps) return;
  Finding finding;
  finding.condition = Condition::kRankOutlier;
  finding.onset_step = streak_.onset_step;
  finding.peak_step = signals.moment.step;
  finding.rank = worst->rank;
  finding.summary = absl::StrFormat("Rank %d stands apart: its loss is %.3f nats where its peers have %.3f, %d steps since step %d; look at its "
                                    "data first, then at its device",
                                    worst->rank, worst->loss, median, streak_.bad_steps, streak_.onset_step);
  finding.evidence = {{"rank_loss", worst->loss, "nats", absl::StrCat("rank ", worst->rank)},
                      {"median_loss", median, "nats", "over ranks"},
                      {"spread", deviation, "nats", "over ranks"},
                      {"steps", static_cast<double>(streak_.bad_steps), "steps", ""}};
  book.Report(slot, std::move(finding), signals.moment);
}

void RankOutlierDetector::Save(StateWriter& out) const {
  streak_.Save(out);
  out.Put(rank_);
}

void RankOutlierDetector::Restore(StateReader& in) {
  streak_.Restore(in);
  rank_ = in.Get<std::uint32_t>();
}

void RepeatedBatchDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const state::StepSummary& summary = signals.joined->summary;
  const IncidentBook::Slot slot{Condition::kRepeatedBatch};
  const bool known = summary.unmasked_tokens > 0 && summary.target_fingerprint != 0;
  const bool same = known && summary.target_fingerprint == target_fingerprint_ && summary.mask_fingerprint == mask_fingerprint_ &&
                    summary.missing_ranks.empty();
  target_fingerprint_ = summary.target_fingerprint;
  mask_fingerprint_ = summary.mask_fingerprint;
  if (!same) {
    if (open_) book.Resolve(slot, signals.moment, last_step_ - first_step_ + 1);
    open_ = false;
    repeats_ = known ? 1 : 0;
    first_step_ = last_step_ = signals.moment.step;
    return;
  }
  ++repeats_;
  last_step_ = signals.moment.step;
  if (repeats_ < policy.repeated_batch_steps) return;
  open_ = true;
  Finding finding;
  finding.condition = Condition::kRepeatedBatch;
  finding.onset_step = first_step_;
  finding.peak_step = first_step_;
  finding.summary = absl::StrCat("The same batch on ", repeats_, " steps in a row since step ", first_step_,
                                 ": every target at every position is the same; the data loader stands still");
  finding.evidence = {{"repeats", static_cast<double>(repeats_), "steps", ""},
                      {"unmasked_tokens", static_cast<double>(summary.unmasked_tokens), "tokens", ""}};
  book.Report(slot, std::move(finding), signals.moment);
}

void RepeatedBatchDetector::Save(StateWriter& out) const {
  out.Put(target_fingerprint_);
  out.Put(mask_fingerprint_);
  out.Put(repeats_);
  out.Put(first_step_);
  out.Put(last_step_);
  out.Put<std::uint8_t>(open_);
}

void RepeatedBatchDetector::Restore(StateReader& in) {
  target_fingerprint_ = in.Get<std::uint64_t>();
  mask_fingerprint_ = in.Get<std::uint64_t>();
  repeats_ = in.GetIn<std::int32_t>(0, 1 << 30);
  first_step_ = in.GetStep();
  last_step_ = in.GetStep();
  open_ = in.GetBool();
}

}  // namespace lossgauge::detect
