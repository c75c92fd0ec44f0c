// What a job hands to a gauge is what a reader finds in its rings.
#include "kernels/host/gauge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {
namespace {

using ::testing::HasSubstr;

class GaugeTest : public ::testing::Test {
 protected:
  void Open() { Open(Options(directory_.path())); }
  void Open(const lg_gauge_options& options) {
    ASSERT_EQ(lg_gauge_open(&options, &gauge_), LG_OK) << lg_last_error();
    path_ = State(gauge_).steps_path;
  }
  void Close() {
    lg_gauge_close(gauge_, "done");
    gauge_ = nullptr;
  }
  void TearDown() override { Close(); }
  void Observe(const lg_observation& observation) {
    ASSERT_EQ(lg_gauge_observe(gauge_, &observation), LG_OK) << lg_last_error();
  }
  void Publish() { ASSERT_EQ(lg_gauge_publish(gauge_, nullptr), LG_OK) << lg_last_error(); }
  std::vector<lg_step_record> Steps() { return RingFile(path_).Records<lg_step_record>(); }
  std::vector<lg_event_record> Events() { return RingFile(EventsPath(path_)).Records<lg_event_record>(); }

  ScratchDirectory directory_;
  lg_gauge* gauge_ = nullptr;
  std::string path_;
};

TEST_F(GaugeTest, PublishesWhatWasObservedAndAddsUpTotals) {
  Open();
  Observe(Observation(10.5, 8, 6));
  Observe(Observation(1.25, 8, 7));
  Publish();
  Observe(Observation(3, 8, 8));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 0);
  EXPECT_EQ(steps[0].block, 0u);
  EXPECT_EQ(steps[0].micro_batches, 2u);
  EXPECT_EQ(steps[0].tokens, 16u);
  EXPECT_EQ(steps[0].unmasked_tokens, 13u);
  EXPECT_EQ(steps[0].finite_tokens, 13u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 11.75);
  EXPECT_TRUE((steps[0].present & LG_HAS_LOSS) != 0);
  EXPECT_TRUE((steps[0].present & LG_HAS_GRAD_NORM) == 0);
  EXPECT_EQ(steps[1].step, 1);
  EXPECT_EQ(steps[1].tokens, 8u);
  EXPECT_EQ(steps[1].total_steps, 2u);
  EXPECT_EQ(steps[1].total_tokens, 24u);
  EXPECT_EQ(lg_fixed128_to_double(steps[1].total_nll_sum), 14.75);
  EXPECT_GE(steps[1].boot_ns, steps[0].boot_ns);
}

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

TEST_F(GaugeTest, PublishesAStepWithoutAnyLossCallToo) {
  Open();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].present, 0u);
  EXPECT_EQ(steps[0].total_steps, 1u);
}

TEST_F(GaugeTest, HandsOverScalarsOnceAndForgetsThem) {
  Open();
  float norm = 2.5f;
  lg_reported_loss reported;
  lg_reported_loss_init(&reported);
  reported.value = 4.5;
  reported.dtype = LG_BF16;
  reported.interval = 10;
  reported.auxiliary = 0.5;
  EXPECT_EQ(lg_gauge_set_scalar_pointer(gauge_, LG_GRAD_NORM, &norm, LG_FP32), LG_OK);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_LEARNING_RATE, 1e-3), LG_OK);
  EXPECT_EQ(lg_gauge_set_scalar(gauge_, LG_DENOMINATOR, 96), LG_OK);
  EXPECT_EQ(lg_gauge_set_reported_loss(gauge_, &reported), LG_OK);
  norm = 3.5f;  // read at publish
  Publish();
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].present,
            std::uint64_t{LG_HAS_GRAD_NORM | LG_HAS_LEARNING_RATE | LG_HAS_DENOMINATOR | LG_HAS_REPORTED_LOSS});
  EXPECT_EQ(steps[0].grad_norm, 3.5);
  EXPECT_EQ(steps[0].learning_rate, 1e-3);
  EXPECT_EQ(steps[0].denominator_min, 96);
  EXPECT_EQ(steps[0].denominator_max, 96);
  EXPECT_EQ(steps[0].reported_loss, 4.5);
  EXPECT_EQ(steps[0].reported_loss_auxiliary, 0.5);
  EXPECT_EQ(steps[0].reported_loss_dtype, std::uint64_t{LG_DTYPE_BF16});
  EXPECT_EQ(steps[0].reported_loss_interval, 10u);
  EXPECT_EQ(steps[1].present, 0u);
  EXPECT_EQ(steps[1].grad_norm, 0);
}

