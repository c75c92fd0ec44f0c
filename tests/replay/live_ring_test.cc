// What is fed live is what a source reads from the rings of a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/ingest/ring_source.h"
#include "server/replay/live_ring.h"
#include "tests/replay/read_points.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/ingest/recording_sink.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::replay {
namespace {

class LiveRingTest : public ::testing::Test {
 protected:
  LiveRingOptions Options() {
    LiveRingOptions options;
    options.directory = directory_.path();
    options.run = "from a log";
    options.points_per_second = 100;
    options.sleep = [this](std::int64_t nanoseconds) {
      slept_ns_ += nanoseconds;
      Poll();
    };
    return options;
  }
  void Feed(LiveRing* live, const std::string& text) {
    const auto source = MakeMemorySource(text);
    ASSERT_TRUE(ReadLog(source.get(), live).ok());
    live->Finish();
  }
  void Poll() {
    clock_.Advance(20'000'000);
    while (source_.Poll(sink_, sink_, clock_.NowNs()).more) {
    }
  }

  ScratchDirectory directory_;
  testing::ManualClock clock_;
  testing::RecordingSink sink_;
  ingest::RingSource source_{{.directories = {directory_.path()}}, &clock_};
  std::int64_t slept_ns_ = 0;
};

TEST_F(LiveRingTest, EveryPointArrivesOnceWithItsValues) {
  std::string text;
  for (int i = 1; i <= 600; ++i) absl::StrAppendFormat(&text, "step:%d loss:%.4f norm:%.3f\n", i * 10, 3 + 0.001 * i, 1 + 0.001 * i);
  LiveRing live(Options());
  Feed(&live, text);
  ASSERT_TRUE(live.status().ok()) << live.status();
  Poll();
  EXPECT_EQ(live.published(), 600u);
  EXPECT_EQ(slept_ns_, 600 * 10'000'000LL);
  ASSERT_EQ(sink_.samples.size(), 600u);
  EXPECT_EQ(sink_.total_lost(), 0u);
  for (std::size_t i = 0; i < 600; ++i) {
    const lg_step_record& record = sink_.samples[i].record;
    EXPECT_EQ(record.step, static_cast<std::int64_t>(i + 1) * 10);
    EXPECT_NEAR(lg_fixed128_to_double(record.nll_sum) / static_cast<double>(record.finite_tokens), 3 + 0.001 * static_cast<double>(i + 1), 1e-9);
    EXPECT_DOUBLE_EQ(record.grad_norm, 1 + 0.001 * static_cast<double>(i + 1));
    EXPECT_EQ(record.total_steps, i + 1);
  }
  ASSERT_EQ(sink_.producers.size(), 1u);
  EXPECT_EQ(sink_.producers[0]->run, "from a log");
}

TEST_F(LiveRingTest, ItLivesWhileItIsFedAndEndsCleanly) {
  LiveRing live(Options());
  Feed(&live, "step:1 loss:3\nstep:2 loss:3\nstep:3 loss:3\n");
  EXPECT_EQ(sink_.liveness.back().producer_state, state::ProducerState::kLive);
  clock_.Advance(2'000'000'000);
  Poll();
  EXPECT_EQ(sink_.liveness.back().producer_state, state::ProducerState::kEnded);
  EXPECT_EQ(sink_.liveness.back().closed, std::uint64_t{LG_CLOSE_FINISHED});
  ASSERT_FALSE(sink_.events.empty());
  EXPECT_EQ(sink_.events.back().kind, std::uint64_t{LG_EVENT_END});
}

TEST_F(LiveRingTest, ALogThatGoesBackBecomesTwoSegmentsAndEventsGoAlong) {
  LiveRing live(Options());
  Feed(&live,
       "step:100 loss:3 dt:100ms\nstep:101 loss:3 dt:100ms\nstep:102 loss:3 dt:100ms\nsaving checkpoint at iteration     102 to /ckpt in torch format\n"
       "step:101 loss:2.9 dt:100ms\nstep:102 loss:2.9 dt:100ms\nval_loss:3.5\nstep:103 loss:2.9 dt:100ms\n");
  Poll();
  ASSERT_EQ(sink_.producers.size(), 2u);
  EXPECT_NE(sink_.producers[0]->attempt, sink_.producers[1]->attempt);
  std::vector<std::uint64_t> kinds;
  for (const auto& event : sink_.events) kinds.push_back(event.kind);
  EXPECT_THAT(kinds, ::testing::IsSupersetOf({std::uint64_t{LG_EVENT_RESUME}, std::uint64_t{LG_EVENT_CHECKPOINT}, std::uint64_t{LG_EVENT_EVALUATION},
                                              std::uint64_t{LG_EVENT_END}, std::uint64_t{LG_EVENT_END}}));
  EXPECT_EQ(sink_.samples.size(), 6u);
}

TEST_F(LiveRingTest, EventsThatStandCloseTogetherAllArrive) {
  // lossgauged looks once a second here, and a ring holds 64 events.
  LiveRingOptions options = Options();
  options.points_per_second = kMostPointsPerSecond;
  std::int64_t unseen_ns = 0;
  options.sleep = [&](std::int64_t nanoseconds) {
    slept_ns_ += nanoseconds;
    unseen_ns += nanoseconds;
    if (unseen_ns < 1'000'000'000) return;
    unseen_ns = 0;
    Poll();
  };
  std::string text;
  for (int i = 1; i <= 40; ++i) absl::StrAppendFormat(&text, "step:%d loss:3\n", i);
  for (int i = 1; i <= 300; ++i) absl::StrAppendFormat(&text, "step:40 val_loss:%.3f\n", 3 + 0.001 * i);
  for (int i = 1; i <= 100; ++i) absl::StrAppendFormat(&text, "saving checkpoint at iteration %7d to /ckpt in torch format\n", i);
  text += "step:41 loss:3\n";
  LiveRing live(options);
  Feed(&live, text);
  ASSERT_TRUE(live.status().ok()) << live.status();
  Poll();
  std::size_t evaluations = 0, checkpoints = 0;
  for (const auto& event : sink_.events) {
    evaluations += event.kind == LG_EVENT_EVALUATION;
    checkpoints += event.kind == LG_EVENT_CHECKPOINT;
  }
  EXPECT_EQ(evaluations, 300u);
  EXPECT_EQ(checkpoints, 100u);
  EXPECT_EQ(sink_.total_lost(), 0u);
}

TEST_F(LiveRingTest, AFailureEndsTheReadingOfTheLog) {
  LiveRingOptions options = Options();
  options.directory += "/absent";
  LiveRing live(options);
  std::string text;
  for (int i = 1; i <= 200'000; ++i) absl::StrAppendFormat(&text, "step:%d loss:3\n", i);
  const auto source = MakeMemorySource(text);
  const auto report = ReadLog(source.get(), &live);
  ASSERT_TRUE(report.ok());
  EXPECT_LT(report->bytes, text.size() / 2);
}

TEST_F(LiveRingTest, ADirectoryThatIsNotThereIsNamed) {
  LiveRingOptions options = Options();
  options.directory += "/absent";
  LiveRing live(options);
  Feed(&live, "step:1 loss:3\nstep:2 loss:3\n");
  EXPECT_EQ(live.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(live.status().message()), ::testing::HasSubstr(options.directory));
  EXPECT_EQ(live.published(), 0u);
  EXPECT_FALSE(std::filesystem::exists(options.directory));
}

}  // namespace
}  // namespace lossgauge::replay
