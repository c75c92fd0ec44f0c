#include "server/state/rank_progress.h"

#include <utility>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::state {
namespace {

// Each count of RankTotals that a record carries, with its word there.
constexpr std::pair<std::uint64_t RankTotals::*, std::uint64_t lg_step_record::*> kCounts[] = {
    {&RankTotals::tokens, &lg_step_record::total_tokens},
    {&RankTotals::unmasked_tokens, &lg_step_record::total_unmasked_tokens},
    {&RankTotals::finite_tokens, &lg_step_record::total_finite_tokens},
    {&RankTotals::nonfinite_rows, &lg_step_record::total_nonfinite_rows},
    {&RankTotals::nonfinite_grad_rows, &lg_step_record::total_nonfinite_grad_rows},
    {&RankTotals::nonfinite_steps, &lg_step_record::total_nonfinite_steps},
    {&RankTotals::bad_targets, &lg_step_record::total_bad_targets},
    {&RankTotals::target_bytes, &lg_step_record::total_target_bytes},
    {&RankTotals::correct_tokens, &lg_step_record::total_correct_tokens},
    {&RankTotals::clamped_rows, &lg_step_record::total_clamped_rows},
    {&RankTotals::mass_error_rows, &lg_step_record::total_mass_error_rows},
};
constexpr std::pair<lg_fixed128 RankTotals::*, lg_fixed128 lg_step_record::*> kSums[] = {
    {&RankTotals::nll_sum, &lg_step_record::total_nll_sum},
    {&RankTotals::scored_nll_sum, &lg_step_record::total_scored_nll_sum},
    {&RankTotals::z_loss_sum, &lg_step_record::total_z_loss_sum},
};

}  // namespace

RankTotals TakeProgress(const lg_step_record& record, RankTotals* seen) {
  RankTotals delta;
  if (record.total_steps <= seen->steps) return delta;
  delta.steps = record.total_steps - seen->steps;
  seen->steps = record.total_steps;
  for (const auto& [total, word] : kCounts) {
    if (record.*word <= seen->*total) continue;
    delta.*total = record.*word - seen->*total;
    seen->*total = record.*word;
  }
  for (const auto& [total, word] : kSums) {
    delta.*total = lg_fixed128_subtract(record.*word, seen->*total);
    seen->*total = record.*word;
  }
  return delta;
}

void AddTotals(const RankTotals& delta, RankTotals* sum) {
  sum->steps += delta.steps;
  for (const auto& [total, word] : kCounts) sum->*total += delta.*total;
  for (const auto& [total, word] : kSums) sum->*total = lg_fixed128_add(sum->*total, delta.*total);
  for (std::size_t i = 0; i < delta.records_lost.size(); ++i) sum->records_lost[i] += delta.records_lost[i];
  sum->records_read += delta.records_read;
}

void WriteTotals(const RankTotals& totals, ByteWriter* writer) {
  writer->U64(totals.steps);
  for (const auto& [total, word] : kCounts) writer->U64(totals.*total);
  for (const auto& [total, word] : kSums) writer->Fixed128(totals.*total);
  for (const std::uint64_t lost : totals.records_lost) writer->U64(lost);
  writer->U64(totals.records_read);
}

RankTotals ReadTotals(ByteReader* reader, std::size_t loss_reasons) {
  RankTotals totals;
  totals.steps = reader->U64();
  for (const auto& [total, word] : kCounts) totals.*total = reader->U64();
  for (const auto& [total, word] : kSums) totals.*total = reader->Fixed128();
  for (std::size_t i = 0; i < loss_reasons; ++i) totals.records_lost[i] = reader->U64();
  totals.records_read = reader->U64();
  return totals;
}

}  // namespace lossgauge::state
