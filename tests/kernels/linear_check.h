// Compares what linear cross-entropy did with float64, and its record with that of the same loss on logits that are all there.
#ifndef LOSSGAUGE_TESTS_KERNELS_LINEAR_CHECK_H_
#define LOSSGAUGE_TESTS_KERNELS_LINEAR_CHECK_H_

#include "tests/kernels/linear_backend.h"
#include "tests/kernels/oracle.h"

namespace lossgauge::test {

struct LinearOracle {
  Oracle loss;
  std::vector<double> grad_hidden, grad_weight, grad_bias;
  std::vector<double> hidden_terms, weight_terms, bias_terms;  // sums of magnitudes: what rounding errors are relative to
};
LinearOracle JudgeLinear(const LinearProblem& problem);

// What logits_dtype -1 means to the backend under test.
int DefaultLogitsType(const LinearProblem& problem);
// Whether it forms logits in another dtype than that of the tensors. A device refuses.
bool HasLogitsOfAnotherType();

// Losses and gradients, as far as they were wanted; what was not wanted is as it was.
void ExpectLinearOutcome(const LinearProblem& problem, const LinearOutcome& outcome, const LinearOracle& oracle);

// Every word of the record that the same call on existing logits also has, and the squares of the linear gradients as emitted.
void ExpectLinearRecord(const LinearProblem& problem, const LinearObserved& observed, const LinearOracle& oracle);

// Runs with telemetry and compares everything.
void ExpectLinearLikeOracle(const LinearProblem& problem);

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_LINEAR_CHECK_H_
