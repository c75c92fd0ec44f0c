// The arithmetic of a joined step: ratios of exact sums, never a mean of means.
#include <algorithm>
#include <map>
#include <utility>

#include "server/state/joined_step.h"
#include "server/state/rank_spread.h"
#include "server/state/step_sums.h"
#include "server/state/tensor_group.h"

namespace lossgauge::state {

std::vector<const RankSample*> CountedSamples(const std::vector<RankSample>& samples) {
  std::map<TensorGroup, std::uint32_t> lowest;  // index within its group; left empty where every rank is a group of its own
  for (const RankSample& sample : samples) {
    const lg_layout& layout = sample.producer->layout;
    if (layout.tp.size <= 1 || !OwnsLoss(sample)) continue;
    const auto [it, inserted] = lowest.try_emplace(TensorGroupOf(layout), layout.tp.index);
    it->second = std::min(it->second, layout.tp.index);
  }
  std::vector<const RankSample*> counted;
  for (const RankSample& sample : samples) {
    const lg_layout& layout = sample.producer->layout;
    if (OwnsLoss(sample) && (layout.tp.size <= 1 || lowest.at(TensorGroupOf(layout)) == layout.tp.index)) counted.push_back(&sample);
  }
  return counted;
}

JoinedStep JoinSamples(std::vector<RankSample> samples) {
  JoinedStep joined;
  if (samples.empty()) return joined;
  const ProducerInfo& first = *samples.front().producer;
  joined.run = first.run;
  joined.layout = first.layout;
  StepSummary& summary = joined.summary;
  summary.attempt = first.attempt;
  summary.step = samples.front().record.step;
  summary.ranks = static_cast<std::uint32_t>(samples.size());
  summary.rank_steps.reserve(samples.size());
  StepSums sums;
  for (const RankSample* sample : CountedSamples(samples)) sums.AddCounted(*sample);
  for (const RankSample& sample : samples) {
    sums.AddAny(sample);
    summary.rank_steps.push_back(SummaryOf(sample));
  }
  sums.Summarize(&summary);
  const auto loss_ranks = static_cast<std::uint64_t>(std::count_if(samples.begin(), samples.end(), OwnsLoss));
  joined.all_ranks_visible = loss_ranks == LossRanks(first.layout);
  joined.samples = std::move(samples);
  return joined;
}

}  // namespace lossgauge::state
