#include "server/api/compare_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lossgauge::api {
namespace {

constexpr std::size_t kMostBatches = 32;
constexpr std::size_t kFewestBatches = 8;
constexpr double kCorrelationDeviations = 1.645;
// Rows that are put together until both sides end at the same step.
constexpr std::size_t kMostJoined = 256;

// 97.5 % quantile of Student's t for 7 to 31 degrees of freedom.
constexpr std::array<double, kMostBatches - kFewestBatches + 1> kStudent = {2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
                                                                            2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                                                            2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 2.040};

// One stretch of steps in both runs.
struct Pair {
  std::int64_t first_step, last_step;
  std::uint64_t steps;
  double weight;  // tokens; steps where none were counted
  double loss_a, loss_b;
};

struct Batch {
  std::int64_t first_step = 0, last_step = 0;
  std::uint64_t steps = 0;
  double weight = 0;
  double sum_a = 0, sum_difference = 0;
  double difference() const { return sum_difference / weight; }
};

std::vector<ComparedStep> NewestPasses(std::vector<ComparedStep> steps) {
  std::sort(steps.begin(), steps.end(), [](const auto& x, const auto& y) { return x.sequence > y.sequence; });
  std::map<std::int64_t, std::int64_t> taken;  // first step to last
  std::erase_if(steps, [&](const ComparedStep& step) {
    const auto next = taken.lower_bound(step.first_step);
    if (next != taken.end() && next->first <= step.last_step) return true;
    if (next != taken.begin() && std::prev(next)->second >= step.first_step) return true;
    taken.emplace_hint(next, step.first_step, step.last_step);
    return false;
  });
  std::sort(steps.begin(), steps.end(), [](const auto& x, const auto& y) { return x.first_step < y.first_step; });
  return steps;
}

ComparedStep Join(std::span<const ComparedStep> rows) {
  ComparedStep all = rows.front();
  double sum = 0, weights = 0;
  bool has_loss = true, has_fingerprint = true;
  all.steps = all.unmasked_tokens = all.target_fingerprint = 0;
  for (const ComparedStep& row : rows) {
    const double weight = static_cast<double>(row.unmasked_tokens > 0 ? row.unmasked_tokens : row.steps);
    all.last_step = row.last_step;
    all.steps += row.steps;
    all.unmasked_tokens += row.unmasked_tokens;
    all.target_fingerprint += row.target_fingerprint;
    all.complete = all.complete && row.complete;
    has_fingerprint = has_fingerprint && row.target_fingerprint != 0;
    has_loss = has_loss && row.loss_nats.has_value();
    sum += weight * row.loss_nats.value_or(0);
    weights += weight;
  }
  all.loss_nats = has_loss ? std::optional(sum / weights) : std::nullopt;
  if (!has_fingerprint) all.target_fingerprint = 0;
  return all;
}

bool HasFingerprints(const ComparedStep& a, const ComparedStep& b) { return a.target_fingerprint != 0 && b.target_fingerprint != 0; }

std::string Difference(const ComparedStep& a, const ComparedStep& b) {
  std::string text;
  if (a.unmasked_tokens != b.unmasked_tokens) {
    text = absl::StrCat("other targets: ", a.unmasked_tokens, " tokens in the loss in a, ", b.unmasked_tokens, " in b");
  } else {
    text = absl::StrFormat("other targets: %d tokens in both, but target_fingerprint %016x in a, %016x in b", a.unmasked_tokens,
                           a.target_fingerprint, b.target_fingerprint);
  }
  if (!a.complete || !b.complete) {
    absl::StrAppend(&text, "; ranks are missing from it in ", !a.complete && !b.complete ? "both" : a.complete ? "b" : "a");
  }
  return text;
}

std::vector<Batch> MakeBatches(const std::vector<Pair>& pairs, std::size_t count) {
  std::uint64_t all_steps = 0;
  for (const Pair& pair : pairs) all_steps += pair.steps;
  std::vector<Batch> batches;
  std::uint64_t seen = 0;
  bool begin = true;
  for (const Pair& pair : pairs) {
    if (begin) batches.push_back({.first_step = pair.first_step});
    Batch& batch = batches.back();
    batch.last_step = pair.last_step;
    batch.steps += pair.steps;
    batch.weight += pair.weight;
    batch.sum_a += pair.weight * pair.loss_a;
    batch.sum_difference += pair.weight * (pair.loss_b - pair.loss_a);
    seen += pair.steps;
    begin = seen * count >= all_steps * batches.size();
  }
  return batches;
}

double Correlation(const std::vector<Batch>& batches, double mean) {
  double squares = 0, products = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const double x = batches[i].difference() - mean;
    squares += x * x;
    if (i + 1 < batches.size()) products += x * (batches[i + 1].difference() - mean);
  }
  return squares > 0 ? products / squares : 0;
}