TEST_F(GaugeTest, CountsNonFiniteStepsExactly) {
  Open();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Publish();
  lg_gauge_set_scalar(gauge_, LG_GRAD_NORM, nan);
  Publish();
  Observe(Observation(nan, 8, 6));
  Publish();
  lg_observation with_rows = Observation(5, 8, 6);
  with_rows.nonfinite_rows = 2;
  Observe(with_rows);
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].total_nonfinite_steps, 0u);
  EXPECT_EQ(steps[1].total_nonfinite_steps, 1u);
  EXPECT_TRUE(std::isnan(steps[1].grad_norm));
  EXPECT_EQ(steps[2].nonfinite_rows, 6u) << "a sum that is not finite tells nothing about any of its rows";
  EXPECT_EQ(steps[2].finite_tokens, 0u);
  EXPECT_EQ(lg_fixed128_to_double(steps[2].nll_sum), 0);
  EXPECT_EQ(steps[3].finite_tokens, 4u);
  EXPECT_EQ(steps[3].total_nonfinite_rows, 8u);
  EXPECT_EQ(steps[3].total_nonfinite_steps, 3u);
}

TEST_F(GaugeTest, ReadsAnObservationWhereItsPointersSay) {
  Open();
  double sum = 10.5, denominator = 7;
  std::int64_t unmasked = 6;
  lg_observation observation = Observation(-1, 8, 99);
  observation.nll_sum_pointer = &sum;
  observation.unmasked_tokens_pointer = &unmasked;
  observation.denominator_pointer = &denominator;
  Observe(observation);
  Publish();
  observation.tokens = 0;
  Observe(observation);
  Publish();
  const auto steps = Steps();
  EXPECT_EQ(steps[0].tokens, 8u);
  EXPECT_EQ(steps[0].finite_tokens, 6u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 10.5);
  EXPECT_EQ(steps[0].denominator_max, 7);
  EXPECT_EQ(steps[1].tokens, 6u) << "as many as unmasked";
}

TEST_F(GaugeTest, WhatPointersReadIsNotRefusedButBroughtIntoRange) {
  Open();
  const auto observe = [this](double sum, std::int64_t unmasked, double denominator, std::int64_t tokens, std::int64_t nonfinite) {
    lg_observation observation = Observation(0, tokens, 0);
    observation.nll_sum_pointer = &sum;
    observation.unmasked_tokens_pointer = &unmasked;
    observation.denominator_pointer = &denominator;
    observation.nonfinite_rows = nonfinite;
    Observe(observation);
    Publish();
    return Steps().back();
  };
  for (const double none : {0., -3., HUGE_VAL, std::nan("")}) EXPECT_EQ(observe(1, 4, none, 8, 0).present & LG_HAS_DENOMINATOR, 0u) << none;
  EXPECT_EQ(observe(1, 9, 1, 8, 0).unmasked_tokens, 8u);
  EXPECT_EQ(observe(1, -9, 1, 8, 3).unmasked_tokens, 0u);
  const lg_step_record few = observe(1, 2, 1, 8, 3);
  EXPECT_EQ(few.nonfinite_rows, 2u);
  EXPECT_EQ(few.finite_tokens, 0u);
  for (const double wrong : {-1., HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const lg_step_record record = observe(wrong, 4, 1, 8, 0);
    EXPECT_EQ(record.nonfinite_rows, 4u) << wrong;
    EXPECT_EQ(lg_fixed128_to_double(record.nll_sum), 0) << wrong;
  }
  EXPECT_EQ(observe(1e300, 4, 1, 8, 0).clamped_rows, 1u);
}

TEST_F(GaugeTest, ClampsHugeSumsSoThatTheirTotalNeverWraps) {
  Open();
  for (int i = 0; i < 200; ++i) {
    Observe(Observation(1e300, 1 << 20, 1 << 20));
    Publish();
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 200u);
  EXPECT_EQ(steps[199].clamped_rows, 1u);
  EXPECT_EQ(lg_fixed128_to_double(steps[199].total_nll_sum), 0x1p47 * 200);
}

TEST_F(GaugeTest, KeepsEvaluationOutOfTheStep) {
  Open();
  Observe(Observation(10, 8, 8));
  ASSERT_EQ(lg_gauge_phase_begin(gauge_, LG_EVALUATION), LG_OK);
  Observe(Observation(1000, 80, 80));
  ASSERT_EQ(lg_gauge_phase_end(gauge_, LG_EVALUATION), LG_OK);
  Observe(Observation(20, 8, 8));
  Publish();
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].block, 1u);
  EXPECT_EQ(lg_fixed128_to_double(steps[0].nll_sum), 1000);
  EXPECT_EQ(steps[1].block, 0u) << "the main block comes last: who has it has the whole step";
  EXPECT_EQ(lg_fixed128_to_double(steps[1].nll_sum), 30);
  EXPECT_EQ(steps[1].total_tokens, 16u);
}

