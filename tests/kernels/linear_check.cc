#include "tests/kernels/linear_check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/check.h"
#include "tests/kernels/elements.h"

namespace lossgauge::test {
namespace {

int LogitsType(const LinearProblem& problem) { return problem.logits_dtype == -1 ? DefaultLogitsType(problem) : problem.logits_dtype; }

// Errors of fp32 sums and of the gradient of the logits, relative to the sum of the magnitudes of all terms.
double Relative(const LinearProblem& problem) {
  const int dtype = LogitsType(problem);
  return dtype == LG_BF16 ? 0x1p-8 : dtype == LG_FP16 ? 0x1p-10 : 4e-6;
}

void ExpectGradient(const char* name, const LinearProblem& problem, int dtype, const std::vector<double>& got, const std::vector<double>& right,
                    const std::vector<double>& terms) {
  ASSERT_EQ(got.size(), right.size()) << name;
  int complaints = 0;
  for (std::size_t i = 0; i < got.size() && complaints < 3; ++i) {
    bool is_right;
    if (std::isnan(right[i])) {
      is_right = std::isnan(got[i]);
    } else {
      const double allowed = Relative(problem) * terms[i] + (dtype == LG_FP32 ? 0x1p-149 : 0.51 * Ulp(dtype, right[i]));
      is_right = std::fabs(got[i] - right[i]) <= allowed || (std::isinf(got[i]) && std::fabs(right[i]) > FormatOf(dtype).largest * (1 - 1e-5));
    }
    if (is_right) continue;
    ++complaints;
    ADD_FAILURE() << name << "[" << i << "]: got " << got[i] << ", exact " << right[i] << ", terms " << terms[i];
  }
}

bool IsAll(const std::vector<unsigned char>& bytes, unsigned char value) {
  for (const unsigned char byte : bytes) {
    if (byte != value) return false;
  }
  return true;
}

bool WantsBias(const LinearProblem& problem) { return problem.wants_grad_bias && !problem.bias.empty(); }
bool WantsGradient(const LinearProblem& problem) { return problem.wants_grad_hidden || problem.wants_grad_weight || WantsBias(problem); }

double Squares(const std::vector<double>& values, double restore) {
  double sum = 0;
  for (const double value : values) sum += value * restore * value * restore;
  return sum;
}

}  // namespace

int DefaultLogitsType(const LinearProblem& problem) { return TestedBackend().IsDevice() ? problem.dtype : LG_FP32; }

bool HasLogitsOfAnotherType() { return !TestedBackend().IsDevice(); }

LinearOracle JudgeLinear(const LinearProblem& problem) {
  const Problem loss = AsProblem(problem, DefaultLogitsType(problem));
  // A gradient of logits is off by what is below its format's smallest number, whatever its size.
  const double unseen = Ulp(LogitsType(problem), 0) / Relative(problem);
  LinearOracle oracle;
  oracle.loss = Judge(loss);
  const std::vector<double> hidden = Rounded(problem, problem.hidden), weight = Rounded(problem, problem.weight);
  const auto size = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
  oracle.grad_hidden.assign(size(problem.rows, problem.width), 0);
  oracle.hidden_terms = oracle.grad_hidden;
  oracle.grad_weight.assign(size(problem.columns, problem.width), 0);
  oracle.weight_terms = oracle.grad_weight;
  oracle.grad_bias.assign(size(problem.columns, 1), 0);
  oracle.bias_terms = oracle.grad_bias;
  const std::int64_t vocab = loss.vocab_size != 0 ? loss.vocab_size : loss.columns;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const OracleRow& row = oracle.loss.rows[static_cast<std::size_t>(i)];
    if (row.kind == OracleRow::Kind::kMasked || row.kind == OracleRow::Kind::kBadTarget) continue;
    for (std::int64_t j = 0; j < vocab; ++j) {
      const double g = row.kind == OracleRow::Kind::kNan ? std::nan("") : row.grad[static_cast<std::size_t>(j)];
      const double terms = row.kind == OracleRow::Kind::kNan ? 0 : row.terms[static_cast<std::size_t>(j)] + unseen;
      const std::size_t in_hidden = size(i, problem.width), in_weight = size(j, problem.width);
      for (std::size_t k = 0; k < static_cast<std::size_t>(problem.width); ++k) {
        const double h = hidden[in_hidden + k], w = weight[in_weight + k];
        oracle.grad_hidden[in_hidden + k] += g * w;
        oracle.hidden_terms[in_hidden + k] += terms * std::fabs(w);
        oracle.grad_weight[in_weight + k] += g * h;
        oracle.weight_terms[in_weight + k] += terms * std::fabs(h);
      }
      oracle.grad_bias[static_cast<std::size_t>(j)] += g;
      oracle.bias_terms[static_cast<std::size_t>(j)] += terms;
    }
  }
  const auto add = [&](const std::vector<double>& before, std::vector<double>* sum, std::vector<double>* terms) {
    for (std::size_t i = 0; problem.accumulate && i < before.size(); ++i) {
      const double value = RoundTo(problem.head_grad_dtype, before[i]);
      (*sum)[i] += value;
      (*terms)[i] += std::fabs(value);
    }
  };
  add(problem.grad_weight_before, &oracle.grad_weight, &oracle.weight_terms);
  add(problem.grad_bias_before, &oracle.grad_bias, &oracle.bias_terms);
  return oracle;
}

