// Soft cap and scale against the oracle, in every dtype and over the widths at which backends change kernels: confident targets, logits far beyond the cap,
// strange values.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};

// Six rows: plain, a confident target, a target far beyond the others, all far below 0, all far above, masked.
Problem SixRows(std::int64_t columns, double spread, double lead) {
  Problem problem;
  problem.rows = 6;
  problem.columns = columns;
  problem.logits = Z(6, columns);
  problem.targets = Y(6, columns);
  problem.targets[5] = -100;
  const auto at = [&](std::int64_t row, std::int64_t column) -> double& { return problem.logits[static_cast<std::size_t>(row * columns + column)]; };
  for (double& z : problem.logits) z *= spread / 8;
  at(1, problem.targets[1]) = lead;
  at(2, problem.targets[2]) = 100 * lead;
  for (std::int64_t j = 0; j < columns; ++j) {
    at(3, j) -= 4 * lead;
    at(4, j) += 4 * lead;
  }
  return problem;
}

void ExpectRight(Problem problem, double scale, double cap) {
  problem.logit_scale = scale;
  problem.logit_softcap = cap;
  for (const int dtype : kDtypes) {
    SCOPED_TRACE("dtype " + std::to_string(dtype) + " columns " + std::to_string(problem.columns) + " scale " + std::to_string(scale) + " cap " +
                 std::to_string(cap));
    problem.dtype = dtype;
    ExpectLikeOracle(problem);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Mapped, ScalesAndCapsOverAllWidths) {
  for (const std::int64_t columns : {1, 2, 9, 129, 1000, 5000, 9001, 32000, 70001, 150016, 290000}) {
    const Problem problem = SixRows(columns, 8, 30);
    ExpectRight(problem, 1, 30);
    ExpectRight(problem, 0.25, 0);
    if (columns > 100000) continue;
    ExpectRight(problem, 1. / 3, 0);
    ExpectRight(problem, 1.9, 0);
    ExpectRight(problem, 2.2, 0);
    ExpectRight(problem, 0.5, 5);
    ExpectRight(problem, 1.75, 50);
    ExpectRight(problem, 1. / 3, 80);
    ExpectRight(problem, 1, 58);
    ExpectRight(problem, 1, 61);
    ExpectRight(problem, 1, 75);
    ExpectRight(problem, 1, 77);
    ExpectRight(problem, 1, 4095);
    ExpectRight(problem, 1, 4097);
    ExpectRight(problem, 1, 1e6);
    ExpectRight(problem, -0.7, 0);
    ExpectRight(problem, -0.7, 20);
  }
}

TEST(Mapped, ScalesFarFromOne) {
  for (const std::int64_t columns : {300, 12000}) {
    ExpectRight(SixRows(columns, 0.5, 0.9), 50, 0);
    ExpectRight(SixRows(columns, 0.5, 0.9), 50, 30);
    ExpectRight(SixRows(columns, 100, 150), 0.01, 0);
    ExpectRight(SixRows(columns, 3000, 9000), 1e-3, 0);
    ExpectRight(SixRows(columns, 3000, 9000), 1e-3, 30);
  }
}

// Rounding a product with log2(e) by whole numbers would give infinite exponentials or none.
TEST(Mapped, LogitsFarFromZero) {
  for (const std::int64_t columns : {300, 12000, 70001}) {
    for (const double size : {6e4, 1e10, 1e30}) {
      Problem problem = SixRows(columns, size, size);
      problem.wants_loss = size < 1e12;  // the scalar loss clamps terms from 7e13 on, records from 8e6 on
      for (const double scale : {1., 0.3}) {
        problem.logit_scale = scale;
        problem.dtype = LG_BF16;
        SCOPED_TRACE("columns " + std::to_string(columns) + " size " + std::to_string(size) + " scale " + std::to_string(scale));
        if (size < 1e5) ExpectLikeOracle(problem);
        else ExpectOutcome(problem, RunObserved(problem).outcome, Judge(problem));
      }
    }
  }
}

// Equal terms round the same way each time they are added.
TEST(Mapped, SmoothingOverManyEqualColumns) {
  Problem problem;
  problem.rows = 2;
  problem.columns = 524288;
  problem.logits.assign(static_cast<std::size_t>(2 * problem.columns), 120);
  problem.logits[7] = 130;
  problem.targets = {7, problem.columns - 1};
  problem.label_smoothing = 0.3;
  ExpectRight(problem, 1, 30);
}

TEST(Mapped, ScalesAtTheEndsOfTheirRange) {
  Problem problem = SixRows(300, 8, 30);
  problem.logit_softcap = 30;
  for (double& z : problem.logits) z = z < 0 ? -1e-28 : z < 10 ? 0 : 1e-28;
  problem.logits[3] = -HUGE_VAL;
  for (const int dtype : kDtypes) {
    problem.dtype = dtype;
    for (const double scale : {1e29, 1e-29}) {
      SCOPED_TRACE("dtype " + std::to_string(dtype) + " scale " + std::to_string(scale));
      problem.logit_scale = scale;
      ExpectOutcome(problem, RunObserved(problem).outcome, Judge(problem));  // squares of such gradients are beyond what a record holds
    }
  }
}

TEST(Mapped, LogitsFarBeyondTheCap) {
  for (const std::int64_t columns : {300, 12000}) {
    for (const double size : {200., 10000.}) ExpectRight(SixRows(columns, size, size), 1, 30);
  }
}

TEST(Mapped, WithSmoothingAndZLoss) {
  for (const std::int64_t columns : {300, 12000, 70001}) {
    Problem problem = SixRows(columns, 8, 30);
    problem.label_smoothing = 0.1;
    problem.z_loss_weight = 1e-3;
    problem.in_place = true;
    ExpectRight(problem, 1, 30);
    ExpectRight(problem, 0.25, 0);
    problem.by_grad_scale_pointer = true;
    problem.grad_scale = 4096;
    problem.upstream = {1, 0.5, -2, 1e-30F, 3, 1};
    ExpectRight(problem, 0.25, 0);
    ExpectRight(problem, 2, 30);
  }
}

TEST(Mapped, InfinitiesAndNaN) {
  for (const std::int64_t columns : {300, 12000, 70001}) {
    Problem problem = SixRows(columns, 8, 30);
    const auto at = [&](std::int64_t row, std::int64_t column) -> double& { return problem.logits[static_cast<std::size_t>(row * columns + column)]; };
    at(0, 3) = -HUGE_VAL;
    at(1, columns - 1) = NAN;
    at(2, problem.targets[2]) = -HUGE_VAL;
    at(3, columns / 2) = HUGE_VAL;
    for (std::int64_t j = 0; j < columns; ++j) at(4, j) = -HUGE_VAL;
    at(5, 0) = NAN;
    ExpectRight(problem, 1, 30);
    ExpectRight(problem, 0.25, 0);
    problem.label_smoothing = 0.1;
    ExpectRight(problem, 1, 30);
    ExpectRight(problem, 0.25, 0);
  }
}

// Backends may work out small logits in other ways than large ones: around three quarters of the cap, and with a confident target on each side of it.
TEST(Mapped, LogitsOfAllSizesUpToTheCap) {
  for (const std::int64_t columns : {300, 12000, 70001}) {
    for (const double scale : {1., -1.}) {
      for (const double cap : {4., 30., 50., 50.5}) {
        if (columns > 20000 && (scale < 0 || cap == 4.)) continue;
        Problem problem;
        problem.rows = 6;
        problem.columns = columns;
        problem.targets = {1, columns / 2, columns - 1, 7, columns / 3, 11};
        problem.logits.resize(static_cast<std::size_t>(6 * columns));
        const double top[] = {0.5, 0.75, 0.76, 0.9, 1.2, 0.74};
        for (std::int64_t i = 0; i < 6; ++i) {
          for (std::int64_t j = 0; j < columns; ++j) {
            const double share = static_cast<double>((j * 7919) % columns) / static_cast<double>(columns);
            problem.logits[static_cast<std::size_t>(i * columns + j)] =
                scale * top[i] * cap * (i < 4 ? 2 * share - 1 : share - 1);
          }
        }
        // Confident: what the loss is made of are the others, far below.
        problem.logits[static_cast<std::size_t>(4 * columns + problem.targets[4])] = scale * 0.8 * cap;
        problem.logits[static_cast<std::size_t>(5 * columns + problem.targets[5])] = scale * 0.7 * cap;
        ExpectRight(problem, scale, cap);
        problem.label_smoothing = 0.1;
        problem.z_loss_weight = 1e-4;
        ExpectRight(problem, scale, cap);
      }
    }
  }
}

// Where different logits have one z in fp32, the lowest column is the largest logit's and the correct target's.
TEST(Mapped, TiesAreThoseOfTheCappedLogits) {
  for (const std::int64_t columns : {40, 12000, 70001}) {
    Problem problem;
    problem.rows = 4;
    problem.columns = columns;
    problem.logits.assign(static_cast<std::size_t>(4 * columns), 1.);
    const auto at = [&](std::int64_t row, std::int64_t column) -> double& { return problem.logits[static_cast<std::size_t>(row * columns + column)]; };
    problem.targets = {5, columns - 2, 5, columns - 2};
    at(0, 5) = 600, at(0, columns - 2) = 700;
    at(1, 5) = 600, at(1, columns - 2) = 700;
    at(2, 5) = 20, at(2, columns - 2) = 19.875;
    at(3, 5) = -800, at(3, columns - 2) = 700;
    ExpectRight(problem, 1, 30);
  }
}

}  // namespace
}  // namespace lossgauge::test