TEST_F(GaugeTest, PhasesNestByNameAndShowInTheStatusLine) {
  Open();
  EXPECT_EQ(lg_gauge_phase_end(gauge_, LG_CHECKPOINT), LG_FAILED_PRECONDITION);
  EXPECT_EQ(lg_gauge_phase_begin(gauge_, LG_TRAIN), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_phase_begin(gauge_, 6), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_phase_begin(gauge_, LG_WARM_UP), LG_OK);
  EXPECT_EQ(lg_gauge_phase_begin(gauge_, LG_CHECKPOINT), LG_OK);
  EXPECT_EQ(lg_gauge_phase_begin(gauge_, LG_CHECKPOINT), LG_FAILED_PRECONDITION);
  EXPECT_EQ(RingFile(path_).status().phase, std::uint64_t{LG_PHASE_CHECKPOINT});
  EXPECT_EQ(lg_gauge_phase_end(gauge_, LG_WARM_UP), LG_OK);
  EXPECT_EQ(RingFile(path_).status().phase, std::uint64_t{LG_PHASE_CHECKPOINT});
  EXPECT_EQ(lg_gauge_phase_end(gauge_, LG_CHECKPOINT), LG_OK);
  EXPECT_EQ(RingFile(path_).status().phase, std::uint64_t{LG_PHASE_TRAIN});
  const auto events = Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, std::uint64_t{LG_EVENT_PHASE_BEGIN});
  EXPECT_EQ(events[0].phase, std::uint64_t{LG_PHASE_WARM_UP});
  EXPECT_EQ(events[2].kind, std::uint64_t{LG_EVENT_PHASE_END});
  EXPECT_EQ(events[2].phase, std::uint64_t{LG_PHASE_WARM_UP});
}

TEST_F(GaugeTest, WritesEventsWithTheirTexts) {
  Open();
  const std::string long_path(2000, 'p');
  EXPECT_EQ(lg_gauge_resume(gauge_, 41, "/ckpt/41"), LG_OK);
  EXPECT_EQ(lg_gauge_checkpoint_saved(gauge_, 42, long_path.c_str()), LG_OK);
  EXPECT_EQ(lg_gauge_evaluation(gauge_, 42, 2.5, 1000), LG_OK);
  EXPECT_EQ(lg_gauge_note(gauge_, 43, "hello"), LG_OK);
  EXPECT_EQ(lg_gauge_note(gauge_, 43, nullptr), LG_INVALID_ARGUMENT);
  EXPECT_EQ(lg_gauge_checkpoint_saved(gauge_, -1, "x"), LG_INVALID_ARGUMENT);
  Publish();
  Close();
  const auto events = Events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].kind, std::uint64_t{LG_EVENT_RESUME});
  EXPECT_EQ(events[0].step, 41);
  EXPECT_STREQ(events[0].text, "/ckpt/41");
  EXPECT_EQ(events[1].text_bytes, 2000u) << "the text was cut, and says so";
  EXPECT_EQ(ring::FieldText(events[1].text, sizeof events[1].text).size(), LG_EVENT_TEXT_BYTES);
  EXPECT_EQ(events[2].value, 2.5);
  EXPECT_EQ(events[2].count, 1000u);
  EXPECT_EQ(events[4].kind, std::uint64_t{LG_EVENT_END});
  EXPECT_EQ(events[4].count, std::uint64_t{LG_CLOSE_FINISHED});
  EXPECT_STREQ(events[4].text, "done");
  ASSERT_EQ(Steps().size(), 1u);
  EXPECT_EQ(Steps()[0].step, 42) << "the job goes on after the step that it resumed from";
  EXPECT_EQ(RingFile(path_).status().closed, std::uint64_t{LG_CLOSE_FINISHED});
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

TEST_F(GaugeTest, AbandonedIsNotFinished) {
  Open();
  lg_gauge_abandon(gauge_, "assertion failed");
  gauge_ = nullptr;
  EXPECT_EQ(RingFile(path_).status().closed, std::uint64_t{LG_CLOSE_FAILED});
  EXPECT_EQ(Events().back().count, std::uint64_t{LG_CLOSE_FAILED});
}

TEST_F(GaugeTest, TellsWhereItIsInItsStatusLine) {
  Open();
  EXPECT_EQ(RingFile(path_).status().entered_step, -1);
  EXPECT_EQ(RingFile(path_).status().published_step, -1);
  EXPECT_GT(RingFile(path_).status().heartbeat_boot_ns, 0);
  EXPECT_EQ(RingFile(path_).status().last_call, std::uint64_t{LG_CALL_OPEN});
  ASSERT_EQ(lg_gauge_set_step(gauge_, 7), LG_OK);
  gauge_->NoteLossCall();
  EXPECT_EQ(RingFile(path_).status().entered_step, 7);
  EXPECT_EQ(RingFile(path_).status().last_call, std::uint64_t{LG_CALL_LOSS});
  Publish();
  EXPECT_EQ(RingFile(path_).status().enqueued_step, 7);
  EXPECT_EQ(RingFile(path_).status().published_step, 7);
  EXPECT_EQ(RingFile(path_).status().last_call, std::uint64_t{LG_CALL_PUBLISH});
  EXPECT_EQ(State(gauge_).next_step, 8);
  EXPECT_EQ(State(gauge_).published, 1u);
}

