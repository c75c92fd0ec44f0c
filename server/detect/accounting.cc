#include "server/detect/accounting.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/state/kinds.h"
#include "server/state/tensor_group.h"

namespace lossgauge::detect {
namespace {

constexpr std::size_t kNamedRanks = 8;

bool Near(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b)); }

bool Divides(const lg_step_record& record) { return (record.present & LG_HAS_DENOMINATOR) != 0 && record.unmasked_tokens > 0; }

// "rank 3 divides by 41 and all others rightly", if it is few enough that they can be told from the rest; then also the finding's rank.
template <class Right>
std::string NameWrongRanks(const state::JoinedStep& joined, const Right& right, AccountingFinding* finding) {
  std::vector<const state::RankSample*> wrong;
  std::size_t judged = 0;
  for (const state::RankSample& sample : joined.samples) {
    if (!Divides(sample.record)) continue;
    ++judged;
    if (!right(sample.record.denominator_min) || !right(sample.record.denominator_max)) wrong.push_back(&sample);
  }
  if (wrong.empty() || 2 * wrong.size() >= judged) return "it differs between ranks or micro-batches";
  std::string names;
  for (std::size_t i = 0; i < std::min(wrong.size(), kNamedRanks); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", wrong[i]->producer->layout.rank);
  }
  if (wrong.size() > kNamedRanks) absl::StrAppend(&names, " and ", wrong.size() - kNamedRanks, " more");
  if (wrong.size() > 1) return absl::StrCat("ranks ", names, " divide wrongly, all others rightly");
  finding->rank = wrong[0]->producer->layout.rank;
  return absl::StrFormat("rank %s divides by %.10g, all others rightly", names, wrong[0]->record.denominator_min);
}

}  // namespace

std::optional<AccountingFinding> CheckDenominator(const state::JoinedStep& joined) {
  if (!joined.all_ranks_visible) return std::nullopt;
  double low = HUGE_VAL;
  double high = 0;
  double unmasked = 0;
  double tokens = 0;
  double micro_batches = 0;
  int given = 0;
  bool own_counts = true;       // every rank's denominators can be its own micro-batches' counts
  bool own_rank_counts = true;  // every rank's denominator is its own count of the step
  bool counts_differ = false;
  double first_count = -1;
  for (const state::RankSample* sample : state::CountedSamples(joined.samples)) {
    const lg_step_record& record = sample->record;
    const double own = static_cast<double>(record.unmasked_tokens);
    const double launches = std::max<double>(1, static_cast<double>(record.micro_batches));
    unmasked += own;
    tokens += static_cast<double>(record.tokens);
    micro_batches = std::max(micro_batches, launches);
    if (first_count >= 0 && own != first_count) counts_differ = true;
    first_count = own;
    if (own == 0) continue;  // a rank without a token divides nothing by anything
    if ((record.present & LG_HAS_DENOMINATOR) == 0) return std::nullopt;
    ++given;
    const bool one = Near(record.denominator_min, record.denominator_max);
    own_rank_counts = own_rank_counts && one && Near(record.denominator_min, own);
    const bool per_micro = launches > 1 ? record.denominator_min * launches <= own * (1 + 1e-9) &&
                                              record.denominator_max * launches >= own * (1 - 1e-9)
                                        : one && Near(record.denominator_min, own);
    own_counts = own_counts && per_micro;
    if (launches > 1 && !one) counts_differ = true;
  }
  if (given == 0 || unmasked == 0) return std::nullopt;
  // Every rank of a tensor-parallel group divides its own shard's gradient.
  for (const state::RankSample& sample : joined.samples) {
    if (!Divides(sample.record)) continue;
    low = std::min(low, sample.record.denominator_min);
    high = std::max(high, sample.record.denominator_max);
  }
  const double ranks = std::max<double>(1, static_cast<double>(joined.layout.dp.size)) * std::max<double>(1, static_cast<double>(joined.layout.cp.size));
  const auto right = [&](double value) {
    return (joined.layout.gradient_reduction != LG_GRADIENT_REDUCTION_MEAN && Near(value, unmasked)) ||
           (joined.layout.gradient_reduction != LG_GRADIENT_REDUCTION_SUM && Near(value, unmasked / ranks));
  };
  if (right(low) && right(high) && Near(low, high)) return std::nullopt;

  const bool sum = joined.layout.gradient_reduction == LG_GRADIENT_REDUCTION_SUM;
  const double expected = sum ? unmasked : unmasked / ranks;
  AccountingFinding finding;
  finding.evidence = {{"expected_denominator", expected, "tokens", ""},   {"denominator_min", low, "tokens", ""},
                      {"denominator_max", high, "tokens", ""},            {"unmasked_tokens", unmasked, "tokens", ""},
                      {"data_parallel_ranks", ranks, "", ""},             {"micro_batches", micro_batches, "", ""}};
  const std::string numbers = absl::StrFormat("divided by %.10g%s, right is %.10g", low,
                                              Near(low, high) ? std::string() : absl::StrFormat(" to %.10g", high), expected);
  if (counts_differ && (own_counts || own_rank_counts)) {
    finding.kind = state::kKindMeanOfMeans;
    finding.hypothesis = own_rank_counts && ranks > 1 ? "mean_of_rank_means" : "mean_of_micro_batch_means";
    finding.summary = absl::StrCat("Mean of means: each ", own_rank_counts && ranks > 1 ? "rank" : "micro-batch",
                                   " divides by its own token count while the counts differ (", numbers,
                                   "); tokens of short batches weigh too much");
    return finding;
  }
  finding.kind = state::kKindDenominator;
  const auto name = [&](const char* hypothesis, std::string text) {
    finding.hypothesis = hypothesis;
    finding.summary = absl::StrCat("Denominator wrong: ", numbers, "; ", text);
    finding.evidence.push_back({"hypothesis", 0, "", finding.hypothesis});
  };
  if (!Near(low, high)) {
    name("differs", NameWrongRanks(joined, right, &finding));
  } else if (ranks > 1 && Near(low * ranks, expected)) {
    name("factor_R", absl::StrFormat("too small by exactly R = %.0f data-parallel ranks: the gradient is %.0f times too large", ranks, ranks));
  } else if (ranks > 1 && Near(low, expected * ranks)) {
    name("factor_R", absl::StrFormat("too large by exactly R = %.0f data-parallel ranks: the gradient is %.0f times too small", ranks, ranks));
  } else if (micro_batches > 1 && Near(low * micro_batches, expected)) {
    name("factor_micro_batches", absl::StrFormat("too small by exactly the %.0f micro-batches: accumulation is not divided out", micro_batches));
  } else if (micro_batches > 1 && Near(low, expected * micro_batches)) {
    name("factor_micro_batches", absl::StrFormat("too large by exactly the %.0f micro-batches: accumulation is divided out twice", micro_batches));
  } else if (ranks * micro_batches > 1 && Near(low * ranks * micro_batches, expected)) {
    name("factor_R_micro_batches", absl::StrFormat("too small by R x micro-batches = %.0f", ranks * micro_batches));
  } else if (tokens > unmasked && (Near(low, tokens) || Near(low, tokens / ranks))) {
    name("masked_tokens_counted", "masked positions are counted in it");
  } else {
    name("unexplained", absl::StrFormat("off by a factor of %.6g", low > 0 ? expected / low : 0.0));
  }
  return finding;
}

}  // namespace lossgauge::detect
