// Where floating-point arithmetic bites: confident tokens, common offsets, infinities, soft caps, tiny gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

constexpr int kDtypes[] = {LG_FP32, LG_BF16, LG_FP16};

Problem Base() { return MakeProblem(Z(8, 1000), Y(8, 1000)); }
Problem Base5() {
  Problem problem = Base();
  for (const std::size_t row : {1u, 4u, 5u}) problem.targets[row] = -100;
  return problem;
}

Problem OneRow(std::vector<double> logits, std::int64_t target) {
  Problem problem = MakeProblem(std::move(logits), {target});
  problem.reduction = LG_SUM;
  return problem;
}

// 32000 columns of 0 and one of c.
Problem Confident(double c) {
  std::vector<double> logits(32000, 0.0);
  logits[777] = c;
  return OneRow(std::move(logits), 777);
}

TEST(Numerics, B12_TheTargetGradientIsRoundedOnce) {
  struct Row {
    double c, right, after_read_modify_write;
  };
  for (const Row& row :
       {Row{14.9375, -0.0103124226006, -0.01171875}, Row{17.25, -0.00103064419070, 0}, Row{19.625, -9.595453927744e-5, 0}}) {
    for (const int dtype : kDtypes) {
      Problem problem = Confident(row.c);
      problem.dtype = dtype;
      const Outcome outcome = TestedBackend().Run(problem);
      const double relative = dtype == LG_FP32 ? 1e-6 : dtype == LG_BF16 ? 0x1p-8 : 0x1p-9;
      ExpectRightNotWrong(outcome.grad[777], row.right, row.after_read_modify_write, relative);
      ExpectOutcome(problem, outcome, Judge(problem));
    }
  }
  Problem problem = Confident(17.25);
  problem.dtype = LG_BF16;
  EXPECT_EQ(TestedBackend().Run(problem).grad[777], -0.00102996826171875);
}

TEST(Numerics, B13_VeryConfidentRowsKeepLossAndTargetGradient) {
  struct Row {
    double c, nll, gradient;
  };
  for (const Row& row : {Row{30, 2.994345769316e-9, -2.994345764833e-9}, Row{40, 1.35943087815e-13, -1.35943087815e-13}}) {
    const Outcome outcome = TestedBackend().Run(Confident(row.c));
    ExpectRightNotWrong(static_cast<double>(outcome.losses[0]), row.nll, 0);
    ExpectRightNotWrong(outcome.grad[777], row.gradient, 0);
    double sum = 0;
    for (const double g : outcome.grad) sum += g;
    EXPECT_NEAR(sum, 0, 1e-6 * row.nll) << "the row's gradient does not sum to 0";
  }
}

TEST(Numerics, B13_ALeadThatIsNotExactInFp32KeepsItsDigits) {
  // Differences of about 20 to 60 whose last bits fp32 cannot hold: the loss is one exponential of them.
  for (const double gap : {17.1234567, 23.7654321, 33.3333333, 61.2345678}) {
    for (const double offset : {0.0371, -3.7001, 90.013}) {
      Problem problem =
          OneRow({static_cast<double>(static_cast<float>(offset + gap)), static_cast<double>(static_cast<float>(offset))}, 0);
      ExpectOutcome(problem, TestedBackend().Run(problem), Judge(problem));
    }
  }
}

TEST(Numerics, B14_ACommonOffsetChangesNothing) {
  for (const double k : {0.0, 100.0, 1e4, 1e6}) {
    const Outcome outcome = TestedBackend().Run(OneRow({2 + k, -1 + k}, 0));
    ExpectRightNotWrong(static_cast<double>(outcome.losses[0]), 0.048587351574, 0.048828125);
    ExpectRightNotWrong(static_cast<double>(outcome.losses[0]), 0.048587351574, 0.0625);
  }
  ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(OneRow({1e8, 1e8}, 0)).losses[0]), 0.693147180560, 0);
  for (const double level : {0x1p20, 4096.0}) {
    const Outcome outcome = TestedBackend().Run(OneRow(std::vector<double>(1024, level), 5));
    ExpectRightNotWrong(static_cast<double>(outcome.losses[0]), 6.931471805599, level == 4096 ? 6.9316406 : 6.875);
  }
  for (const int dtype : {LG_FP32, LG_BF16}) {
    Problem problem = OneRow({4128, 4096}, 0);
    problem.dtype = dtype;
    ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(problem).losses[0]), 1.266416554909e-14, 0);
    problem.targets[0] = 1;
    EXPECT_EQ(TestedBackend().Run(problem).losses[0], 32.0f);
  }
}

