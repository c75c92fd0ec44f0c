#include "server/state/rank_spread.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kMostKept = 32;
constexpr double kFarDeviations = 6;  // of a normal spread over ranks, by median and MAD
constexpr double kFarNats = 0.05;     // below it nobody stands apart, however alike the others are

void Extend(std::uint32_t rank, const std::optional<double>& value, ValueSpread* spread) {
  if (!value || !std::isfinite(*value)) return;
  if (spread->ranks == 0 || *value < spread->min) {
    spread->min = *value;
    spread->min_rank = rank;
  }
  if (spread->ranks == 0 || *value > spread->max) {
    spread->max = *value;
    spread->max_rank = rank;
  }
  ++spread->ranks;
  spread->mean += (*value - spread->mean) / static_cast<double>(spread->ranks);
}

void Extend(const RankSummary& rank, RankSpread* spread) {
  ++spread->ranks;
  Extend(rank.rank, rank.loss_nats, &spread->loss_nats);
  Extend(rank.rank, rank.grad_norm, &spread->grad_norm);
  Extend(rank.rank, rank.max_abs_logit, &spread->max_abs_logit);
  Extend(rank.rank, static_cast<double>(rank.unmasked_tokens), &spread->unmasked_tokens);
}

double MedianOf(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace

RankSummary SummaryOf(const RankSample& sample) {
  const lg_step_record& r = sample.record;
  RankSummary summary;
  summary.rank = sample.producer->layout.rank;
  if ((r.present & LG_HAS_LOSS) && r.finite_tokens > 0) {
    summary.loss_nats = lg_fixed128_to_double(r.nll_sum) / static_cast<double>(r.finite_tokens);
  }
  if (r.present & LG_HAS_GRAD_NORM) summary.grad_norm = r.grad_norm;
  if ((r.present & LG_HAS_LOGITS) && r.finite_tokens > 0) summary.max_abs_logit = r.max_abs_logit;
  summary.unmasked_tokens = r.unmasked_tokens;
  summary.nonfinite_rows = r.nonfinite_rows;
  summary.lost_before = sample.lost_before;
  return summary;
}

void BoundRankSteps(std::size_t max_rank_steps, StepSummary* summary) {
  if (summary->spread != nullptr || summary->rank_steps.size() <= max_rank_steps) return;
  auto spread = std::make_shared<RankSpread>();
  std::vector<double> losses;
  losses.reserve(summary->rank_steps.size());
  for (const RankSummary& rank : summary->rank_steps) {
    Extend(rank, spread.get());
    if (rank.loss_nats && std::isfinite(*rank.loss_nats)) losses.push_back(*rank.loss_nats);
  }
  double median = 0, limit = HUGE_VAL;
  if (!losses.empty()) {
    median = MedianOf(&losses);
    for (double& loss : losses) loss = std::fabs(loss - median);
    limit = std::max(kFarNats, kFarDeviations * 1.4826 * MedianOf(&losses));
  }
  const auto distance = [&](const RankSummary& rank) {
    if (rank.nonfinite_rows > 0 || rank.lost_before > 0) return HUGE_VAL;
    return rank.loss_nats ? std::fabs(*rank.loss_nats - median) : 0.0;
  };
  std::vector<RankSummary> kept;
  for (const RankSummary& rank : summary->rank_steps) {
    if (distance(rank) > limit || distance(rank) == HUGE_VAL) kept.push_back(rank);
  }
  if (kept.size() > kMostKept) {
    std::stable_sort(kept.begin(), kept.end(), [&](const RankSummary& a, const RankSummary& b) { return distance(a) > distance(b); });
    kept.resize(kMostKept);
    std::sort(kept.begin(), kept.end(), [](const RankSummary& a, const RankSummary& b) { return a.rank < b.rank; });
  }
  summary->rank_steps = std::move(kept);
  summary->rank_steps.shrink_to_fit();
  summary->spread = std::move(spread);
}

void AddRankStep(const RankSample& sample, StepSummary* summary) {
  RankSummary rank = SummaryOf(sample);
  if (summary->spread != nullptr) {
    auto spread = std::make_shared<RankSpread>(*summary->spread);
    Extend(rank, spread.get());
    summary->spread = std::move(spread);
    return;
  }
  const auto place = std::lower_bound(summary->rank_steps.begin(), summary->rank_steps.end(), rank.rank,
                                      [](const RankSummary& other, std::uint32_t number) { return other.rank < number; });
  summary->rank_steps.insert(place, std::move(rank));
}

}  // namespace lossgauge::state
