// Who lives: by lock and heartbeat.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "tests/server/ingest/ring_source_fixture.h"

namespace lossgauge::ingest {
namespace {

using state::ProducerState;
using testing::FakeProducer;
using testing::FakeProducerOptions;

TEST_F(RingSourceTest, AProducerThatHoldsItsLockAndBeatsIsLive) {
  FakeProducer producer(Options());
  Poll();
  EXPECT_EQ(LastState(), ProducerState::kLive);
  EXPECT_FALSE(sink_.liveness.back().drained);
}

TEST_F(RingSourceTest, AProducerThatLosesItsLockWithoutAWordIsLostAfterTheLastRecordIsDelivered) {
  FakeProducer producer(Options());
  Poll();
  producer.PublishSteps(0, 9);
  producer.Die();
  Poll(1.1);
  EXPECT_EQ(sink_.samples.size(), 10u);
  EXPECT_EQ(LastState(), ProducerState::kLost);
  EXPECT_TRUE(sink_.liveness.back().drained);
  EXPECT_EQ(sink_.liveness.back().published_step, 9);
}

TEST_F(RingSourceTest, AProducerThatClosesHasEndedThoughItsProcessLivesOn) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  Poll();
  producer.Close(LG_CLOSE_FINISHED);
  Poll();
  EXPECT_EQ(LastState(), ProducerState::kEnded);
  EXPECT_EQ(sink_.liveness.back().closed, static_cast<std::uint64_t>(LG_CLOSE_FINISHED));
  EXPECT_TRUE(sink_.liveness.back().drained);
  ASSERT_EQ(sink_.events.size(), 1u);
}

TEST_F(RingSourceTest, AHeldLockWithAnOldHeartbeatIsFrozenAndThawsAgain) {
  FakeProducer producer(Options());
  Poll();
  producer.BeatAt(clock_.BootNs());
  Poll(9.5);
  EXPECT_EQ(LastState(), ProducerState::kLive);
  Poll(1.1);
  EXPECT_EQ(LastState(), ProducerState::kFrozen);
  EXPECT_GT(sink_.liveness.back().heartbeat_age_ns, 10 * kSecond);
  producer.BeatAt(clock_.BootNs());
  Poll(1.1);
  EXPECT_EQ(LastState(), ProducerState::kLive);
}

TEST_F(RingSourceTest, HeartbeatsOfAnotherBootCountOnlyByChanging) {
  FakeProducerOptions options = Options();
  options.edit_identity = [](lg_ring_identity* id) { id->boot_id[0] ^= 1; };
  FakeProducer producer(options);
  producer.BeatAt(1);
  Poll();
  EXPECT_EQ(LastState(), ProducerState::kLive);
  for (std::int64_t beat = 2; beat < 20; ++beat) {
    producer.BeatAt(beat);
    Poll(5);
    EXPECT_EQ(LastState(), ProducerState::kLive);
  }
  Poll(5);
  Poll(6);
  EXPECT_EQ(LastState(), ProducerState::kFrozen);
}

TEST_F(RingSourceTest, AHeartbeatFromTheFutureIsNoSignOfLife) {
  FakeProducer producer(Options());
  producer.BeatAt(clock_.BootNs() + 1'000'000 * kSecond);
  Poll();
  EXPECT_GE(sink_.liveness.back().heartbeat_age_ns, 0);
  Poll(11);
  EXPECT_EQ(LastState(), ProducerState::kFrozen);
}

TEST_F(RingSourceTest, WithoutALockFileTheHeartbeatDecides) {
  FakeProducerOptions options = Options();
  options.with_lock = false;
  FakeProducer producer(options);
  producer.BeatAt(clock_.BootNs());
  Poll();
  EXPECT_EQ(LastState(), ProducerState::kLive);
  Poll(31);
  EXPECT_EQ(LastState(), ProducerState::kLost);
}

TEST_F(RingSourceTest, AProducerWhoseLockCannotBeAskedIsLostForNowButNotFinished) {
  options_.reclaim = true;
  FakeProducerOptions options = Options();
  options.with_lock = false;
  FakeProducer producer(options);
  producer.BeatAt(clock_.BootNs());
  producer.PublishStep(0);
  Poll();
  Poll(31);
  EXPECT_EQ(LastState(), ProducerState::kLost);
  EXPECT_TRUE(sink_.liveness.back().drained) << "what it had published is delivered";
  Poll(400);
  source().OnCommitted(clock_.NowNs());
  EXPECT_TRUE(std::filesystem::exists(producer.steps_path())) << "it may be stopped, and live";
  producer.BeatAt(clock_.BootNs());
  producer.PublishStep(1);
  Poll(1);
  EXPECT_EQ(LastState(), ProducerState::kLive);
  EXPECT_FALSE(sink_.liveness.back().drained);
  EXPECT_EQ(sink_.samples.size(), 2u);
}

}  // namespace
}  // namespace lossgauge::ingest
