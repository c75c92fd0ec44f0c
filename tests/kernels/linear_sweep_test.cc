// Every combination of linear cross-entropy's arguments that matters, by chance, against float64 and against the same loss on logits that are all there.
// Hidden states and heads lie on a grid where products are exact in fp32 in any order, so that the logits, and with them every counter, are those of the
// whole. The seed is fixed: a failure names its round and comes again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/chance.h"
#include "tests/kernels/linear_backend.h"
#include "tests/kernels/linear_check.h"

namespace lossgauge::test {
namespace {

struct Shape {
  std::int64_t rows, width, columns;
};

void AnyLossOptions(Chance& chance, std::int64_t vocab, LinearProblem* problem) {
  Problem& loss = problem->loss;
  loss.target_dtype = chance.OneIn(2) ? LG_INT64 : LG_INT32;
  loss.target_stride = 1 + chance.Below(2);
  if (chance.OneIn(3)) loss.label_smoothing = chance.Uniform(0, 0.3);
  if (chance.OneIn(3)) loss.z_loss_weight = chance.Uniform(0, 1e-3);
  if (chance.OneIn(5)) loss.logit_scale = chance.OneIn(2) ? 0.5 : chance.Uniform(-2, 2);
  if (chance.OneIn(5)) loss.logit_softcap = chance.Uniform(1, 50);
  loss.reduction = static_cast<int>(chance.Below(3));
  if (loss.reduction == LG_MEAN && chance.OneIn(2)) (chance.OneIn(2) ? loss.denominator : loss.denominator_by_pointer) = chance.Uniform(1, 5000);
  if (chance.OneIn(3)) loss.upstream.push_back(static_cast<float>(chance.Uniform(0.1, 3)));
  if (loss.upstream.empty() && chance.OneIn(3)) {
    for (std::int64_t i = 0; i < problem->rows; ++i) loss.upstream.push_back(static_cast<float>(chance.OneIn(2) ? chance.Uniform(0.1, 3) : -1));
  }
  if (chance.OneIn(4)) loss.by_grad_scale_pointer = true, loss.grad_scale = 64;
  loss.wants_losses = !chance.OneIn(4);
  loss.wants_log_z = !chance.OneIn(4);
  loss.wants_loss = !chance.OneIn(4);
  loss.flush_left = chance.OneIn(2);
  loss.threads = static_cast<int>(1 + chance.Below(3));
  loss.position_base = chance.Below(100000);
  if (chance.OneIn(3)) {
    for (std::int64_t i = 0; i < problem->rows; ++i) loss.positions.push_back(7 * i + chance.Below(7));
  }
  const int masked_one_in = chance.OneIn(6) ? 1 : static_cast<int>(2 + chance.Below(8));
  const std::int64_t quiet = chance.Below(problem->rows), quiet_end = quiet + chance.Below(problem->rows);  // whole chunks without a token
  for (std::int64_t i = 0; i < problem->rows; ++i) {
    std::int64_t target = chance.Below(vocab);
    if (chance.OneIn(masked_one_in) || (i >= quiet && i < quiet_end)) target = -100;
    if (chance.OneIn(15)) target = vocab + chance.Below(3);
    loss.targets.push_back(target);
  }
}

LinearProblem AnyProblem(Chance& chance, const Shape& shape) {
  LinearProblem problem;
  constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};
  problem.dtype = kDtypes[chance.Below(3)];
  constexpr int kOtherwise[] = {-1, LG_FP32};
  problem.logits_dtype = chance.OneIn(3) ? problem.dtype : kOtherwise[chance.Below(2)];
  if (problem.logits_dtype == LG_FP32 && !HasLogitsOfAnotherType()) problem.logits_dtype = problem.dtype;
  problem.rows = shape.rows;
  problem.width = shape.width;
  problem.columns = shape.columns;
  const std::int64_t vocab = chance.OneIn(4) ? 1 + chance.Below(shape.columns) : shape.columns;
  if (vocab != shape.columns) problem.loss.vocab_size = vocab;
  AnyLossOptions(chance, vocab, &problem);
  for (std::int64_t* stride : {&problem.hidden_stride, &problem.weight_stride, &problem.grad_hidden_stride, &problem.grad_weight_stride}) {
    if (chance.OneIn(3)) *stride = shape.width + chance.Below(9);
  }
  problem.wants_grad_hidden = !chance.OneIn(4);
  problem.wants_grad_weight = !chance.OneIn(4);
  problem.wants_grad_bias = !chance.OneIn(4);
  problem.head_grad_dtype = chance.OneIn(2) ? problem.dtype : LG_FP32;
  if (!chance.OneIn(3)) problem.chunk_rows = 1 + chance.Below(shape.rows + 2);
  problem.gives_workspace = chance.OneIn(3);

