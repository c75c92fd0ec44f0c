#include "server/state/attempt_comparer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lossgauge::state {
namespace {

// Losses of a course that falls slowly, with noise of about 0.03 nats that is a function of the batch.
double Noise(std::uint64_t batch) {
  batch = (batch + 1) * 0x9e3779b97f4a7c15u;
  batch ^= batch >> 31;
  batch *= 0xbf58476d1ce4e5b9u;
  return 0.1 * (static_cast<double>(batch >> 11) / 9007199254740992.0 - 0.5);
}

StepSummary Step(const std::string& attempt, std::int64_t step, std::int64_t batch, double offset = 0) {
  StepSummary s;
  s.attempt = attempt;
  s.step = step;
  s.loss_nats = 2.5 - 1e-4 * static_cast<double>(step) + Noise(static_cast<std::uint64_t>(batch)) + offset;
  s.target_fingerprint = 1000 + static_cast<std::uint64_t>(batch);
  s.mask_fingerprint = 7000 + static_cast<std::uint64_t>(batch);
  s.unmasked_tokens = 512;
  return s;
}

class KeptInMemory final : public KeptSteps {
 public:
  explicit KeptInMemory(const std::vector<std::shared_ptr<const StepSummary>>& steps) : steps_(steps) {}
  std::vector<std::shared_ptr<const StepSummary>> Read(std::int64_t first_step, std::int64_t last_step) override {
    reads.push_back({first_step, last_step});
    std::vector<std::shared_ptr<const StepSummary>> found;
    for (const auto& step : steps_) {
      if (step->step >= first_step && step->step <= last_step) found.push_back(step);
    }
    return found;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> reads;

 private:
  const std::vector<std::shared_ptr<const StepSummary>>& steps_;
};

class Comparison : public ::testing::Test {
 protected:
  Comparison() {
    for (int s = 0; s < 300; ++s) earlier_.push_back(std::make_shared<const StepSummary>(Step("1", s, s)));
    comparer_.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  }
  const AttemptComparison& Result() { return *comparer_.result(); }