TEST(Numerics, B14_ShiftedRowsHaveTheSameBits) {
  Problem problem = MakeProblem(Z(5, 777), Y(5, 777));
  const Outcome at_rest = TestedBackend().Run(problem);
  for (double& z : problem.logits) z += 4096;
  const Outcome shifted = TestedBackend().Run(problem);
  EXPECT_EQ(at_rest.losses, shifted.losses);
  EXPECT_EQ(at_rest.grad_bytes, shifted.grad_bytes);
}

TEST(Numerics, B15_MinusInfinityIsALegalLogit) {
  Problem problem = OneRow({2, 1, 0, -HUGE_VAL}, 0);
  const Observed observed = RunObserved(problem);
  EXPECT_NEAR(static_cast<double>(observed.outcome.log_z[0]), 2.407605964444, 2.4e-6);
  EXPECT_NEAR(static_cast<double>(observed.outcome.losses[0]), 0.407605964444, 0.4e-6);
  const double right[] = {-0.334759044, 0.244728471, 0.090030573, 0};
  for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(observed.outcome.grad[j], right[j], 1e-6 * std::fabs(right[j]));
  EXPECT_EQ(observed.outcome.grad[3], 0.0);
  EXPECT_EQ(observed.record.nonfinite_rows, 0u);
  EXPECT_EQ(observed.record.max_abs_logit, 2.0) << "finite logits only";
}

TEST(Numerics, B15_SmoothingOverMinusInfinityIsAnInfiniteLossWithAFiniteGradient) {
  Problem problem = OneRow({2, 1, 0, -HUGE_VAL}, 0);
  problem.label_smoothing = 0.1;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.outcome.losses[0], HUGE_VALF);
  for (const double g : observed.outcome.grad) EXPECT_TRUE(std::isfinite(g));
  EXPECT_NEAR(observed.outcome.grad[3], -0.025, 1e-9);
  EXPECT_EQ(observed.record.nonfinite_rows, 1u);
  EXPECT_EQ(observed.record.finite_tokens, 0u);
  EXPECT_EQ(Value(observed.record.nll_sum), 0.0);
  EXPECT_EQ(Value(observed.record.probability_mass), 0.0);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

TEST(Numerics, B16_AnUnderflowedProbabilityStillHasALogarithm) {
  EXPECT_NEAR(static_cast<double>(TestedBackend().Run(OneRow({0, -200}, 1)).losses[0]), 200.0, 2e-4);
  Problem smoothed = OneRow({0, -200}, 0);
  smoothed.label_smoothing = 0.1;
  const Outcome outcome = TestedBackend().Run(smoothed);
  ExpectRightNotWrong(static_cast<double>(outcome.losses[0]), 10.0, 20.0);
  EXPECT_NEAR(outcome.grad[0], 0.05, 1e-7);
  EXPECT_NEAR(outcome.grad[1], -0.05, 1e-7);
}

TEST(Numerics, B17_WholeBlocksOfMinusInfinityDoNoHarm) {
  std::vector<double> logits(40000, 0.0);
  std::fill(logits.begin(), logits.begin() + 32768, -HUGE_VAL);
  Problem problem = OneRow(logits, 39999);
  ExpectOutcome(problem, TestedBackend().Run(problem), Judge(problem));
  EXPECT_NEAR(static_cast<double>(TestedBackend().Run(problem).losses[0]), 8.886270902072, 8.8e-6);
  for (const std::int64_t v : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 65544}) {
    const Outcome outcome = TestedBackend().Run(OneRow(std::vector<double>(static_cast<std::size_t>(v), 0.0), v - 1));
    EXPECT_NEAR(static_cast<double>(outcome.losses[0]), std::log(static_cast<double>(v)), 1.2e-5) << v;
  }
}

