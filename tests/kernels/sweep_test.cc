// Every combination that matters, by chance, against the oracle: widths around vector and block sizes, dtypes, strides,
// alignment, options, strange values. The seed is fixed: a failure names its round and comes again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/backend.h"
#include "tests/kernels/chance.h"
#include "tests/kernels/check.h"

namespace lossgauge::test {
namespace {

Problem AnyProblem(Chance& chance, std::int64_t columns, std::int64_t rows) {
  Problem problem;
  constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};
  problem.dtype = kDtypes[chance.Below(3)];
  problem.rows = rows;
  problem.columns = columns;
  if (chance.OneIn(4)) problem.vocab_size = 1 + chance.Below(columns);
  const std::int64_t vocab = problem.vocab_size != 0 ? problem.vocab_size : columns;
  if (chance.OneIn(3)) problem.row_stride = columns + chance.Below(9);
  if (chance.OneIn(3)) problem.grad_row_stride = columns + chance.Below(9);
  problem.target_dtype = chance.OneIn(2) ? LG_INT64 : LG_INT32;
  problem.target_stride = 1 + chance.Below(2);
  if (chance.OneIn(3)) problem.label_smoothing = chance.Uniform(0, 0.3);
  if (chance.OneIn(3)) problem.z_loss_weight = chance.Uniform(0, 1e-3);
  if (chance.OneIn(5)) problem.logit_scale = chance.OneIn(2) ? 0.5 : chance.Uniform(-2, 2);
  if (chance.OneIn(5)) problem.logit_softcap = chance.Uniform(1, 50);
  problem.reduction = static_cast<int>(chance.Below(3));
  if (problem.reduction == LG_MEAN && chance.OneIn(2)) problem.denominator = chance.Uniform(1, 5000);
  if (chance.OneIn(3)) problem.upstream.push_back(static_cast<float>(chance.Normal() * 3));
  if (problem.upstream.empty() && chance.OneIn(3)) {
    for (std::int64_t i = 0; i < rows; ++i) problem.upstream.push_back(static_cast<float>(chance.Normal()));
  }
  if (chance.OneIn(4)) problem.by_grad_scale_pointer = true, problem.grad_scale = 1024;
  problem.in_place = chance.OneIn(3);
  if (problem.in_place) problem.grad_row_stride = 0;
  problem.wants_grad = !chance.OneIn(6) || problem.in_place;
  problem.flush_left = chance.OneIn(2);
  problem.shift_bytes = chance.Below(4) * (problem.dtype == LG_FP32 ? 4 : 2);
  problem.threads = static_cast<int>(1 + chance.Below(3));
  problem.position_base = chance.Below(100000);
  const double spread = chance.OneIn(2) ? 1 : chance.Uniform(0.01, 12);
  const double level = chance.OneIn(3) ? chance.Uniform(-300, 300) : 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t target = chance.Below(vocab);
    if (chance.OneIn(6)) target = -100;
    if (chance.OneIn(15)) target = vocab + chance.Below(3);
    problem.targets.push_back(target);
    for (std::int64_t j = 0; j < columns; ++j) problem.logits.push_back(level + spread * chance.Normal());
    double* row = problem.logits.data() + i * columns;
    if (chance.OneIn(5) && target >= 0 && target < vocab) row[target] += chance.Uniform(5, 45);
    if (chance.OneIn(8)) row[chance.Below(columns)] = -HUGE_VAL;
    if (chance.OneIn(20)) row[chance.Below(columns)] = HUGE_VAL;
    if (chance.OneIn(20)) row[chance.Below(columns)] = NAN;
    if (chance.OneIn(30)) std::fill(row, row + columns, -HUGE_VAL);
    for (std::int64_t j = vocab; j < columns; ++j) row[j] = chance.OneIn(2) ? NAN : 1e30;
  }
  return problem;
}

void Sweep(std::int64_t columns, std::int64_t rows, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("columns " + std::to_string(columns) + " round " + std::to_string(round));
    Chance chance(static_cast<std::uint64_t>(columns) * 1000 + static_cast<std::uint64_t>(round));
    ExpectLikeOracle(AnyProblem(chance, columns, rows));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Sweep, WidthsFromOneToThreeHundred) {
  for (std::int64_t columns = 1; columns <= 300; ++columns) Sweep(columns, 5, 4);
}

TEST(Sweep, WidthsAroundBlocksOfVectors) {
  for (const std::int64_t around : {512, 1024, 2048, 4096}) {
    for (std::int64_t columns = around - 2; columns <= around + 2; ++columns) Sweep(columns, 4, 4);
  }
}

TEST(Sweep, WidthsOfRealVocabularies) {
  Sweep(32000, 3, 8);
  Sweep(50257, 3, 8);
}

TEST(Sweep, WidthsOfSeveralSlotsInEveryShard) {
  Sweep(75003, 5, 16);
  Sweep(131072, 3, 8);
}

}  // namespace
}  // namespace lossgauge::test
