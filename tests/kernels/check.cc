#include "tests/kernels/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace lossgauge::test {
namespace {

constexpr double kRelative = 1e-6;
constexpr double kSmallestFloat = 0x1p-149;

// How far rounding in fp32 may take a term that depends on z: the farther z from log Z, the more of it is lost in the exponent.
double Allowed(double z, double log_z) {
  return std::isfinite(z) ? kRelative * std::max(1.0, std::fabs(z - log_z) / 8) : kRelative;
}

bool NearlyFloat(double got, double right, double relative) {
  if (std::isnan(right)) return std::isnan(got);
  if (std::isinf(right)) return got == right;
  if (std::fabs(right) > 3.4e38) return std::isinf(got);
  return std::fabs(got - right) <= relative * std::fabs(right) + kSmallestFloat;
}

void ExpectGradientRow(const Problem& problem, const Outcome& outcome, const Oracle& oracle, std::int64_t i) {
  using Kind = OracleRow::Kind;
  const OracleRow& row = oracle.rows[static_cast<std::size_t>(i)];
  const std::int64_t vocab = problem.vocab_size != 0 ? problem.vocab_size : problem.columns;
  const bool live = row.kind != Kind::kMasked && row.kind != Kind::kBadTarget;
  const bool cancels = problem.label_smoothing != 0 || problem.z_loss_weight != 0;
  int complaints = 0;
  for (std::int64_t j = 0; j < problem.columns && complaints < 3; ++j) {
    const double got = outcome.grad[static_cast<std::size_t>(i * problem.columns + j)];
    bool right;
    double exact = 0;
    if (!live || j >= vocab) {
      right = got == 0;
    } else if (row.kind == Kind::kNan) {
      right = std::isnan(got);
    } else {
      exact = row.grad[static_cast<std::size_t>(j)];
      const double terms = row.terms[static_cast<std::size_t>(j)];
      // The target's own term is a sum of the others: it has the accuracy of a sum.
      const double relative = j == problem.targets[static_cast<std::size_t>(i)]
                                  ? kRelative
                                  : Allowed(row.z[static_cast<std::size_t>(j)], row.log_z);
      if (problem.dtype == LG_FP32) {
        right =
            std::fabs(got - exact) <= relative * terms + kSmallestFloat || (std::fabs(exact) > 3.4028234e38 && std::isinf(got));
      } else {
        const double ulp = Ulp(problem.dtype, exact);
        const double slack = cancels ? std::max(0x1p-8 * ulp, relative * terms) : 0x1p-8 * ulp;
        right = std::fabs(got - exact) <= 0.5 * ulp + slack ||
                (std::isinf(got) && std::fabs(exact) > FormatOf(problem.dtype).largest * (1 - 1e-5));
      }
    }
    if (!right) {
      ++complaints;
      ADD_FAILURE() << "gradient of row " << i << " column " << j << " (target " << problem.targets[static_cast<std::size_t>(i)]
                    << "): got " << got << ", exact " << exact;
    }
  }
}

}  // namespace

void ExpectOutcome(const Problem& problem, const Outcome& outcome, const Oracle& oracle) {
  ASSERT_EQ(outcome.code, LG_OK) << outcome.message;
  using Kind = OracleRow::Kind;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const OracleRow& row = oracle.rows[static_cast<std::size_t>(i)];
    double loss = row.objective, log_z = row.log_z;
    if (row.kind == Kind::kNan) loss = log_z = std::nan("");
    if (row.kind == Kind::kInfiniteLoss) loss = HUGE_VAL;
    const double target_z = row.z.empty() ? 0 : row.z[static_cast<std::size_t>(problem.targets[static_cast<std::size_t>(i)])];
    const double relative = Allowed(target_z, row.log_z);
    if (problem.wants_losses) {
      EXPECT_TRUE(NearlyFloat(static_cast<double>(outcome.losses[static_cast<std::size_t>(i)]), loss, relative))
          << "loss of row " << i << ": got " << outcome.losses[static_cast<std::size_t>(i)] << ", right " << loss;
    }
    if (problem.wants_log_z) {
      // log Z itself may be near 0 while its parts are not.
      const double got = static_cast<double>(outcome.log_z[static_cast<std::size_t>(i)]);
      EXPECT_TRUE(NearlyFloat(got, log_z, kRelative) || std::fabs(got - log_z) <= kRelative)
          << "log Z of row " << i << ": got " << got << ", right " << log_z;
    }
    if (problem.wants_grad) ExpectGradientRow(problem, outcome, oracle, i);
  }
  if (problem.wants_loss && problem.reduction != LG_NONE) {
    // It comes from the sum in fixed point: each row is rounded to 2^-64 nats.
    const double got = static_cast<double>(outcome.loss);
    const double step = static_cast<double>(problem.rows) * 0x1p-64 / oracle.denominator;
    EXPECT_TRUE(NearlyFloat(got, oracle.loss, kRelative) || std::fabs(got - oracle.loss) <= step)
        << "loss: got " << outcome.loss << ", right " << oracle.loss;
  }
  EXPECT_TRUE(outcome.gaps_unharmed) << "elements between rows were written";
  if (!problem.in_place) {
    EXPECT_EQ(outcome.logits_bytes, outcome.logits_bytes_before) << "logits were written";
  }
}