void ExpectLinearOutcome(const LinearProblem& problem, const LinearOutcome& outcome, const LinearOracle& oracle) {
  ASSERT_EQ(outcome.code, LG_OK) << outcome.message;
  const bool backward = problem.loss.call == Problem::Call::kBackward;
  Problem loss = AsProblem(problem, DefaultLogitsType(problem));
  loss.wants_grad = false;
  if (backward) loss.wants_losses = loss.wants_log_z = loss.wants_loss = false;
  Outcome part;
  part.code = outcome.code;
  part.losses = outcome.losses;
  part.log_z = outcome.log_z;
  part.loss = outcome.loss;
  ExpectOutcome(loss, part, oracle.loss);
  for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
    EXPECT_TRUE(loss.wants_losses || std::isnan(outcome.losses[i])) << "losses were written";
    EXPECT_TRUE(loss.wants_log_z || std::isnan(outcome.log_z[i])) << "log_z was written";
  }
  if (problem.wants_grad_hidden) {
    ExpectGradient("grad_hidden", problem, problem.dtype, outcome.grad_hidden, oracle.grad_hidden, oracle.hidden_terms);
  } else {
    EXPECT_TRUE(IsAll(outcome.grad_hidden_bytes, 0xff)) << "grad_hidden was written";
  }
  if (problem.wants_grad_weight) {
    ExpectGradient("grad_weight", problem, problem.head_grad_dtype, outcome.grad_weight, oracle.grad_weight, oracle.weight_terms);
  } else if (problem.grad_weight_before.empty()) {
    EXPECT_TRUE(IsAll(outcome.grad_weight_bytes, 0xff)) << "grad_weight was written";
  }
  if (WantsBias(problem)) {
    ExpectGradient("grad_bias", problem, problem.head_grad_dtype, outcome.grad_bias, oracle.grad_bias, oracle.bias_terms);
  } else if (problem.grad_bias_before.empty()) {
    EXPECT_TRUE(IsAll(outcome.grad_bias_bytes, 0xff)) << "grad_bias was written";
  }
  EXPECT_TRUE(outcome.gaps_unharmed) << "elements between rows were written";
}