TEST(Numerics, B17_ARowOfOnlyMinusInfinityPoisonsItselfAlone) {
  Problem problem = Base();
  const Outcome clean = TestedBackend().Run(problem);
  std::fill(problem.logits.begin() + 2000, problem.logits.begin() + 3000, -HUGE_VAL);
  problem.denominator = 8;
  const Observed observed = RunObserved(problem);
  EXPECT_TRUE(std::isnan(observed.outcome.losses[2]));
  EXPECT_TRUE(std::isnan(observed.outcome.loss));
  EXPECT_EQ(observed.record.nonfinite_rows, 1u);
  EXPECT_EQ(observed.record.first_nonfinite_row, 2);
  for (std::size_t i = 0; i < 8000; ++i) {
    if (i / 1000 == 2) {
      ASSERT_TRUE(std::isnan(observed.outcome.grad[i]));
    } else {
      ASSERT_EQ(observed.outcome.grad[i], clean.grad[i]);
    }
  }
}

TEST(Numerics, B18_PaddingLanesNeverBecomeLogits) {
  Problem problem = OneRow(std::vector<double>(100, -200.0), 3);
  problem.logit_softcap = 30;
  ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(problem).losses[0]), 4.605170185988, 4.852009007553);
  for (std::int64_t v = 1; v <= 140; ++v) {
    Problem any = OneRow(std::vector<double>(static_cast<std::size_t>(v), -200.0), v / 2);
    any.logit_softcap = 30;
    EXPECT_NEAR(static_cast<double>(TestedBackend().Run(any).losses[0]), std::log(static_cast<double>(v)), 1e-5) << v;
  }
}

TEST(Numerics, B19_TheSoftCapAndItsDerivative) {
  Problem a = OneRow(Z(1, 1000), 7);
  a.logit_softcap = 1;
  const Outcome capped = TestedBackend().Run(a);
  EXPECT_NEAR(capped.grad[7], -0.180403596772, 1e-6);
  ExpectRightNotWrong(Norm(capped.grad), 0.180552001787, 0.999102691882);

  Problem b = OneRow(Z(1, 1000), 7);
  for (double& z : b.logits) z *= 8;
  b.logit_softcap = 30;
  const Outcome wide = TestedBackend().Run(b);
  EXPECT_NEAR(static_cast<double>(wide.log_z[0]), 33.538214363206, 3.3e-5);
  ExpectRightNotWrong(static_cast<double>(wide.losses[0]), 22.139745495550, 54.239138247041);
  EXPECT_NEAR(wide.grad[7], -0.855638785874, 1e-6);
  EXPECT_NEAR(Norm(wide.grad), 0.855669401895, 1e-6);

  Problem c = OneRow({2000, 0}, 0);
  c.logit_softcap = 30;
  ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(c).losses[0]), 9.357622969e-14, 0);
  c.targets[0] = 1;
  EXPECT_NEAR(static_cast<double>(TestedBackend().Run(c).losses[0]), 30.0000000000001, 3e-5);

  Problem single = OneRow({124}, 0);
  single.logit_softcap = 30;
  ExpectRightNotWrong(static_cast<double>(TestedBackend().Run(single).log_z[0]), 29.984587540, 123.936);
}

TEST(Numerics, B21_TheLossOfBf16LogitsIsFp32) {
  Problem problem = MakeProblem(Z(4096, 1000), Y(4096, 1000));
  problem.dtype = LG_BF16;
  problem.wants_grad = false;
  const Observed observed = RunObserved(problem);
  for (const double wrong : {12.125, 2.0}) {
    ExpectRightNotWrong(static_cast<double>(observed.outcome.loss), 12.096936664524, wrong);
    ExpectRightNotWrong(Value(observed.record.nll_sum) / 4096, 12.096936664524, wrong);
  }
}

TEST(Numerics, B21_B22_AMillionRowsByRepetitionSumExactly) {
  const auto telemetry = TestedBackend().OpenTelemetry({1000, {}});
  Problem problem = MakeProblem(Z(8, 1000), Y(8, 1000));
  problem.wants_grad = false;
  problem.telemetry = telemetry.get();
  TestedBackend().Run(problem);
  const lg_step_record once = telemetry->Publish();
  for (int i = 0; i < 1024; ++i) TestedBackend().Run(problem);
  lg_step_record many = telemetry->Publish();
  lg_fixed128 expected{};
  for (int i = 0; i < 1024; ++i) expected = lg_fixed128_add(expected, once.nll_sum);
  EXPECT_EQ(lg_fixed128_compare(many.nll_sum, expected), 0);
  ExpectRightNotWrong(Value(many.nll_sum) / static_cast<double>(many.finite_tokens), 15.005845802207, 15.0);
}

