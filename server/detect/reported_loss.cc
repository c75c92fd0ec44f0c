#include "server/detect/reported_loss.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/kinds.h"
#include "server/state/tensor_group.h"

namespace lossgauge::detect {
namespace {

struct Hypothesis {
  const char* name;
  double value;  // what would have been reported
  std::string words;
};

// In the order in which they are worth suspecting; the first that fits is named.
std::vector<Hypothesis> Hypotheses(const state::JoinedStep& joined, const state::RankSample& reporter, double loss,
                                   std::optional<double> objective, std::optional<double> previous_loss) {
  std::vector<Hypothesis> list;
  const lg_layout& layout = joined.layout;
  const double ranks = std::max<double>(1, static_cast<double>(layout.dp.size)) * std::max<double>(1, static_cast<double>(layout.cp.size));
  const double shards = std::max<double>(1, static_cast<double>(layout.tp.size));
  double mean_of_means = 0;
  double means = 0;
  double counted = 0;
  std::optional<double> rank_zero;
  std::optional<double> own;
  double all_tokens = 0;
  double micro_batches = 1;
  const state::TensorGroup reporters = state::TensorGroupOf(reporter.producer->layout);
  for (const state::RankSample* sample : state::CountedSamples(joined.samples)) {
    const lg_step_record& record = sample->record;
    const lg_layout& counted_layout = sample->producer->layout;
    ++counted;
    all_tokens += static_cast<double>(record.tokens);
    micro_batches = std::max(micro_batches, static_cast<double>(record.micro_batches));
    if (record.finite_tokens == 0) continue;
    const double mean = lg_fixed128_to_double(record.nll_sum) / static_cast<double>(record.finite_tokens);
    mean_of_means += mean;
    ++means;
    if (counted_layout.dp.index == 0 && counted_layout.cp.index == 0) rank_zero = mean;
    if (state::TensorGroupOf(counted_layout) == reporters) own = mean;
  }
  const double tokens = static_cast<double>(joined.summary.finite_tokens);
  if (ranks > 1) {
    if (rank_zero) list.push_back({"rank_0_only", *rank_zero, "it is the loss of rank 0 alone, not of all ranks"});
    if (own) list.push_back({"own_rank_only", *own, "it is the reporting rank's own loss, not that of all ranks"});
    if (means > 0) {
      list.push_back({"mean_of_means", mean_of_means / means, "it is the mean of the ranks' means; ranks with few tokens weigh too much"});
      list.push_back({"mean_of_means", mean_of_means / counted,
                      "it is the mean of the ranks' means with 0 for a rank without tokens"});
    }
  }
  if (shards > 1) {
    list.push_back({"plus_ln_T", loss + std::log(shards),
                    absl::StrFormat("too high by exactly ln %.0f: full logits on every rank of a vocabulary-parallel loss", shards)});
  }
  const auto factor = [&](const char* times, const char* divided, double by, const std::string& what) {
    if (by <= 1) return;
    list.push_back({times, loss * by, absl::StrFormat("too large by exactly %s = %.0f", what, by)});
    list.push_back({divided, loss / by, absl::StrFormat("too small by exactly %s = %.0f", what, by)});
  };
  factor("times_R", "over_R", ranks, "the data-parallel ranks R");
  factor("times_micro_batches", "over_accumulation", micro_batches, "the number of micro-batches");
  factor("times_T", "over_T", shards, "the tensor-parallel size T");
  factor("times_R_micro_batches", "over_R_micro_batches", ranks > 1 && micro_batches > 1 ? ranks * micro_batches : 1, "R x micro-batches");
  if (all_tokens > tokens) {
    list.push_back({"masked_tokens_counted", loss * tokens / all_tokens, "it was divided by all positions, masked ones included"});
  }
  list.push_back({"sum", loss * tokens, "it is the sum over the tokens, not the mean"});
  list.push_back({"perplexity", std::exp(std::min(loss, 700.0)), "it is the perplexity"});
  list.push_back({"bits", loss / std::numbers::ln2, "it is in bits, not in nats"});
  if (previous_loss) list.push_back({"previous_step", *previous_loss, "it is the loss of the step before"});
  if (objective && own && ranks > 1) {
    const double own_objective = lg_fixed128_to_double(reporter.record.objective_sum) / static_cast<double>(reporter.record.finite_tokens);
    list.push_back({"rank_objective", own_objective, "it is the reporting rank's own objective (smoothing and z-loss included)"});
  }
  return list;
}

}  // namespace

double UlpOf(std::uint64_t dtype, double value) {
  const double magnitude = std::fabs(value);
  if (!(magnitude > 0) || !std::isfinite(magnitude)) return 0;
  int digits = 53;
  if (dtype == LG_DTYPE_FP32) digits = 24;
  if (dtype == LG_DTYPE_FP16) digits = 11;
  if (dtype == LG_DTYPE_BF16) digits = 8;
  return std::ldexp(1.0, std::ilogb(magnitude) - (digits - 1));
}

std::optional<ReportedLossCheck::Interval> ReportedLossCheck::Over(std::uint64_t interval, std::int64_t last_step) const {
  const std::uint64_t length = std::max<std::uint64_t>(1, interval);
  if (length > steps_.size()) return std::nullopt;
  Interval result;
  double loss_sum = 0;
  double objective_sum = 0;
  double mean_objective = 0;
  double tokens = 0;
  for (std::uint64_t i = 0; i < length; ++i) {
    const Step& step = steps_[steps_.size() - 1 - i];
    if (step.step != last_step - static_cast<std::int64_t>(i)) return std::nullopt;  // a gap: not seen whole
    result.mean_loss += step.loss;
    mean_objective += step.objective;
    loss_sum += step.loss * step.tokens;
    objective_sum += step.objective * step.tokens;
    tokens += step.tokens;
  }
  const auto n = static_cast<double>(length);
  result.mean_loss /= n;
  result.ratio_loss = loss_sum / tokens;
  if (!std::isnan(mean_objective)) {
    result.mean_objective = mean_objective / n;
    result.ratio_objective = objective_sum / tokens;
  }
  return result;
}

std::optional<AccountingFinding> ReportedLossCheck::OnStep(const state::JoinedStep& joined) {
  const state::StepSummary& summary = joined.summary;
  const std::optional<double> previous = steps_.empty() ? std::nullopt : std::optional<double>(steps_.back().loss);
  if (!joined.all_ranks_visible || !summary.loss_nats || !std::isfinite(*summary.loss_nats) || summary.finite_tokens == 0) return std::nullopt;
  steps_.push_back({summary.step, *summary.loss_nats, summary.objective_nats.value_or(std::nan("")), static_cast<double>(summary.finite_tokens)});
  if (steps_.size() > kMaxInterval) steps_.pop_front();

  for (const state::RankSample& sample : joined.samples) {
    const lg_step_record& record = sample.record;
    if ((record.present & LG_HAS_REPORTED_LOSS) == 0 || !std::isfinite(record.reported_loss)) continue;
    interval_ = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(record.reported_loss_interval, 2, kMaxInterval));
    const auto interval = Over(record.reported_loss_interval, summary.step);
    if (!interval) continue;
    const double auxiliary = std::isfinite(record.reported_loss_auxiliary) ? record.reported_loss_auxiliary : 0;
    const double reported = record.reported_loss - auxiliary;
    const double ulp = UlpOf(record.reported_loss_dtype, record.reported_loss);
    const auto fits = [&](double value) { return std::fabs(reported - value) <= std::max({1e-3, ulp, 1e-6 * std::fabs(value)}); };
    if (fits(interval->ratio_loss) || fits(interval->mean_loss)) continue;
    if (interval->ratio_objective && (fits(*interval->ratio_objective) || fits(*interval->mean_objective))) continue;

    AccountingFinding finding;
    finding.kind = state::kKindReportedLoss;
    finding.rank = sample.producer->layout.rank;
    finding.hypothesis = "unexplained";
    std::string words = "no known mistake explains the difference";
    if (auxiliary != 0 && std::fabs(record.reported_loss - interval->ratio_loss) <= std::max({1e-3, ulp, 1e-6 * interval->ratio_loss})) {
      finding.hypothesis = "auxiliary_not_included";
      words = "the declared auxiliary terms are not in it";
    } else {
      for (const Hypothesis& hypothesis :
           Hypotheses(joined, sample, interval->ratio_loss, interval->ratio_objective, record.reported_loss_interval <= 1 ? previous : std::nullopt)) {
        if (!fits(hypothesis.value)) continue;
        finding.hypothesis = hypothesis.name;
        words = hypothesis.words;
        break;
      }
      if (finding.hypothesis == "unexplained" && summary.micro_batches > 1) {
        words += "; a loss of only the last micro-batch cannot be ruled out";
      }
    }
    finding.summary = absl::StrFormat("The trainer reports %.6g nats where the loss is %.6g: %s", record.reported_loss, interval->ratio_loss, words);
    finding.evidence = {{"reported_loss", record.reported_loss, "nats", ""}, {"loss", interval->ratio_loss, "nats", ""},
                        {"difference", reported - interval->ratio_loss, "nats", ""},
                        {"interval", static_cast<double>(std::max<std::uint64_t>(1, record.reported_loss_interval)), "steps", ""},
                        {"hypothesis", 0, "", finding.hypothesis}};
    if (auxiliary != 0) finding.evidence.push_back({"auxiliary", auxiliary, "nats", ""});
    return finding;
  }
  return std::nullopt;
}

void ReportedLossCheck::Save(StateWriter& out) const {
  out.Put(interval_);
  const std::size_t count = interval_ > kMaxSaved ? 0 : std::min<std::size_t>(interval_, steps_.size());
  out.Put(static_cast<std::uint16_t>(count));
  for (std::size_t i = steps_.size() - count; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    out.Put(step.step);
    out.Put(step.loss);
    out.Put(step.tokens);
    out.PutOptional(std::isnan(step.objective) ? std::nullopt : std::optional<double>(step.objective));
  }
}

void ReportedLossCheck::Restore(StateReader& in) {
  interval_ = in.GetIn<std::uint32_t>(0, kMaxInterval);
  const int count = in.GetIn<std::uint16_t>(0, kMaxSaved);
  for (int i = 0; i < count && in.ok(); ++i) {
    Step step;
    step.step = in.GetStep();
    step.loss = in.GetFinite();
    step.tokens = in.GetFinite();
    step.objective = in.GetBool() ? in.GetFinite() : std::nan("");
    steps_.push_back(step);
  }
}

}  // namespace lossgauge::detect