  std::vector<std::shared_ptr<const StepSummary>> earlier_;
  AttemptComparer comparer_;
};

TEST_F(Comparison, TheSameStepsAreEqualToTheLastBit) {
  for (int s = 200; s < 320; ++s) comparer_.OnStep(Step("2", s, s));
  EXPECT_EQ(Result().loss, LossMatch::kEqual);
  EXPECT_EQ(Result().data, DataMatch::kSame);
  EXPECT_EQ(Result().first_step, 200);
  EXPECT_EQ(Result().last_step, 299);  // what lies beyond was never seen before
  EXPECT_EQ(Result().steps, 100u);
  EXPECT_EQ(Result().with_attempt, "1");
  EXPECT_EQ(Describe(Result()), "steps 200 to 299 equal those of attempt '1' to the last bit; the data loader resumed where it should");
}

TEST_F(Comparison, SumsInAnotherOrderAreNoiseAndTheFirstUnequalStepIsNamed) {
  for (int s = 200; s < 280; ++s) comparer_.OnStep(Step("2", s, s, s < 230 ? 0 : 1e-4 * (s % 3 - 1)));
  EXPECT_EQ(Result().loss, LossMatch::kWithinNoise);
  EXPECT_EQ(Result().first_unequal_step, 230);
  EXPECT_FALSE(Result().diverged_step);
  EXPECT_NEAR(std::fabs(Result().largest_difference_nats), 1e-4, 1e-9);
}

TEST_F(Comparison, OneOddStepIsNoDivergence) {
  for (int s = 200; s < 280; ++s) comparer_.OnStep(Step("2", s, s, s == 240 ? 2.0 : 0));
  EXPECT_EQ(Result().loss, LossMatch::kWithinNoise);
  EXPECT_EQ(Result().largest_difference_step, 240);
}

TEST_F(Comparison, OnTheSameDataAFewHundredthsOfANatThatStayAreADivergence) {
  for (int s = 200; s < 280; ++s) comparer_.OnStep(Step("2", s, s, s < 230 ? 0 : 0.05));
  EXPECT_EQ(Result().loss, LossMatch::kDiverged);
  EXPECT_EQ(Result().diverged_step, 230);
}

TEST_F(Comparison, OnOtherDataTheSameDifferenceIsNoiseAndALargeOneIsADivergence) {
  AttemptComparer small;
  small.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  for (int s = 200; s < 280; ++s) small.OnStep(Step("2", s, s + 5000, 0.02));
  EXPECT_EQ(small.result()->loss, LossMatch::kWithinNoise);
  EXPECT_EQ(small.result()->data, DataMatch::kDifferent);
  for (int s = 200; s < 280; ++s) comparer_.OnStep(Step("2", s, s + 5000, 0.5));
  EXPECT_EQ(Result().loss, LossMatch::kDiverged);
}

TEST_F(Comparison, ALoaderThatSkippedOrRepeatedIsToldByHowMuch) {
  for (int s = 200; s < 260; ++s) comparer_.OnStep(Step("2", s, s + 17));
  EXPECT_EQ(Result().data, DataMatch::kShifted);
  EXPECT_EQ(Result().data_offset_steps, 17);
  EXPECT_NE(Describe(Result()).find("the data loader is 17 steps ahead since step 200"), std::string::npos) << Describe(Result());
  AttemptComparer again;
  again.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  for (int s = 200; s < 260; ++s) again.OnStep(Step("2", s, s - 200));  // the epoch anew
  EXPECT_EQ(again.result()->data, DataMatch::kShifted);
  EXPECT_EQ(again.result()->data_offset_steps, -200);
}

TEST_F(Comparison, WithoutFingerprintsNothingIsSaidOfTheData) {
  for (int s = 200; s < 260; ++s) {
    StepSummary step = Step("2", s, s);
    step.target_fingerprint = 0;
    comparer_.OnStep(step);
  }
  EXPECT_EQ(Result().data, DataMatch::kUnknown);
  EXPECT_EQ(Describe(Result()).find("loader"), std::string::npos);
}

// As the join makes it: a step without a finite row has no loss at all.
StepSummary Nonfinite(const std::string& attempt, std::int64_t step) {
  StepSummary s = Step(attempt, step, step);
  s.loss_nats.reset();
  s.nonfinite_rows = 512;
  return s;
}

TEST_F(Comparison, AStepThatIsNotFiniteAndWasBeforeIsADivergenceAtOnce) {
  for (int s = 240; s < 260; ++s) comparer_.OnStep(s == 255 ? Nonfinite("2", s) : Step("2", s, s));
  EXPECT_EQ(Result().loss, LossMatch::kDiverged);
  EXPECT_EQ(Result().diverged_step, 255);
  EXPECT_EQ(Result().nonfinite_step, 255);
  EXPECT_EQ(Result().first_unequal_step, 255);
  EXPECT_EQ(Result().last_step, 259);
  EXPECT_EQ(Result().steps, 19u);
  EXPECT_EQ(Result().mean_difference_nats, 0);
  EXPECT_EQ(Result().not_compared, 0u);
  EXPECT_NE(Describe(Result()).find("left those of attempt '1' at step 255 (on average +0 nats"), std::string::npos) << Describe(Result());
  EXPECT_NE(Describe(Result()).find("step 255 is not finite and was before)"), std::string::npos) << Describe(Result());
}

TEST_F(Comparison, SoIsOneOfWhichOnlySomeRowsAreOrWhoseLossSaysSoItself) {
  AttemptComparer rows;
  rows.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  StepSummary some = Step("2", 250, 250);
  some.nonfinite_rows = 1;
  rows.OnStep(some);
  EXPECT_EQ(rows.result()->diverged_step, 250);
  StepSummary infinite = Step("2", 250, 250);
  infinite.loss_nats = INFINITY;
  comparer_.OnStep(infinite);
  EXPECT_EQ(Result().diverged_step, 250);
  EXPECT_EQ(Result().steps, 0u);
  EXPECT_EQ(Describe(Result()),
            "steps 250 to 250 left those of attempt '1' at step 250 (step 250 is not finite and was before); the data loader resumed where it should");
}

TEST_F(Comparison, StepsWithoutAFiniteLossTellOfTheDataAllTheSame) {
  for (int s = 250; s < 260; ++s) earlier_.push_back(std::make_shared<const StepSummary>(Nonfinite("1", s)));
  comparer_.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  for (int s = 250; s < 258; ++s) {
    StepSummary step = Nonfinite("2", s);
    if (s == 254) step.target_fingerprint += 100'000;
    EXPECT_TRUE(comparer_.OnStep(step));
    if (s == 253) {
      EXPECT_EQ(Result().data, DataMatch::kSame);
    }
  }
  EXPECT_EQ(Result().data, DataMatch::kDifferent);
  EXPECT_EQ(Result().first_different_data_step, 254);
  EXPECT_EQ(Result().loss, LossMatch::kUnknown) << "neither pass has one";
  EXPECT_EQ(Result().not_compared, 8u);
}

TEST_F(Comparison, AStepThatWasNotFiniteBeforeIsNotComparedAndSaidSo) {
  earlier_.push_back(std::make_shared<const StepSummary>(Nonfinite("1", 250)));
  comparer_.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt);
  for (int s = 240; s < 260; ++s) comparer_.OnStep(Step("2", s, s));
  EXPECT_EQ(Result().steps, 19u);
  EXPECT_EQ(Result().loss, LossMatch::kEqual);
  EXPECT_EQ(Result().first_not_compared_step, 250);
  EXPECT_EQ(Describe(Result()),
            "steps 240 to 259 equal those of attempt '1' to the last bit; the data loader resumed where it should; step 250 could not be compared with "
            "attempt '1' (no longer kept step by step, or without a finite loss)");
}

TEST_F(Comparison, WhatAnEarlierAttemptWentThroughButIsNoLongerInMemoryIsSaid) {
  earlier_.erase(earlier_.begin(), earlier_.begin() + 200);
  comparer_.Begin("2", std::make_shared<KeptInMemory>(earlier_), std::nullopt, {{"0", 0, 49}, {"1", 0, 299}});
  for (int s = 100; s < 150; ++s) EXPECT_TRUE(comparer_.OnStep(Step("2", s, s)));
  EXPECT_EQ(Result().loss, LossMatch::kUnknown);
  EXPECT_EQ(Result().with_attempt, "1");
  EXPECT_LT(Result().last_step, Result().first_step);
  EXPECT_EQ(Describe(Result()), "steps 100 to 149 could not be compared with attempt '1' (no longer kept step by step, or without a finite loss)");
  for (int s = 150; s < 320; ++s) comparer_.OnStep(Step("2", s, s));
  EXPECT_EQ(Result().first_step, 200);
  EXPECT_EQ(Result().last_step, 299);
  EXPECT_EQ(Result().steps, 100u);
  EXPECT_EQ(Result().not_compared, 100u) << "what nobody went through before is not missed";
  EXPECT_EQ(Result().first_not_compared_step, 100);
  EXPECT_EQ(Result().last_not_compared_step, 199);
  EXPECT_EQ(Result().loss, LossMatch::kEqual);
  EXPECT_NE(Describe(Result()).find("; steps 100 to 199 could not be compared with attempt '1'"), std::string::npos) << Describe(Result());
}

TEST_F(Comparison, GoesOnAfterARestartOfTheObserver) {
  for (int s = 200; s < 240; ++s) comparer_.OnStep(Step("2", s, s));
  AttemptComparer next;
  next.Begin("2", std::make_shared<KeptInMemory>(earlier_), comparer_.result());
  for (int s = 240; s < 280; ++s) next.OnStep(Step("2", s, s));
  EXPECT_EQ(next.result()->first_step, 200);
  EXPECT_EQ(next.result()->steps, 80u);
  EXPECT_EQ(next.result()->loss, LossMatch::kEqual);
}

// What follows a restart must be what would have followed without one, though the window of sixteen differences is not in the state.
TEST_F(Comparison, ADivergenceThatIsUnderWayAtARestartIsFoundAtTheSameStep) {
  const auto offset = [](int s) { return s < 230 ? 0 : 0.05; };
  std::vector<std::shared_ptr<const StepSummary>> kept = earlier_;
  AttemptComparer next;
  for (int s = 200; s < 260; ++s) {
    const StepSummary step = Step("2", s, s, offset(s));
    comparer_.OnStep(step);
    if (s < 233) kept.push_back(std::make_shared<const StepSummary>(step));
    if (s == 232) {
      ASSERT_NE(comparer_.result()->loss, LossMatch::kDiverged);
      next.Begin("2", std::make_shared<KeptInMemory>(kept), comparer_.result());
    }
    if (s < 233) continue;
    next.OnStep(step);
    EXPECT_EQ(next.result()->loss, comparer_.result()->loss) << "step " << s;
    EXPECT_EQ(next.result()->diverged_step, comparer_.result()->diverged_step) << "step " << s;
    EXPECT_EQ(next.result()->noise_nats, comparer_.result()->noise_nats);
  }
  EXPECT_EQ(next.result()->diverged_step, 230);
}

TEST(AttemptComparer, ReadsALongPassWindowByWindow) {
  std::vector<std::shared_ptr<const StepSummary>> kept;
  for (int s = 0; s < 20'000; ++s) kept.push_back(std::make_shared<const StepSummary>(Step("1", s, s)));
  const auto steps = std::make_shared<KeptInMemory>(kept);
  AttemptComparer comparer;
  comparer.Begin("2", steps, std::nullopt, {{"1", 0, 19'999}});
  for (int s = 100; s < 25'000; ++s) comparer.OnStep(Step("2", s, s));
  EXPECT_EQ(comparer.result()->steps, 19'900u);
  EXPECT_EQ(comparer.result()->not_compared, 0u);
  EXPECT_EQ(comparer.result()->loss, LossMatch::kEqual);
  EXPECT_EQ(steps->reads.size(), 10u) << "beyond the pass nothing is read";
  for (const auto& [first, last] : steps->reads) EXPECT_LE(last - first, AttemptComparer::kStepsBehind + AttemptComparer::kStepsAhead);
}

TEST(AttemptComparer, WithoutAnEarlierPassThereIsNothingToSay) {
  AttemptComparer comparer;
  comparer.Begin("2", nullptr, std::nullopt);
  EXPECT_FALSE(comparer.OnStep(Step("2", 5, 5)));
  EXPECT_FALSE(comparer.result());
}

}  // namespace
}  // namespace lossgauge::state