TEST(Numerics, B22_ChunksOfATinyTermDoNotStick) {
  // One token whose NLL is bf16(0.01), a thousand times: an accumulator of 8 bits stops at 4.
  const double nll = 0.010009765625;
  Problem problem = OneRow({0, std::log(std::expm1(nll))}, 0);
  const auto telemetry = TestedBackend().OpenTelemetry({2, {}});
  problem.telemetry = telemetry.get();
  for (int i = 0; i < 1024; ++i) TestedBackend().Run(problem);
  ExpectRightNotWrong(Value(telemetry->Publish().nll_sum), 10.25, 4.0);
}

TEST(Numerics, B24_TheZLossHasItsGradientAndIsOffWhenOff) {
  struct Row {
    double smoothing, z_weight, total, norm;
  };
  for (const Row& row : {Row{0, 1e-4, 14.220923263811, 0.449024762068}, Row{0.1, 0, 14.001908471751, 0.404492046643},
                         Row{0.1, 1e-4, 14.016685763811, 0.404501661651}}) {
    Problem problem = Base5();
    problem.label_smoothing = row.smoothing;
    problem.z_loss_weight = row.z_weight;
    const Observed observed = RunObserved(problem);
    ExpectRightNotWrong(static_cast<double>(observed.outcome.loss), row.total, 14.206145971751);
    ExpectRightNotWrong(Norm(observed.outcome.grad), row.norm, 0.449015993393, 1e-7);
    if (row.z_weight != 0) {
      EXPECT_NEAR(Value(observed.record.z_loss_sum) / 5, 0.014777292060, 1.5e-8);
    } else {
      EXPECT_EQ(Value(observed.record.z_loss_sum), 0.0);
    }
    ExpectRightNotWrong(Value(observed.record.log_z_sq_sum) / 5, 147.772920602, 147.917393176);
    double sum = 0;
    for (std::size_t j = 0; j < 1000; ++j) sum += observed.outcome.grad[j];
    EXPECT_NEAR(sum, row.z_weight != 0 ? 0.000484674 : 0.0, 2e-7);
  }
}

TEST(Numerics, B24_ZeroWeightChangesNoBitAlsoWithIgnoredInfiniteRows) {
  Problem problem = Base5();
  for (std::int64_t j = 0; j < 1000; ++j) problem.logits[static_cast<std::size_t>(1000 + j)] = HUGE_VAL;
  const Outcome without = TestedBackend().Run(problem);
  problem.z_loss_weight = 0.0;
  const Outcome zero = TestedBackend().Run(problem);
  EXPECT_EQ(without.grad_bytes, zero.grad_bytes);
  EXPECT_EQ(without.losses, zero.losses);
  EXPECT_TRUE(std::isfinite(zero.loss));
  problem.z_loss_weight = 1e-4;
  EXPECT_NE(TestedBackend().Run(problem).grad_bytes, zero.grad_bytes);
}

TEST(Numerics, B25_TinyGradientsAreNotFiltered) {
  Problem problem = MakeProblem(std::vector<double>(2 * 8192, 0.0), {7, 38});
  const Outcome outcome = TestedBackend().Run(problem);
  EXPECT_NEAR(static_cast<double>(outcome.losses[0]), 9.010913347279, 9e-6);
  EXPECT_NEAR(outcome.grad[0], 6.103515625e-05, 1e-10);
  EXPECT_NEAR(outcome.grad[8192 + 5000], 6.103515625e-05, 1e-10);
  EXPECT_NEAR(outcome.grad[7], -0.49993896484375, 5e-7);
  EXPECT_NEAR(Norm(outcome.grad), 0.707063621497, 7e-7);
}

