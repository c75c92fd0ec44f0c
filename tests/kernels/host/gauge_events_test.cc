// What a job says of itself is what a reader finds in its events, its status line and its identity.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/host/one_gauge.h"

namespace lossgauge {
namespace {

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

}  // namespace
}  // namespace lossgauge
