// The head that is cut in the tests of the vocabulary-parallel linear loss: 23 rows in chunks of 6, 300 columns.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_PROBLEM_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_PROBLEM_H_

#include <cstddef>
#include <cstdint>

#include "tests/kernels/recipes.h"
#include "tests/kernels/vocab_parallel_linear_ranks.h"

namespace lossgauge::test {

inline constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};
inline constexpr std::int64_t kRows = 23, kWidth = 12, kVocab = 300;

// Chunks of 6 rows, of which some are masked.
inline LinearProblem Base(int dtype = LG_FP32) {
  LinearProblem problem = MakeLinearProblem(X(kRows, kWidth), W(kVocab, kWidth), Y(kRows, kVocab));
  problem.dtype = dtype;
  problem.chunk_rows = 6;
  for (const std::size_t row : {std::size_t{2}, std::size_t{3}, std::size_t{22}}) problem.loss.targets[row] = -100;
  return problem;
}
inline constexpr std::uint64_t kUnmasked = kRows - 3;

// A device's products may round 16-bit logits before they add the bias, and again then.
inline double BiasStep(const LinearProblem& problem) { return TestedBackend().IsDevice() && problem.dtype != LG_FP32 ? 0 : 0.125; }

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_PROBLEM_H_
