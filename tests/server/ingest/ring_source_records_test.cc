// Records: each that a ring holds is delivered once and in order, and what cannot be had is counted by its reason.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/ingest/ring_source_fixture.h"

namespace lossgauge::ingest {
namespace {

using state::LossReason;
using state::ProducerState;
using testing::FakeProducer;
using testing::FakeProducerOptions;

TEST_F(RingSourceTest, DeliversEveryRecordInOrderWithItsBytes) {
  FakeProducer producer(Options(2));
  producer.PublishSteps(0, 99);
  Poll();
  ASSERT_EQ(sink_.samples.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sink_.samples[i].record.step, static_cast<std::int64_t>(i));
    EXPECT_EQ(sink_.samples[i].publication, i + 1);
    EXPECT_EQ(sink_.samples[i].lost_before, 0u);
    EXPECT_EQ(sink_.samples[i].receive_time_ns, clock_.NowNs());
  }
  EXPECT_EQ(sink_.samples.back().record.total_nll_sum.hi, producer.last().total_nll_sum.hi);
  EXPECT_EQ(sink_.samples.back().record.total_nll_sum.lo, producer.last().total_nll_sum.lo);
  ASSERT_EQ(sink_.producers.size(), 1u);
  EXPECT_EQ(sink_.producers[0]->layout.rank, 2u);
  EXPECT_EQ(sink_.producers[0]->run, "fake");
  EXPECT_EQ(sink_.total_lost(), 0u);
}

// Lost = produced - delivered exactly, by cause; the next record says how many are missing before it.
TEST_F(RingSourceTest, CountsWhatWasOverwrittenExactly) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 9);
  Poll();
  producer.PublishSteps(10, 10 + 3 * LG_STEP_SLOT_COUNT - 1);
  Poll();
  EXPECT_EQ(sink_.samples.size() + sink_.lost[LossReason::kOverrun], producer.published());
  EXPECT_EQ(sink_.lost[LossReason::kOverrun], 2u * LG_STEP_SLOT_COUNT);
  EXPECT_EQ(sink_.samples[10].lost_before, 2u * LG_STEP_SLOT_COUNT);
  EXPECT_EQ(sink_.samples[11].lost_before, 0u);
}

TEST_F(RingSourceTest, CountsWhatWasOverwrittenWhileNobodyRead) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 9);
  Poll();
  source_.reset();
  producer.PublishSteps(10, 1999);
  Poll();
  EXPECT_EQ(sink_.samples.size() + sink_.total_lost(), 2000u);
  EXPECT_EQ(sink_.samples[10].record.step, 2000 - LG_STEP_SLOT_COUNT);
}

TEST_F(RingSourceTest, NumbersGoOnBeyond32Bits) {
  FakeProducerOptions options = Options();
  options.published = (std::uint64_t{1} << 32) - 3;
  FakeProducer producer(options);
  sink_.cursors[state::SegmentId{{producer.identity().segment_id[0], producer.identity().segment_id[1]}}].next_steps_publication =
      options.published + 1;
  producer.PublishSteps(0, 9);
  Poll();
  ASSERT_EQ(sink_.samples.size(), 10u);
  EXPECT_EQ(sink_.samples.back().publication, (std::uint64_t{1} << 32) + 7);
  EXPECT_EQ(sink_.total_lost(), 0u);
}

TEST_F(RingSourceTest, ARecordThatFailsItsChecksumIsSkippedAndCounted) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  producer.Corrupt(20);
  producer.PublishStep(1);
  Poll();
  ASSERT_EQ(sink_.samples.size(), 1u);
  EXPECT_EQ(sink_.samples[0].record.step, 1);
  EXPECT_EQ(sink_.samples[0].lost_before, 1u);
  EXPECT_EQ(sink_.lost[LossReason::kChecksum], 1u);
}

TEST_F(RingSourceTest, ARecordThatContradictsItselfIsSkippedAndCounted) {
  FakeProducer producer(Options());
  lg_step_record record = producer.MakeStep(0);
  record.block = 9;
  producer.Publish(record);
  record = producer.MakeStep(-5);
  producer.Publish(record);
  producer.PublishStep(2);
  Poll();
  ASSERT_EQ(sink_.samples.size(), 1u);
  EXPECT_EQ(sink_.lost[LossReason::kInvalid], 2u);
}

// A record is delivered whole or not at all; what a dead writer had begun is counted once.
TEST_F(RingSourceTest, ATornRecordOfADeadProducerIsCountedOnce) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 4);
  producer.Tear(5);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 5u);
  EXPECT_EQ(sink_.total_lost(), 0u) << "a living producer may still finish it";
  producer.Die();
  for (int i = 0; i < 5; ++i) Poll(1.1);
  EXPECT_EQ(sink_.samples.size(), 5u);
  EXPECT_EQ(sink_.lost[LossReason::kTorn], 1u);
  EXPECT_TRUE(sink_.liveness.back().drained);
}

TEST_F(RingSourceTest, EventsArriveWithValidText) {
  FakeProducer producer(Options());
  producer.PublishEvent(LG_EVENT_CHECKPOINT, 7, "/ckpt/\xFFstep7");
  producer.PublishEvent(LG_EVENT_NOTE, -1, std::string(5000, 'x'));
  Poll();
  ASSERT_EQ(sink_.events.size(), 2u);
  EXPECT_EQ(sink_.events[0].kind, static_cast<std::uint64_t>(LG_EVENT_CHECKPOINT));
  EXPECT_EQ(sink_.events[0].step, 7);
  EXPECT_EQ(sink_.events[0].text, "/ckpt/\xEF\xBF\xBDstep7");
  EXPECT_EQ(sink_.events[1].text, std::string(LG_EVENT_TEXT_BYTES, 'x'));
}

