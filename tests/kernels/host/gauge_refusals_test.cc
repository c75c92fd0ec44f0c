// What a gauge refuses, and by which name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/kernels/host/one_gauge.h"

namespace lossgauge {
namespace {

using ::testing::HasSubstr;

TEST_F(GaugeTest, AnObservationOnAStreamIsRefusedWhereThereIsNoDevice) {
  Open();
  int not_a_stream = 0;
  lg_observation observation = Observation(1, 8, 8);
  observation.stream = &not_a_stream;
  EXPECT_EQ(lg_gauge_observe(gauge_, &observation), LG_UNIMPLEMENTED);
  EXPECT_THAT(lg_last_error(), testing::HasSubstr("stream"));
  observation.struct_size = offsetof(lg_observation, stream);  // of a caller that does not know the field
  EXPECT_EQ(lg_gauge_observe(gauge_, &observation), LG_OK) << lg_last_error();
  Publish();
  EXPECT_EQ(Steps().at(0).micro_batches, 1u);
}

TEST_F(GaugeTest, AClosedHandleIsRefusedByName) {
  Open();
  ASSERT_EQ(lg_gauge_close(gauge_, "done"), LG_OK);
  const lg_observation observation = Observation(1, 8, 8);
  const float logits[2] = {1, 2};
  const std::int64_t target = 1;
  float loss = -7;
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = logits;
  args.rows = 1;
  args.columns = 2;
  args.targets = &target;
  args.loss = &loss;
  args.gauge = gauge_;
  for (const int code : {lg_gauge_publish(gauge_, nullptr), lg_gauge_observe(gauge_, &observation), lg_gauge_set_step(gauge_, 1), lg_cross_entropy(&args),
                         lg_gauge_close(gauge_, "again"), lg_gauge_abandon(gauge_, "again")}) {
    EXPECT_EQ(code, LG_FAILED_PRECONDITION);
    EXPECT_THAT(lg_last_error(), testing::HasSubstr("closed"));
  }
  EXPECT_EQ(loss, -7) << "written before it was refused";
  EXPECT_EQ(State(gauge_).code, LG_FAILED_PRECONDITION);
  gauge_ = nullptr;
}

TEST_F(GaugeTest, RefusesTheStepsThatNoReaderTakes) {
  Open();
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  for (const std::int64_t step : {std::int64_t{-1}, kMost + 1, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(lg_gauge_resume(gauge_, step, "x"), LG_INVALID_ARGUMENT);
    EXPECT_NE(std::string(lg_last_error()).find("got " + std::to_string(step)), std::string::npos) << lg_last_error();
    EXPECT_EQ(lg_gauge_checkpoint_saved(gauge_, step, "x"), LG_INVALID_ARGUMENT);
    EXPECT_EQ(lg_gauge_evaluation(gauge_, step, 1, 1), LG_INVALID_ARGUMENT);
    EXPECT_EQ(lg_gauge_note(gauge_, step, "x"), LG_INVALID_ARGUMENT);
  }
  EXPECT_EQ(lg_gauge_resume(gauge_, kMost, "x"), LG_INVALID_ARGUMENT) << "no step follows";
  EXPECT_EQ(State(gauge_).next_step, 0);
  EXPECT_EQ(lg_gauge_note(gauge_, kMost, "x"), LG_OK);
  EXPECT_EQ(lg_gauge_resume(gauge_, kMost - 1, "x"), LG_OK);
  EXPECT_EQ(State(gauge_).next_step, kMost);
}

TEST_F(GaugeTest, RefusesHandedOverValuesThatMeanNothing) {
  Open();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, 3, 1), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_DENOMINATOR, 0), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_DENOMINATOR, infinity), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, nullptr, LG_FP32), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, &infinity, LG_BF16), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_set_step(gauge_, -1), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_publish(gauge_, &gauge_), LG_UNIMPLEMENTED);
  for (const lg_observation& wrong :
       {Observation(1, -1, 0), Observation(1, 4, 5), Observation(1, 4, -1), Observation(-0.5, 4, 4), Observation(-HUGE_VAL, 4, 4)}) {
    EXPECT_EQ(lg_gauge_observe(gauge_, &wrong), LG_INVALID_ARGUMENT);
  }
  lg_observation misaligned = Observation(1, 4, 4);
  misaligned.nll_sum_pointer = reinterpret_cast<const double*>(reinterpret_cast<const char*>(&infinity) + 1);
  EXPECT_EQ(lg_gauge_observe(gauge_, &misaligned), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("nll_sum_pointer"));
  lg_observation block = Observation(1, 4, 4);
  block.block = 2;
  EXPECT_EQ(lg_gauge_observe(gauge_, &block), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("block"));
  // From a pointer a bad denominator shows at publish only: dropped and counted.
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_DENOMINATOR, &infinity, LG_FP64), LG_OK);
  Publish();
  EXPECT_EQ(Steps()[0].present, 0u);
  EXPECT_EQ(State(gauge_).dropped_calls, 1u);
}

TEST_F(GaugeTest, RefusesOptionsThatCannotBeRight) {
  const auto with = [this](auto change) {
    lg_gauge_options options = Options(directory_.path());
    change(options);
    lg_gauge* gauge = reinterpret_cast<lg_gauge*>(1);
    const int code = lg_gauge_open(&options, &gauge);
    EXPECT_EQ(gauge, nullptr);
    return code;
  };
  using O = lg_gauge_options;
  const std::uint8_t byte = 1;
  EXPECT_EQ(with([](O& o) { o.label_smoothing = 1; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.label_smoothing = std::nan(""); }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.z_loss_weight = -1; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.first_step = -1; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.rank = 1; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.world_size = -1; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([](O& o) { o.gradient_reduction = 3; }), LG_INVALID_ARGUMENT);
  for (const std::size_t size : {std::size_t{0}, sizeof(std::size_t), offsetof(O, run) + 1, offsetof(O, attempt) + 4, std::size_t{1} << 40}) {
    EXPECT_EQ(with([size](O& o) { o.struct_size = size; }), LG_INVALID_ARGUMENT) << size;
  }
  EXPECT_EQ(with([](O& o) { o.run = nullptr; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([&byte](O& o) { o.token_bytes = &byte, o.vocab_size = 0; }), LG_INVALID_ARGUMENT);
  const char* twice[] = {"train", "train"};
  EXPECT_EQ(with([&twice](O& o) { o.block_names = twice, o.block_count = 2; }), LG_INVALID_ARGUMENT);
  EXPECT_EQ(with([&twice](O& o) { o.block_names = twice, o.block_count = 9; }), LG_INVALID_ARGUMENT);
  EXPECT_TRUE(StepRings(directory_.path()).empty());
}

TEST_F(GaugeTest, OfACallerOlderThanTheLibraryUsesDefaultsForWhatItDoesNotKnow) {
  lg_gauge_options options = Options(directory_.path());
  options.first_step = 99;
  options.struct_size = offsetof(lg_gauge_options, first_step);
  Open(options);
  EXPECT_EQ(State(gauge_).next_step, 0);
}

}  // namespace
}  // namespace lossgauge