double StandardError(const std::vector<Batch>& batches, double mean) {
  const auto count = static_cast<double>(batches.size());
  double weights = 0, squares = 0;
  for (const Batch& batch : batches) {
    const double x = batch.weight * (batch.difference() - mean);
    weights += batch.weight;
    squares += x * x;
  }
  return std::sqrt(squares * count / (count - 1)) / weights;
}

void SetDifferences(const std::vector<Pair>& pairs, v1::Comparison* out) {
  const Batch all = MakeBatches(pairs, 1).front();
  const double loss_a = all.sum_a / all.weight, mean = all.difference();
  std::size_t count = std::min(kMostBatches, pairs.size());
  std::vector<Batch> batches = MakeBatches(pairs, count);
  bool correlated = false;
  while (batches.size() >= kFewestBatches) {
    correlated = Correlation(batches, mean) > kCorrelationDeviations / std::sqrt(static_cast<double>(batches.size()));
    count = batches.size() / 2;
    if (!correlated || count < kFewestBatches) break;
    batches = MakeBatches(pairs, count);
  }
  for (const Batch& batch : batches) {
    v1::ComparedBatch* added = out->add_batches();
    added->set_first_step(batch.first_step);
    added->set_last_step(batch.last_step);
    added->set_steps(batch.steps);
    added->set_loss_a_nats(batch.sum_a / batch.weight);
    added->set_loss_b_nats((batch.sum_a + batch.sum_difference) / batch.weight);
  }
  v1::Difference* loss = out->mutable_loss();
  loss->set_a(loss_a);
  loss->set_b(loss_a + mean);
  loss->set_difference(mean);
  v1::Difference* perplexity = out->mutable_perplexity();
  perplexity->set_a(std::exp(loss_a));
  perplexity->set_b(std::exp(loss_a + mean));
  perplexity->set_difference(std::exp(loss_a) * std::expm1(mean));
  out->set_correlated(correlated);
  if (batches.size() < kFewestBatches) return;
  const double half = kStudent[batches.size() - kFewestBatches] * StandardError(batches, mean);
  loss->set_low(mean - half);
  loss->set_high(mean + half);
  perplexity->set_low(std::exp(loss_a) * std::expm1(mean - half));
  perplexity->set_high(std::exp(loss_a) * std::expm1(mean + half));
}

class Alignment {
 public:
  explicit Alignment(v1::Comparison* out) : out_(out) {}

  void OnlyIn(bool a, const ComparedStep& step) {
    if (a) {
      out_->set_only_in_a(out_->only_in_a() + step.steps);
    } else {
      out_->set_only_in_b(out_->only_in_b() + step.steps);
    }
  }
  void Both(const ComparedStep& a, const ComparedStep& b) {
    const bool by_fingerprint = HasFingerprints(a, b);
    const bool agree = by_fingerprint ? a.target_fingerprint == b.target_fingerprint : a.unmasked_tokens == b.unmasked_tokens;
    if (!agree) {
      if (out_->differing() == 0) {
        out_->set_first_differing_step(a.first_step);
        out_->set_first_difference(Difference(a, b));
      }
      out_->set_differing(out_->differing() + a.steps);
      return;
    }
    if (!a.loss_nats || !b.loss_nats || !std::isfinite(*a.loss_nats) || !std::isfinite(*b.loss_nats)) {
      out_->set_without_loss(out_->without_loss() + a.steps);
      return;
    }
    (by_fingerprint ? any_fingerprint_ : any_tokens_) = true;
    out_->set_compared(out_->compared() + a.steps);
    const double weight = static_cast<double>(a.unmasked_tokens > 0 ? a.unmasked_tokens : a.steps);
    pairs_.push_back({a.first_step, a.last_step, a.steps, weight, *a.loss_nats, *b.loss_nats});
  }
  const std::vector<Pair>& pairs() const { return pairs_; }
  const char* matched_by() const {
    return any_fingerprint_ && any_tokens_ ? "both" : any_fingerprint_ ? "target_fingerprint" : any_tokens_ ? "unmasked_tokens" : "";
  }