// A GPU's words of the next lap may be seen before its odd word (ring_abi.h).
TEST_F(RingSourceTest, ARecordThatIsBeingOverwrittenIsLappedOnceItsOddWordIsSeenAndHoldsUpNoOtherRing) {
  FakeProducer producer(Options(0)), other(Options(1));
  producer.PublishSteps(0, LG_STEP_SLOT_COUNT - 1);
  other.PublishSteps(0, 9);
  StoreWord(producer, LG_STEP_SLOT_COUNT + 1, 8, 77);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 10u);
  EXPECT_EQ(sink_.total_lost(), 0u);
  StoreWord(producer, LG_STEP_SLOT_COUNT + 1, 0, 2 * LG_STEP_SLOT_COUNT + 1);
  Poll();
  EXPECT_EQ(sink_.lost[LossReason::kOverrun], 1u);
  EXPECT_EQ(sink_.total_lost(), 1u);
  EXPECT_EQ(sink_.samples.size(), 10u + LG_STEP_SLOT_COUNT - 1);
}

TEST_F(RingSourceTest, ARecordThatSeemsOverwrittenForEverIsCorruptAfterAFewLooks) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, LG_STEP_SLOT_COUNT - 1);
  StoreWord(producer, 1, 8, 77);
  for (int look = 0; look < 3; ++look) {
    Poll();
    EXPECT_TRUE(sink_.samples.empty());
    EXPECT_EQ(sink_.total_lost(), 0u);
  }
  Poll();
  EXPECT_EQ(sink_.lost[LossReason::kChecksum], 1u);
  EXPECT_EQ(sink_.total_lost(), 1u);
  EXPECT_EQ(sink_.samples.size(), LG_STEP_SLOT_COUNT - 1u);
}

TEST_F(RingSourceTest, WhatADeadProducerWasOverwritingIsCountedBeforeItsRingIsLetGo) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, LG_STEP_SLOT_COUNT - 1);
  StoreWord(producer, 1, 8, 77);
  producer.Die();
  Poll();
  Poll(1.1);
  EXPECT_EQ(sink_.lost[LossReason::kChecksum], 1u);
  EXPECT_EQ(sink_.total_lost(), 1u);
  EXPECT_EQ(sink_.samples.size(), LG_STEP_SLOT_COUNT - 1u);
  EXPECT_EQ(LastState(), ProducerState::kLost);
  EXPECT_TRUE(sink_.liveness.back().drained);
}

TEST_F(RingSourceTest, ARingWhoseCursorLiesIsLeftAlone) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  const int fd = open(producer.steps_path().c_str(), O_RDWR);
  const std::uint64_t lie = std::uint64_t{1} << 40;
  ASSERT_EQ(pwrite(fd, &lie, 8, offsetof(lg_ring_header, cursor)), 8);
  close(fd);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 1u);
  EXPECT_EQ(Errors("damaged"), 1u);
}

TEST_F(RingSourceTest, AnEventRingOfAnotherSegmentIsNotBelieved) {
  FakeProducerOptions options = Options();
  options.edit_identity = [](lg_ring_identity* id) { id->segment_id[0] = 77; };
  FakeProducer producer(options);
  FakeProducer other(Options(1));
  std::filesystem::copy_file(other.events_path(), producer.events_path(), std::filesystem::copy_options::overwrite_existing);
  producer.PublishStep(0);
  Poll();
  Poll(3);
  EXPECT_EQ(Errors("other_segment"), 1u);
  EXPECT_EQ(sink_.samples.size(), 1u) << "its steps still count";
}

TEST_F(RingSourceTest, OddNamesBecomeValidOnesAndAreCounted) {
  const std::string names[] = {"a\"b", "a\\b", "line\nbreak", "cr\r", "", std::string(4096, 'x'), "\xF0\x9F\x94\xA5", "bad\xFF\xC0", "{", "end\\"};
  std::vector<std::unique_ptr<FakeProducer>> producers;
  for (const std::string& name : names) {
    FakeProducerOptions options = Options();
    options.run = name;
    producers.push_back(std::make_unique<FakeProducer>(options));
  }
  Poll();
  EXPECT_EQ(sink_.producers.size(), std::size(names));
  for (const auto& producer : sink_.producers) {
    EXPECT_FALSE(producer->run.empty());
    EXPECT_LE(producer->run.size(), 200u);
  }
  EXPECT_EQ(source().stats().names_repaired, 3u);  // the empty, the long, the invalid
}

TEST_F(RingSourceTest, AnEventRingThatComesLateIsReadFromItsBeginning) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  std::filesystem::rename(producer.events_path(), producer.events_path() + ".away");
  Poll();
  Poll(3);
  ASSERT_EQ(sink_.samples.size(), 1u) << "attached without it";
  producer.PublishEvent(LG_EVENT_CHECKPOINT, 7, "/c");
  std::filesystem::rename(producer.events_path() + ".away", producer.events_path());
  producer.BeatAt(clock_.BootNs());
  Poll(6);
  ASSERT_EQ(sink_.events.size(), 1u);
  EXPECT_EQ(sink_.events[0].step, 7);
}

}  // namespace
}  // namespace lossgauge::ingest