TEST_F(GaugeTest, WritesItsIdentityIntoBothRings) {
  lg_gauge_options options = Options(directory_.path(), "r\"\\\n\xff/..", "attempt 1");
  options.world_size = 4;
  options.rank = 2;
  options.tp = {2, 0};
  options.dp = {2, 1};
  options.vocab_size = 1000;
  options.shard_columns = 500;
  options.gradient_reduction = LG_REDUCTION_OVER_RANKS_MEAN;
  options.label_smoothing = 0.1;
  options.z_loss_weight = 1e-4;
  const char* names[] = {"train", "eval", "mtp"};
  options.block_names = names;
  options.block_count = 3;
  Open(options);
  for (const std::string& path : {path_, EventsPath(path_)}) {
    const RingFile file(path);
    ASSERT_EQ(file.state(), ring::HeaderState::kValid);
    const lg_ring_identity& id = file.identity();
    EXPECT_STREQ(id.run, "r\"\\\n\xff/..");
    EXPECT_STREQ(id.attempt, "attempt 1");
    EXPECT_EQ(id.layout.rank, 2u);
    EXPECT_EQ(id.layout.tp.size, 2u);
    EXPECT_EQ(id.layout.dp.index, 1u);
    EXPECT_EQ(id.layout.shard_columns, 500);
    EXPECT_EQ(id.layout.vocab_size, 1000);
    EXPECT_EQ(id.layout.gradient_reduction, std::uint32_t{LG_GRADIENT_REDUCTION_MEAN});
    EXPECT_EQ(id.label_smoothing, 0.1);
    EXPECT_STREQ(id.block_names[2], "mtp");
    EXPECT_EQ(id.producer_pid, static_cast<std::uint32_t>(::getpid()));
    EXPECT_NE(id.boot_id[0], 0u);
    EXPECT_NE(id.segment_id[0], 0u);
  }
  EXPECT_LE(State(gauge_).ring_bytes, 512u * 1024);
}

TEST_F(GaugeTest, GivesLaunchesTheirBlock) {
  Open();
  CounterBlock* train = gauge_->BlockForLaunch(-1);
  ASSERT_NE(train, nullptr);
  EXPECT_EQ(gauge_->BlockForLaunch(0), train);
  EXPECT_NE(gauge_->BlockForLaunch(1), train);
  EXPECT_EQ(gauge_->BlockForLaunch(2), nullptr);
  EXPECT_EQ(gauge_->BlockForLaunch(-2), nullptr);
  EXPECT_EQ(State(gauge_).dropped_calls, 2u);
  lg_gauge_phase_begin(gauge_, LG_WARM_UP);
  EXPECT_EQ(gauge_->BlockForLaunch(-1), gauge_->BlockForLaunch(1));
  EXPECT_EQ(gauge_->vocab_size(), 1000);
  EXPECT_EQ(gauge_->shard_columns(), 1000);
  EXPECT_EQ(gauge_->token_bytes(), nullptr);
}

TEST_F(GaugeTest, CopiesTheByteTable) {
  std::vector<std::uint8_t> bytes(1000, 3);
  lg_gauge_options options = Options(directory_.path());
  options.token_bytes = bytes.data();
  Open(options);
  bytes.assign(1000, 0);
  ASSERT_NE(gauge_->token_bytes(), nullptr);
  EXPECT_EQ(gauge_->token_bytes()[999], 3);
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

TEST_F(GaugeTest, GoesOnPastTheEndOfItsRings) {
  Open();
  for (int i = 0; i < 700; ++i) {
    Observe(Observation(1, 1, 1));
    Publish();
    lg_gauge_note(gauge_, i, "n");
  }
  const auto steps = Steps();
  ASSERT_EQ(steps.size(), std::size_t{LG_STEP_SLOT_COUNT});
  EXPECT_EQ(steps.back().step, 699);
  EXPECT_EQ(steps.back().total_steps, 700u);
  EXPECT_EQ(lg_fixed128_to_double(steps.front().total_nll_sum), 189);
  EXPECT_EQ(Events().size(), std::size_t{LG_EVENT_SLOT_COUNT});
}

}  // namespace
}  // namespace lossgauge