TEST(Numerics, B26_AHugeRowIsStillRight) {
  Problem problem = Base();
  for (std::size_t j = 2000; j < 3000; ++j) problem.logits[j] *= 1250;
  const Observed observed = RunObserved(problem);
  EXPECT_NEAR(static_cast<double>(observed.outcome.losses[2]), 8360.76129436112, 8.4e-3);
  EXPECT_NEAR(static_cast<double>(observed.outcome.log_z[2]), 10001.38629436112, 1e-2);
  EXPECT_NEAR(static_cast<double>(observed.outcome.loss), 1058.741374483905, 1e-3);
  EXPECT_NEAR(Norm(observed.outcome.grad), 0.360259973337, 4e-7);
  EXPECT_EQ(observed.record.max_abs_logit, 10000.0);
  EXPECT_EQ(observed.record.worst_row_position, 2);
}

TEST(Numerics, B26_AnInfiniteLogitPoisonsItsRowAlone) {
  for (const double poison : {HUGE_VAL, static_cast<double>(NAN)}) {
    for (const std::size_t column : {0u, 63u, 100u /* the target */, 500u, 999u}) {
      for (const int dtype : kDtypes) {
        Problem problem = Base();
        problem.dtype = dtype;
        problem.denominator = 8;
        const Outcome clean = TestedBackend().Run(problem);
        problem.logits[3000 + column] = poison;
        const Observed observed = RunObserved(problem);
        EXPECT_TRUE(std::isnan(observed.outcome.losses[3]));
        EXPECT_TRUE(std::isnan(observed.outcome.log_z[3]));
        EXPECT_TRUE(std::isnan(observed.outcome.loss));
        EXPECT_EQ(observed.record.nonfinite_rows, 1u);
        EXPECT_EQ(observed.record.finite_tokens, 7u);
        EXPECT_EQ(observed.record.unmasked_tokens, 8u);
        EXPECT_EQ(observed.record.first_nonfinite_row, 3);
        EXPECT_EQ(observed.record.max_abs_logit, 8.0);
        EXPECT_TRUE(std::isfinite(Value(observed.record.nll_sum)));
        for (std::size_t i = 0; i < 8000; ++i) {
          if (i / 1000 == 3) {
            ASSERT_TRUE(std::isnan(observed.outcome.grad[i]));
          } else {
            ASSERT_EQ(observed.outcome.grad[i], clean.grad[i]);
          }
        }
      }
    }
  }
}

TEST(Numerics, AMinusInfiniteTargetIsAnInfiniteLossWithAFiniteGradient) {
  Problem problem = MakeProblem({1, -HUGE_VAL, 3, 1, 2, 3}, {1, 1});
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.outcome.losses[0], HUGE_VALF);
  EXPECT_EQ(observed.record.nonfinite_rows, 1u);
  EXPECT_EQ(observed.record.finite_tokens, 1u);
  EXPECT_NEAR(Value(observed.record.probability_mass), 1.0, 1e-6);
  EXPECT_NEAR(observed.outcome.grad[1], -0.5, 1e-7);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

TEST(Numerics, CappedInfinitiesAreFiniteLogits) {
  Problem problem = OneRow({HUGE_VAL, -HUGE_VAL, 0, 3}, 3);
  problem.logit_softcap = 10;
  const Observed observed = RunObserved(problem);
  EXPECT_EQ(observed.record.nonfinite_rows, 0u);
  ExpectOutcome(problem, observed.outcome, Judge(problem));
}

TEST(Numerics, B44_TwentyRunsHaveTheSameBits) {
  Problem problem = MakeProblem(Z(64, 5000), Y(64, 5000));
  problem.threads = 4;
  problem.label_smoothing = 0.1;
  problem.z_loss_weight = 1e-4;
  const Observed first = RunObserved(problem);
  for (int i = 0; i < 20; ++i) {
    problem.threads = 1 + i % 5;
    const Observed again = RunObserved(problem);
    ASSERT_EQ(first.outcome.grad_bytes, again.outcome.grad_bytes);
    ASSERT_EQ(first.outcome.losses, again.outcome.losses);
    ASSERT_EQ(first.outcome.loss, again.outcome.loss);
    // Everything that stems from the launch; behind it come time stamps and totals.
    ASSERT_EQ(std::memcmp(&first.record.micro_batches, &again.record.micro_batches,
                          offsetof(lg_step_record, reported_loss) - offsetof(lg_step_record, micro_batches)),
              0);
  }
}

}  // namespace
}  // namespace lossgauge::test
