// Cross-entropy in float64, term by term as the glossary defines it: the judge of every backend. z - max and log1p here too: a
// float64 log Z - z[target] already returns 0 where the right loss is 1e-14.
#ifndef LOSSGAUGE_TESTS_KERNELS_ORACLE_H_
#define LOSSGAUGE_TESTS_KERNELS_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/host/fingerprint.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/elements.h"

namespace lossgauge::test {

struct OracleRow {
  enum class Kind { kMasked, kBadTarget, kFinite, kNan, kInfiniteLoss } kind = Kind::kMasked;
  double nll = 0, objective = 0, log_z = 0, z_loss = 0, max_abs = 0;
  std::int64_t max_abs_column = 0;
  bool correct = false;
  std::vector<double> z;      // after scale and soft cap, real columns
  std::vector<double> grad;   // exact, real columns, all factors in it
  std::vector<double> terms;  // sum of the magnitudes that the gradient is made of: what rounding errors are relative to
};

struct Oracle {
  std::vector<OracleRow> rows;
  double denominator = 1;
  double loss = 0;  // reduced objective over finite rows
  std::uint64_t unmasked = 0, finite = 0, nonfinite = 0, bad = 0, correct = 0;
  double nll_sum = 0, objective_sum = 0, z_loss_sum = 0, log_z_sum = 0, log_z_sq_sum = 0, log_z_max = 0, max_abs = 0;
  std::uint64_t mask_fingerprint = 0, target_fingerprint = 0;
  std::int64_t first_nonfinite = -1, worst_row = -1, worst_logit_position = -1, worst_logit_column = -1;
};

inline OracleRow JudgeRow(const Problem& problem, std::int64_t row, double denominator) {
  OracleRow judged;
  const std::int64_t target = problem.targets[static_cast<std::size_t>(row)];
  const std::int64_t vocab = problem.vocab_size != 0 ? problem.vocab_size : problem.columns;
  if (target == problem.ignore_index) return judged;
  if (target < 0 || target >= vocab) {
    judged.kind = OracleRow::Kind::kBadTarget;
    return judged;
  }
  const auto count = static_cast<std::size_t>(vocab);
  const auto y = static_cast<std::size_t>(target);
  std::vector<double> slope(count, problem.logit_scale);
  judged.z.resize(count);
  bool nan = false, minus_infinity = false;
  double max = -HUGE_VAL;
  for (std::size_t j = 0; j < count; ++j) {
    double x = RoundTo(problem.dtype, problem.logits[static_cast<std::size_t>(row * problem.columns) + j]);
    x *= problem.logit_scale;
    if (problem.logit_softcap != 0) {
      const double u = x / problem.logit_softcap;
      const double cosh = std::cosh(u);
      slope[j] = problem.logit_scale / (cosh * cosh);
      x = problem.logit_softcap * std::tanh(u);
    }
    judged.z[j] = x;
    nan |= std::isnan(x) || x == HUGE_VAL;
    minus_infinity |= x == -HUGE_VAL;
    max = std::max(max, x);
  }
  if (nan || max == -HUGE_VAL) {
    judged.kind = OracleRow::Kind::kNan;
    return judged;
  }
  double others = 0, difference_sum = 0;
  judged.correct = true;
  judged.max_abs = -1;
  for (std::size_t j = 0; j < count; ++j) {
    const double z = judged.z[j];
    if (j != y) others += std::exp(z - max);
    difference_sum += z - max;
    const auto narrow = static_cast<float>(z), narrow_target = static_cast<float>(judged.z[y]);
    if (narrow > narrow_target || (narrow == narrow_target && j < y)) judged.correct = false;
    // As fp32: that is where ties are decided.
    const double magnitude = static_cast<double>(static_cast<float>(std::fabs(z)));
    if (std::isfinite(magnitude) && magnitude > judged.max_abs) {
      judged.max_abs = magnitude;
      judged.max_abs_column = static_cast<std::int64_t>(j);
    }
  }
  const double target_exponential = std::exp(judged.z[y] - max);
  const double sum = others + target_exponential;
  const double log_sum = judged.z[y] == max ? std::log1p(others) : std::log(sum);
  const double e = problem.label_smoothing, lambda = problem.z_loss_weight, v = static_cast<double>(vocab);
  judged.nll = (max - judged.z[y]) + log_sum;
  judged.log_z = max + log_sum;
  judged.z_loss = lambda * judged.log_z * judged.log_z;
  judged.objective = judged.nll;
  if (e != 0) judged.objective = (1 - e) * judged.nll + e * (log_sum - difference_sum / v);
  judged.objective += judged.z_loss;
  const bool infinite = judged.z[y] == -HUGE_VAL || (e != 0 && minus_infinity);
  judged.kind = infinite ? OracleRow::Kind::kInfiniteLoss : OracleRow::Kind::kFinite;

  const std::size_t at = problem.upstream.size() > 1 ? static_cast<std::size_t>(row) : 0;
  const double upstream = problem.upstream.empty() ? 1.0 : static_cast<double>(problem.upstream[at]);
  const double factor =
      upstream * (problem.by_grad_scale_pointer ? static_cast<double>(problem.grad_scale) : 1.0) / denominator;
  const double z_weight = 2 * lambda * judged.log_z;
  for (std::size_t j = 0; j < count; ++j) {
    const double p = std::exp(judged.z[j] - max) / sum;
    double core = p * (1 + z_weight) - e / v;
    double terms = std::fabs(p * (1 + z_weight)) + e / v;
    if (j == y) {
      core = -others / sum + z_weight * p + e - e / v;
      terms = others / sum + std::fabs(z_weight * p) + e;
    }
    judged.grad.push_back(core * slope[j] * factor);
    judged.terms.push_back(std::fabs(terms * slope[j] * factor));
  }
  return judged;
}

inline Oracle Judge(const Problem& problem) {
  Oracle oracle;
  const std::int64_t vocab = problem.vocab_size != 0 ? problem.vocab_size : problem.columns;
  for (const std::int64_t target : problem.targets) {
    oracle.unmasked += target != problem.ignore_index && target >= 0 && target < vocab;
  }
  if (problem.reduction == LG_MEAN) {
    oracle.denominator = problem.denominator_by_pointer != 0 ? problem.denominator_by_pointer
                         : problem.denominator != 0          ? problem.denominator
                                                             : static_cast<double>(oracle.unmasked);
  }
  double worst = -1;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    OracleRow row = JudgeRow(problem, i, oracle.denominator);
    const std::int64_t position =
        problem.positions.empty() ? problem.position_base + i : problem.positions[static_cast<std::size_t>(i)];
    using Kind = OracleRow::Kind;
    if (row.kind == Kind::kBadTarget) ++oracle.bad;
    if (row.kind == Kind::kFinite || row.kind == Kind::kNan || row.kind == Kind::kInfiniteLoss) {
      oracle.mask_fingerprint += lg_position_hash(position, problem.targets[static_cast<std::size_t>(i)]);
      oracle.target_fingerprint += lg_target_hash(problem.targets[static_cast<std::size_t>(i)]);
    }
    if (row.kind == Kind::kNan || row.kind == Kind::kInfiniteLoss) {
      ++oracle.nonfinite;
      if (oracle.first_nonfinite < 0 || position < oracle.first_nonfinite) oracle.first_nonfinite = position;
    }
    if (row.kind == Kind::kFinite) {
      const bool first = oracle.finite++ == 0;
      oracle.correct += row.correct;
      oracle.nll_sum += row.nll;
      oracle.objective_sum += row.objective;
      oracle.z_loss_sum += row.z_loss;
      oracle.log_z_sum += row.log_z;
      oracle.log_z_sq_sum += row.log_z * row.log_z;
      oracle.log_z_max = first ? row.log_z : std::max(oracle.log_z_max, row.log_z);
      if (first || row.max_abs > oracle.max_abs || (row.max_abs == oracle.max_abs && position < oracle.worst_logit_position)) {
        oracle.max_abs = row.max_abs;
        oracle.worst_logit_position = position;
        oracle.worst_logit_column = row.max_abs_column;
      }
      const double nll = static_cast<double>(static_cast<float>(row.nll));
      if (nll > worst || (nll == worst && position < oracle.worst_row)) worst = nll, oracle.worst_row = position;
    }
    oracle.rows.push_back(std::move(row));
  }
  oracle.loss = oracle.nonfinite != 0 ? std::nan("") : oracle.unmasked == 0 ? 0 : oracle.objective_sum / oracle.denominator;
  return oracle;
}

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_ORACLE_H_