void ExpectLinearRecord(const LinearProblem& problem, const LinearObserved& observed, const LinearOracle& oracle) {
  Problem whole = AsProblem(problem, DefaultLogitsType(problem));
  whole.wants_grad = WantsGradient(problem);
  const lg_step_record right = RunObserved(whole).record;
  const lg_step_record& got = observed.record;
  const bool exact = TestedBackend().HasSameBitsForAnyLayout();
#define LOSSGAUGE_SAME_WORD(word) EXPECT_EQ(got.word, right.word) << #word
  LOSSGAUGE_SAME_WORD(micro_batches);
  LOSSGAUGE_SAME_WORD(tokens);
  LOSSGAUGE_SAME_WORD(unmasked_tokens);
  LOSSGAUGE_SAME_WORD(finite_tokens);
  LOSSGAUGE_SAME_WORD(nonfinite_rows);
  LOSSGAUGE_SAME_WORD(bad_targets);
  LOSSGAUGE_SAME_WORD(clamped_rows);
  LOSSGAUGE_SAME_WORD(target_bytes);
  LOSSGAUGE_SAME_WORD(nonfinite_grad_rows);
  LOSSGAUGE_SAME_WORD(mass_error_rows);
  LOSSGAUGE_SAME_WORD(target_hits);
  LOSSGAUGE_SAME_WORD(correct_tokens);
  LOSSGAUGE_SAME_WORD(mask_fingerprint);
  LOSSGAUGE_SAME_WORD(target_fingerprint);
  LOSSGAUGE_SAME_WORD(denominator_min);
  LOSSGAUGE_SAME_WORD(denominator_max);
  LOSSGAUGE_SAME_WORD(max_abs_logit);
  LOSSGAUGE_SAME_WORD(worst_logit_position);
  LOSSGAUGE_SAME_WORD(worst_logit_column);
  LOSSGAUGE_SAME_WORD(first_nonfinite_row);
  if (exact) {
    LOSSGAUGE_SAME_WORD(log_z_max);
    LOSSGAUGE_SAME_WORD(worst_row_nll);
    LOSSGAUGE_SAME_WORD(worst_row_position);
    LOSSGAUGE_SAME_WORD(worst_row_target);
  }
#undef LOSSGAUGE_SAME_WORD
  const struct {
    const char* name;
    lg_fixed128 got, right;
  } sums[] = {{"nll_sum", got.nll_sum, right.nll_sum},
              {"objective_sum", got.objective_sum, right.objective_sum},
              {"z_loss_sum", got.z_loss_sum, right.z_loss_sum},
              {"scored_nll_sum", got.scored_nll_sum, right.scored_nll_sum},
              {"log_z_sum", got.log_z_sum, right.log_z_sum},
              {"log_z_sq_sum", got.log_z_sq_sum, right.log_z_sq_sum},
              {"logit_grad_sq_sum", got.logit_grad_sq_sum, right.logit_grad_sq_sum},
              {"probability_mass", got.probability_mass, right.probability_mass}};
  for (const auto& sum : sums) {
    if (exact) {
      EXPECT_EQ(lg_fixed128_compare(sum.got, sum.right), 0) << sum.name << ": got " << Value(sum.got) << ", unchunked " << Value(sum.right);
    } else {
      EXPECT_NEAR(Value(sum.got), Value(sum.right), 2e-6 * (std::fabs(Value(sum.right)) + static_cast<double>(right.finite_tokens))) << sum.name;
    }
  }
  const std::uint64_t linear_bits = LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD;
  EXPECT_EQ(got.present & ~linear_bits, right.present);

  // Squares of what was emitted, at upstream 1, where that can be undone.
  const double grad_scale = problem.loss.by_grad_scale_pointer ? static_cast<double>(problem.loss.grad_scale) : 1.0;
  const bool per_token = problem.loss.upstream.size() > 1;
  const double scalar = (problem.loss.upstream.empty() || per_token ? 1.0 : static_cast<double>(problem.loss.upstream[0])) * grad_scale;
  if (oracle.loss.unmasked == 0) {
    EXPECT_EQ((got.present & LG_HAS_HIDDEN_GRAD) != 0, problem.wants_grad_hidden);
    EXPECT_EQ((got.present & LG_HAS_HEAD_GRAD) != 0, problem.wants_grad_weight && !per_token);
    EXPECT_EQ(Value(got.hidden_grad_sq_sum), 0.0);
    EXPECT_EQ(Value(got.head_grad_sq_sum), 0.0);
    return;
  }
  EXPECT_EQ((got.present & LG_HAS_HIDDEN_GRAD) != 0, problem.wants_grad_hidden) << "hidden_grad_sq_sum";
  if (problem.wants_grad_hidden) {
    double squares = 0;
    for (std::int64_t i = 0; i < problem.rows; ++i) {
      if (oracle.loss.rows[static_cast<std::size_t>(i)].kind != OracleRow::Kind::kFinite) continue;
      const double scale = per_token ? static_cast<double>(problem.loss.upstream[static_cast<std::size_t>(i)]) * grad_scale : scalar;
      const auto first = observed.outcome.grad_hidden.begin() + i * problem.width;
      const double row = Squares({first, first + problem.width}, oracle.loss.denominator / scale);
      if (std::isfinite(row)) squares += row;
    }
    EXPECT_NEAR(Value(got.hidden_grad_sq_sum), squares, 1e-6 * squares + 1e-15);
  }
  double squares = Squares(observed.outcome.grad_weight, oracle.loss.denominator / scalar);
  const bool has_head = problem.wants_grad_weight && !per_token && std::isfinite(squares);
  EXPECT_EQ((got.present & LG_HAS_HEAD_GRAD) != 0, has_head) << "head_grad_sq_sum";
  if (has_head) {
    double before = 0;
    if (problem.accumulate) {
      std::vector<double> rounded;
      for (const double value : problem.grad_weight_before) rounded.push_back(RoundTo(problem.head_grad_dtype, value));
      before = Squares(rounded, oracle.loss.denominator / scalar);
    }
    EXPECT_NEAR(Value(got.head_grad_sq_sum), squares - before, 1e-6 * (squares + before) + 1e-15);
  }
}

void ExpectLinearLikeOracle(const LinearProblem& problem) {
  const LinearObserved observed = RunLinearObserved(problem);
  const LinearOracle oracle = JudgeLinear(problem);
  ExpectLinearOutcome(problem, observed.outcome, oracle);
  if (observed.outcome.code == LG_OK) ExpectLinearRecord(problem, observed, oracle);
}

}  // namespace lossgauge::test