 private:
  v1::Comparison* const out_;
  std::vector<Pair> pairs_;
  bool any_fingerprint_ = false, any_tokens_ = false;
};

void Align(const std::vector<ComparedStep>& a, const std::vector<ComparedStep>& b, Alignment* alignment) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i].first_step != b[j].first_step) {  // a step that the other lacks, or a row that begins in the middle of the other's
      const bool is_a = a[i].first_step < b[j].first_step;
      alignment->OnlyIn(is_a, is_a ? a[i++] : b[j++]);
      continue;
    }
    std::size_t end_i = i + 1, end_j = j + 1;
    while (a[end_i - 1].last_step != b[end_j - 1].last_step && end_i - i + end_j - j < kMostJoined) {
      const bool grow_a = a[end_i - 1].last_step < b[end_j - 1].last_step;
      if (grow_a ? end_i == a.size() || a[end_i].first_step > b[end_j - 1].last_step
                 : end_j == b.size() || b[end_j].first_step > a[end_i - 1].last_step) {
        break;
      }
      ++(grow_a ? end_i : end_j);
    }
    const ComparedStep all_a = Join({a.begin() + static_cast<std::ptrdiff_t>(i), a.begin() + static_cast<std::ptrdiff_t>(end_i)});
    const ComparedStep all_b = Join({b.begin() + static_cast<std::ptrdiff_t>(j), b.begin() + static_cast<std::ptrdiff_t>(end_j)});
    if (all_a.last_step == all_b.last_step && all_a.steps == all_b.steps) {
      alignment->Both(all_a, all_b);
      i = end_i;
      j = end_j;
    } else {
      const bool is_a = a[i].last_step <= b[j].last_step;
      alignment->OnlyIn(is_a, is_a ? a[i++] : b[j++]);
    }
  }
  while (i < a.size()) alignment->OnlyIn(true, a[i++]);
  while (j < b.size()) alignment->OnlyIn(false, b[j++]);
}

std::string Range(const std::vector<ComparedStep>& steps) {
  if (steps.empty()) return "none";
  return absl::StrCat(steps.front().first_step, " to ", steps.back().last_step);
}

}  // namespace

v1::Comparison CompareSteps(std::vector<ComparedStep> a, std::vector<ComparedStep> b) {
  a = NewestPasses(std::move(a));
  b = NewestPasses(std::move(b));
  v1::Comparison out;
  Alignment alignment(&out);
  Align(a, b, &alignment);
  out.set_matched_by(alignment.matched_by());
  if (!alignment.pairs().empty()) {
    out.set_comparable(true);
    out.set_first_step(alignment.pairs().front().first_step);
    out.set_last_step(alignment.pairs().back().last_step);
    SetDifferences(alignment.pairs(), &out);
  } else if (out.differing() > 0) {
    out.set_reason(absl::StrCat("not comparable: the targets differ in ", out.without_loss() > 0 ? "every step with a loss" : "every step",
                                " that both have, first at step ", out.first_differing_step(), " (", out.first_difference(), ")"));
  } else if (out.without_loss() > 0) {
    out.set_reason("not comparable: no step that both have has a finite loss in both");
  } else {
    out.set_reason(absl::StrCat("not comparable: no step is in both (steps of a: ", Range(a), "; of b: ", Range(b), ")"));
  }
  return out;
}

}  // namespace lossgauge::api