  const double spread = std::ldexp(1.0, static_cast<int>(chance.Below(5)));
  const auto grid = [&] { return static_cast<double>(chance.Below(33) - 16) / 32; };
  for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) problem.hidden.push_back(spread * grid());
  for (std::int64_t i = 0; i < shape.columns * shape.width; ++i) problem.weight.push_back(i < vocab * shape.width ? grid() : NAN);
  if (chance.OneIn(2)) {
    // A device's products may round 16-bit logits before they add the bias, and again then.
    const double steps = TestedBackend().IsDevice() && problem.dtype != LG_FP32 ? 0 : 4;
    for (std::int64_t j = 0; j < shape.columns; ++j) problem.bias.push_back(j < vocab ? steps * grid() : NAN);
    if (chance.OneIn(4)) problem.bias[static_cast<std::size_t>(chance.Below(vocab))] = -HUGE_VAL;
  }
  if (chance.OneIn(10)) problem.hidden[static_cast<std::size_t>(chance.Below(shape.rows * shape.width))] = chance.OneIn(2) ? NAN : HUGE_VAL;
  if (chance.OneIn(3)) {
    problem.accumulate = true;
    for (std::int64_t i = 0; i < shape.columns * shape.width; ++i) problem.grad_weight_before.push_back(grid());
    for (std::int64_t j = 0; j < shape.columns; ++j) problem.grad_bias_before.push_back(grid());
  }
  if (chance.OneIn(3)) {
    const auto is_unmasked = [vocab](std::int64_t target) { return target >= 0 && target < vocab; };
    problem.most_unmasked_rows = std::count_if(problem.loss.targets.begin(), problem.loss.targets.end(), is_unmasked) + chance.Below(3);
  }
  return problem;
}

void Sweep(const Shape& shape, int rounds) {
  const auto parts = [] { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); };
  const int before = parts();  // another shape's failure hides nothing here
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.width) + " x " + std::to_string(shape.columns) + " round " + std::to_string(round));
    Chance chance(static_cast<std::uint64_t>(shape.rows * 1000000 + shape.width * 10000 + shape.columns * 10 + round));
    ExpectLinearLikeOracle(AnyProblem(chance, shape));
    if (parts() != before) return;
  }
}

TEST(LinearSweep, SmallShapes) {
  for (std::int64_t columns = 1; columns <= 70; ++columns) Sweep({1 + columns % 9, 1 + columns * 7 % 37, columns}, 12);
}

TEST(LinearSweep, ShapesAroundTiles) {
  for (const std::int64_t more : {-1, 0, 1}) {
    Sweep({5, 19, 256 + more}, 10);
    Sweep({5, 19, 512 + more}, 10);
    Sweep({4, 512 + more, 33}, 10);
    Sweep({256 + more, 9, 40}, 10);
    Sweep({512 + more, 5, 18}, 10);
  }
  Sweep({70, 520, 300}, 2);
}

}  // namespace
}  // namespace lossgauge::test