void ExpectRecord(const Problem& problem, const Outcome& outcome, const lg_step_record& record, const Oracle& oracle) {
  const auto near = [](double got, double right, double scale) {
    return std::fabs(got - right) <= kRelative * scale + 0x1p-60;
  };
  EXPECT_EQ(record.micro_batches, 1u);
  EXPECT_EQ(record.tokens, static_cast<std::uint64_t>(problem.rows));
  EXPECT_EQ(record.unmasked_tokens, oracle.unmasked);
  EXPECT_EQ(record.finite_tokens, oracle.finite);
  EXPECT_EQ(record.nonfinite_rows, oracle.nonfinite);
  EXPECT_EQ(record.bad_targets, oracle.bad);
  EXPECT_EQ(record.clamped_rows, 0u);
  EXPECT_EQ(record.target_hits, oracle.finite);
  EXPECT_EQ(record.correct_tokens, oracle.correct);
  EXPECT_EQ(record.mask_fingerprint, oracle.mask_fingerprint);
  EXPECT_EQ(record.target_fingerprint, oracle.target_fingerprint);
  const double abs_log_z = std::sqrt(oracle.log_z_sq_sum * static_cast<double>(std::max<std::uint64_t>(oracle.finite, 1)));
  EXPECT_TRUE(near(Value(record.nll_sum), oracle.nll_sum, oracle.nll_sum))
      << Value(record.nll_sum) << " not " << oracle.nll_sum;
  EXPECT_TRUE(near(Value(record.objective_sum), oracle.objective_sum, std::fabs(oracle.objective_sum)));
  EXPECT_TRUE(near(Value(record.z_loss_sum), oracle.z_loss_sum, oracle.z_loss_sum));
  EXPECT_TRUE(near(Value(record.log_z_sum), oracle.log_z_sum, abs_log_z + static_cast<double>(oracle.finite)));
  EXPECT_TRUE(near(Value(record.log_z_sq_sum), oracle.log_z_sq_sum, oracle.log_z_sq_sum + static_cast<double>(oracle.finite)));
  if (oracle.finite != 0) {
    EXPECT_TRUE(near(record.log_z_max, oracle.log_z_max, std::fabs(oracle.log_z_max) + 1));
    EXPECT_EQ(static_cast<float>(record.max_abs_logit), static_cast<float>(oracle.max_abs));
    // Rows whose losses differ by less than the promised accuracy may change places.
    const std::int64_t worst = record.worst_row_position - problem.position_base;
    if (problem.positions.empty() && worst >= 0 && worst < problem.rows && !TestedBackend().OrdersNearLossesExactly()) {
      const double right = oracle.rows[static_cast<std::size_t>(oracle.worst_row - problem.position_base)].nll;
      EXPECT_NEAR(oracle.rows[static_cast<std::size_t>(worst)].nll, right, kRelative * right);
    } else {
      EXPECT_EQ(record.worst_row_position, oracle.worst_row);
    }
    EXPECT_EQ(record.worst_logit_position, oracle.worst_logit_position);
    EXPECT_EQ(record.worst_logit_column, oracle.worst_logit_column);
  }
  EXPECT_EQ((record.present & LG_HAS_FIRST_NONFINITE_ROW) != 0, oracle.nonfinite != 0);
  if (oracle.nonfinite != 0) {
    EXPECT_EQ(record.first_nonfinite_row, oracle.first_nonfinite);
  }
  const bool gradient = problem.wants_grad && problem.call != Problem::Call::kObserve;
  EXPECT_EQ((record.present & LG_HAS_MASS) != 0, gradient);
  EXPECT_EQ((record.present & LG_HAS_LOGIT_GRAD) != 0, gradient);
  if (!gradient) return;
  EXPECT_TRUE(near(Value(record.probability_mass), static_cast<double>(oracle.finite), 2 * static_cast<double>(oracle.finite)))
      << Value(record.probability_mass);
  EXPECT_EQ(record.mass_error_rows, 0u);
  // Of the gradient as emitted, at upstream 1.
  double squares = 0;
  std::uint64_t nonfinite_grad_rows = 0;
  bool derivable = true;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    if (oracle.rows[static_cast<std::size_t>(i)].kind != OracleRow::Kind::kFinite) continue;
    const std::size_t at = problem.upstream.size() > 1 ? static_cast<std::size_t>(i) : 0;
    const double scale = (problem.upstream.empty() ? 1.0 : static_cast<double>(problem.upstream[at])) *
                         (problem.by_grad_scale_pointer ? static_cast<double>(problem.grad_scale) : 1.0);
    derivable &= scale != 0;
    double row = 0;
    for (std::int64_t j = 0; j < problem.columns; ++j) {
      const double g = outcome.grad[static_cast<std::size_t>(i * problem.columns + j)] * (oracle.denominator / scale);
      row += g * g;
    }
    if (std::isfinite(row)) {
      squares += row;
    } else {
      ++nonfinite_grad_rows;
    }
  }
  EXPECT_EQ(record.nonfinite_grad_rows, nonfinite_grad_rows);
  if (derivable) {
    EXPECT_TRUE(near(Value(record.logit_grad_sq_sum), squares, squares))
        << Value(record.logit_grad_sq_sum) << " not " << squares;
  }
}

void ExpectRightNotWrong(double value, double right, double wrong, double relative) {
  const double tolerance = relative * std::fabs(right);
  EXPECT_NEAR(value, right, tolerance);
  EXPECT_GT(std::fabs(right - wrong), tolerance) << "this assertion could not tell right from wrong";
  EXPECT_GT(std::fabs(value - wrong), tolerance) << "the known wrong value";
}

void ExpectLikeOracle(const Problem& problem) {
  const Observed observed = RunObserved(problem);
  const Oracle oracle = Judge(problem);
  ExpectOutcome(problem, observed.outcome, oracle);
  ExpectRecord(problem, observed.outcome, observed.record, oracle);
}

}  // namespace lossgauge::test
