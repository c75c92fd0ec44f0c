#include "server/export/counter_series.h"

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::export_ {
namespace {

using state::RankTotals;

struct Row {
  Metric of_rank;
  Metric of_run;
  bool needs_loss;  // meaningless on a pipeline stage without a head
  double (*value)(const RankTotals&);
};

template <auto Member>
double Integer(const RankTotals& totals) {
  return static_cast<double>(totals.*Member);
}

// The one rounding of an exact sum.
template <auto Member>
double Fixed(const RankTotals& totals) {
  return lg_fixed128_to_double(totals.*Member);
}

constexpr Row kRows[] = {
    {Metric::kSteps, Metric::kRunSteps, false, Integer<&RankTotals::steps>},
    {Metric::kTokens, Metric::kRunTokens, true, Integer<&RankTotals::tokens>},
    {Metric::kUnmaskedTokens, Metric::kRunUnmaskedTokens, true, Integer<&RankTotals::unmasked_tokens>},
    {Metric::kFiniteTokens, Metric::kRunFiniteTokens, true, Integer<&RankTotals::finite_tokens>},
    {Metric::kNllNats, Metric::kRunNllNats, true, Fixed<&RankTotals::nll_sum>},
    {Metric::kScoredNllNats, Metric::kRunScoredNllNats, true, Fixed<&RankTotals::scored_nll_sum>},
    {Metric::kTargetBytes, Metric::kRunTargetBytes, true, Integer<&RankTotals::target_bytes>},
    {Metric::kZLossNats, Metric::kRunZLossNats, true, Fixed<&RankTotals::z_loss_sum>},
    {Metric::kCorrectTokens, Metric::kRunCorrectTokens, true, Integer<&RankTotals::correct_tokens>},
    {Metric::kNonfiniteRows, Metric::kRunNonfiniteRows, true, Integer<&RankTotals::nonfinite_rows>},
    {Metric::kNonfiniteGradRows, Metric::kRunNonfiniteGradRows, true, Integer<&RankTotals::nonfinite_grad_rows>},
    {Metric::kNonfiniteSteps, Metric::kRunNonfiniteSteps, false, Integer<&RankTotals::nonfinite_steps>},
    {Metric::kBadTargets, Metric::kRunBadTargets, true, Integer<&RankTotals::bad_targets>},
    {Metric::kClampedRows, Metric::kRunClampedRows, true, Integer<&RankTotals::clamped_rows>},
    {Metric::kMassErrorRows, Metric::kRunMassErrorRows, true, Integer<&RankTotals::mass_error_rows>},
    {Metric::kRecordsRead, Metric::kRunRecordsRead, false, Integer<&RankTotals::records_read>},
};

}  // namespace

void AddRankCounters(std::string_view run, std::string_view rank, bool has_loss, const RankTotals& totals, FamilyBuilder& page) {
  for (const Row& row : kRows) {
    if (has_loss || !row.needs_loss) page.Add(row.of_rank, {run, rank}, row.value(totals));
  }
  for (std::size_t i = 0; i < totals.records_lost.size(); ++i) {
    page.Add(Metric::kRecordsLost, {run, rank, state::LossReasonName(static_cast<state::LossReason>(i))},
             static_cast<double>(totals.records_lost[i]));
  }
}

void AddRunCounters(std::string_view run, const RankTotals& totals, FamilyBuilder& page) {
  for (const Row& row : kRows) page.Add(row.of_run, {run}, row.value(totals));
  for (std::size_t i = 0; i < totals.records_lost.size(); ++i) {
    page.Add(Metric::kRunRecordsLost, {run, state::LossReasonName(static_cast<state::LossReason>(i))},
             static_cast<double>(totals.records_lost[i]));
  }
}

}  // namespace lossgauge::export_
