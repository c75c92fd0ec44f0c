#include "server/ingest/ring_source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/ingest/bus_guard.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/ingest/recording_sink.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::ingest {
namespace {

using state::LossReason;
using state::ProducerState;
using testing::FakeProducer;
using testing::FakeProducerOptions;
constexpr std::int64_t kSecond = testing::ManualClock::kSecond;

class RingSourceTest : public ::testing::Test {
 protected:
  RingSourceTest() { spdlog::set_level(spdlog::level::off); }

  FakeProducerOptions Options(std::uint32_t rank = 0) {
    FakeProducerOptions options;
    options.directory = directory_.path();
    options.rank = rank;
    options.world_size = 4;
    return options;
  }
  RingSource& source() {
    if (!source_) {
      options_.directories = {directory_.path()};
      source_ = std::make_unique<RingSource>(options_, &clock_);
    }
    return *source_;
  }
  // One look after `seconds`, repeated for as long as a budget ends it.
  void Poll(double seconds = 0.2) {
    clock_.Advance(static_cast<std::int64_t>(seconds * 1e9));
    while (source().Poll(sink_, sink_, clock_.NowNs()).more) {
    }
  }
  ProducerState LastState() const { return sink_.liveness.empty() ? ProducerState::kEnded : sink_.liveness.back().producer_state; }
  std::uint64_t Errors(const std::string& cause) {
    const auto& errors = source().stats().errors;
    const auto it = errors.find(cause);
    return it == errors.end() ? 0 : it->second;
  }
  // A word of the slot where publication n belongs.
  static void StoreWord(const FakeProducer& producer, std::uint64_t n, std::uint64_t word, std::uint64_t value) {
    const int fd = open(producer.steps_path().c_str(), O_RDWR | O_CLOEXEC);
    const std::uint64_t at = LG_RING_HEADER_BYTES + (n - 1) % LG_STEP_SLOT_COUNT * LG_STEP_SLOT_BYTES + 8 * word;
    EXPECT_EQ(pwrite(fd, &value, 8, static_cast<off_t>(at)), 8);
    close(fd);
  }
  void WriteFile(const std::string& name, const std::string& bytes) { std::ofstream(directory_.path() + "/" + name) << bytes; }

  ScratchDirectory directory_;
  testing::ManualClock clock_;
  RingSourceOptions options_;
  std::unique_ptr<RingSource> source_;
  testing::RecordingSink sink_;
};

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

TEST_F(RingSourceTest, FindsSegmentsThatAppearLater) {
  Poll();
  FakeProducer producer(Options());
  producer.PublishStep(0);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 1u);
  FakeProducer other(Options(1));
  other.PublishStep(0);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 2u);
  EXPECT_EQ(source().stats().rings_attached, 2u);
}

TEST_F(RingSourceTest, WaitsForADirectoryThatDoesNotExistYet) {
  options_.directories = {directory_.path() + "/later"};
  RingSource source(options_, &clock_);
  source.Poll(sink_, sink_, clock_.NowNs());
  EXPECT_TRUE(source.stats().reachable);
  EXPECT_TRUE(source.stats().errors.empty());
  std::filesystem::create_directory(directory_.path() + "/later");
  FakeProducerOptions options = Options();
  options.directory += "/later";
  FakeProducer producer(options);
  producer.PublishStep(5);
  clock_.Advance(kSecond);
  source.Poll(sink_, sink_, clock_.NowNs());
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, WatchesSeveralDirectories) {
  const std::string second = directory_.path() + "/second";
  std::filesystem::create_directory(second);
  options_.directories = {directory_.path(), second};
  source_ = std::make_unique<RingSource>(options_, &clock_);
  FakeProducer a(Options(0));
  FakeProducerOptions options = Options(1);
  options.directory = second;
  FakeProducer b(options);
  a.PublishStep(0);
  b.PublishStep(0);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 2u);
}

// observer C8: lost = produced - delivered exactly, by cause; the next record says how many are missing before it.
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

// observer C7: a record is delivered whole or not at all; what a dead writer had begun is counted once.
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

// observer C6: each header that cannot be read is named, counted once, and tried again.
TEST_F(RingSourceTest, RefusesForeignHeadersByCause) {
  const struct {
    const char* cause;
    std::function<void(lg_ring_identity*)> edit;
  } cases[] = {
      {"bad_magic", [](lg_ring_identity* id) { id->magic = 1234; }},
      {"other_major", [](lg_ring_identity* id) { id->abi_major = 2; }},
      {"other_major", [](lg_ring_identity* id) { id->abi_major = 0; }},
      {"other_byte_order", [](lg_ring_identity* id) { id->byte_order = __builtin_bswap32(LG_RING_BYTE_ORDER); }},
      {"unknown_kind", [](lg_ring_identity* id) { id->kind = 9; }},
      {"bad_sizes", [](lg_ring_identity* id) { id->record_words = 7; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.rank = id->layout.world_size; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.tp = {2, 2}; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.dp.size = 0; }},
  };
  for (const auto& c : cases) {
    const std::uint64_t before = Errors(c.cause);
    FakeProducerOptions options = Options();
    options.edit_identity = c.edit;
    FakeProducer producer(options);
    Poll(3);
    Poll(10);
    Poll(10);
    EXPECT_EQ(Errors(c.cause), before + 1) << c.cause;
    EXPECT_EQ(source().stats().rings_attached, 0u) << c.cause;
  }
}

TEST_F(RingSourceTest, AcceptsANewerMinor) {
  FakeProducerOptions options = Options();
  options.edit_identity = [](lg_ring_identity* id) { id->abi_minor = LG_RING_ABI_MINOR + 1; };
  FakeProducer producer(options);
  producer.PublishStep(0);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, AnUnfinishedFileIsNotAnErrorButTriedAgain) {
  FakeProducer producer(Options());
  producer.PublishStep(3);
  // The header as it was before the producer stored `ready`.
  const int fd = open(producer.steps_path().c_str(), O_RDWR);
  std::uint64_t ready = 0, zero = 0;
  ASSERT_EQ(pread(fd, &ready, 8, offsetof(lg_ring_header, ready)), 8);
  ASSERT_EQ(pwrite(fd, &zero, 8, offsetof(lg_ring_header, ready)), 8);
  Poll();
  EXPECT_EQ(source().stats().rings_attached, 0u);
  EXPECT_EQ(Errors("not_ready"), 1u);
  ASSERT_EQ(pwrite(fd, &ready, 8, offsetof(lg_ring_header, ready)), 8);
  close(fd);
  Poll(10);
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, RefusesFilesThatAreNoRings) {
  WriteFile("a.steps", "");
  WriteFile("b.steps", "short");
  WriteFile("c.steps", std::string(5000, 'x'));
  std::filesystem::create_directory(directory_.path() + "/d.steps");
  std::filesystem::create_symlink("/etc/passwd", directory_.path() + "/e.steps");
  ASSERT_EQ(mkfifo((directory_.path() + "/f.steps").c_str(), 0600), 0);
  Poll();
  Poll(10);
  EXPECT_EQ(Errors("no_content"), 1u);
  EXPECT_EQ(Errors("too_short"), 1u);
  EXPECT_EQ(Errors("bad_magic"), 1u);
  EXPECT_EQ(Errors("not_a_file"), 2u);
  EXPECT_EQ(Errors("symbolic_link"), 1u);
}

TEST_F(RingSourceTest, AFileThatWasCutIsRefused) {
  FakeProducer producer(Options());
  ASSERT_EQ(truncate(producer.steps_path().c_str(), LG_RING_HEADER_BYTES + 100), 0);
  Poll();
  EXPECT_EQ(Errors("truncated"), 1u);
}

// A shared mapping of a file that shrinks raises SIGBUS at the next read of the lost page.
TEST_F(RingSourceTest, SurvivesAFileThatShrinksUnderItsMapping) {
  FakeProducer producer(Options(0));
  FakeProducer healthy(Options(1));
  producer.PublishSteps(0, 9);
  Poll();
  const std::uint64_t caught = BusFaultsCaught();
  ASSERT_EQ(truncate(producer.steps_path().c_str(), 0), 0);
  healthy.PublishSteps(0, 4);
  Poll(1.1);
  EXPECT_GT(BusFaultsCaught(), caught);
  EXPECT_EQ(Errors("truncated"), 1u);
  EXPECT_EQ(sink_.samples.size(), 15u) << "nothing else stops";
  Poll(1.1);
  EXPECT_EQ(Errors("truncated"), 1u);
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

TEST_F(RingSourceTest, ARefusedProducerIsAskedAboutAgain) {
  sink_.refused_runs.insert("fake");
  FakeProducer producer(Options());
  producer.PublishStep(0);
  Poll();
  Poll(10);
  EXPECT_EQ(source().stats().rings_attached, 0u);
  EXPECT_EQ(Errors("refused"), 1u);
  sink_.refused_runs.clear();
  Poll(10);
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, ASegmentWhoseRunIsOverIsNotReadAgain) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  sink_.cursors[state::SegmentId{{producer.identity().segment_id[0], producer.identity().segment_id[1]}}].ended = true;
  Poll();
  EXPECT_TRUE(sink_.producers.empty());
  EXPECT_TRUE(sink_.samples.empty());
}

TEST_F(RingSourceTest, AnUnlinkedSegmentOfALivingProducerIsReadToItsEnd) {
  FakeProducer producer(Options());
  Poll();
  for (const std::string& path : {producer.steps_path(), producer.events_path(), producer.lock_path()}) unlink(path.c_str());
  producer.PublishStep(0);
  Poll(3);
  EXPECT_EQ(sink_.samples.size(), 1u);
  EXPECT_EQ(LastState(), ProducerState::kLive);
  EXPECT_TRUE(sink_.gone.empty());
  producer.PublishStep(1);
  producer.Die();
  Poll(3);
  EXPECT_EQ(sink_.samples.size(), 2u);
  EXPECT_EQ(sink_.gone.size(), 1u);
  EXPECT_EQ(source().stats().rings_attached, 0u);
}

// observer C1: drained before it is reclaimed; a living segment is never touched.
TEST_F(RingSourceTest, ReclaimsOnlyWhatIsDeadDrainedCommittedAndOld) {
  options_.reclaim = true;
  FakeProducer dead(Options(0));
  FakeProducer live(Options(1));
  dead.PublishStep(0);
  dead.Die();
  Poll();
  source().OnCommitted(clock_.NowNs());
  EXPECT_TRUE(std::filesystem::exists(dead.steps_path())) << "a post-mortem must be possible for a while";
  for (int i = 0; i < 400; ++i) {
    live.BeatAt(clock_.BootNs());
    Poll(1);
  }
  EXPECT_TRUE(std::filesystem::exists(dead.steps_path())) << "nothing goes before it is in the store";
  source().OnCommitted(clock_.NowNs());
  EXPECT_FALSE(std::filesystem::exists(dead.steps_path()));
  EXPECT_FALSE(std::filesystem::exists(dead.lock_path()));
  EXPECT_TRUE(std::filesystem::exists(live.steps_path()));
  Poll(3);
  EXPECT_EQ(sink_.gone.size(), 1u);
}

TEST_F(RingSourceTest, WithoutTheOptionNothingIsUnlinked) {
  FakeProducer dead(Options(0));
  dead.Die();
  Poll();
  Poll(1000);
  source().OnCommitted(clock_.NowNs());
  EXPECT_TRUE(std::filesystem::exists(dead.steps_path()));
}

TEST_F(RingSourceTest, TheDeadSegmentOfARankComesBeforeItsSuccessor) {
  FakeProducer old_one(Options());
  old_one.PublishStep(0);
  old_one.Die();
  FakeProducer new_one(Options());
  new_one.PublishStep(1);
  Poll();
  ASSERT_EQ(sink_.producers.size(), 2u);
  EXPECT_EQ(sink_.producers[0]->segment.words[0], old_one.identity().segment_id[0]);
}

TEST_F(RingSourceTest, AllOfADeadSegmentIsDeliveredBeforeAnythingOfItsSuccessor) {
  options_.drain_budget = 10;
  FakeProducerOptions first = Options(), second = Options();
  first.segment_id[0] = first.segment_id[1] = ~0ull;  // by its name it would be drained last
  second.segment_id[0] = second.segment_id[1] = 1;
  second.attempt_start_wall_ns += 1;
  FakeProducer old_one(first);
  old_one.PublishSteps(0, 49);
  old_one.Die();
  FakeProducer new_one(second);
  new_one.PublishSteps(20, 29);
  Poll();
  ASSERT_EQ(sink_.samples.size(), 60u);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(sink_.samples[i].record.step, static_cast<std::int64_t>(i));
}

TEST_F(RingSourceTest, AFileThatAPartialListingDoesNotShowHasNotVanished) {
  FakeProducer dead(Options(0));
  dead.PublishStep(0);
  dead.Die();
  options_.max_files = 1;
  Poll();
  ASSERT_EQ(sink_.samples.size(), 1u);
  const std::string away = directory_.path() + "/away";
  std::filesystem::create_directory(away);
  for (int i = 0; i < 3; ++i) WriteFile("other" + std::to_string(i) + ".steps", "x");
  Poll(3);
  EXPECT_GE(Errors("too_many_files"), 1u);
  // Whichever the directory shows first: with a whole listing the dead one would be forgotten only if it is not there.
  std::filesystem::rename(dead.steps_path(), away + "/x.steps");
  Poll(3);
  EXPECT_TRUE(sink_.gone.empty()) << "four files, one looked at: nobody knows what is gone";
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

TEST_F(RingSourceTest, ASegmentThatWasLeftAloneIsForgottenWithItsFile) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  producer.Die();
  Poll();
  ASSERT_EQ(sink_.producers.size(), 1u);
  sink_.cursors[sink_.producers[0]->segment].ended = true;  // its run was let go
  Poll();
  std::filesystem::remove(producer.steps_path());
  Poll(3);
  ASSERT_EQ(sink_.gone.size(), 1u);
  EXPECT_EQ(sink_.gone[0], sink_.producers[0]->segment);
}

// observer B10: attach and detach leave nothing behind.
TEST_F(RingSourceTest, AttachingAndLettingGoLeaksNoDescriptor) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  std::ptrdiff_t fds_before = 0, maps_before = 0;
  for (int round = 0; round < 200; ++round) {
    FakeProducer producer(Options());
    producer.PublishStep(round);
    Poll(0.2);
    producer.Die();
    Poll(1.1);
    for (const std::string& path : {producer.steps_path(), producer.events_path(), producer.lock_path()}) unlink(path.c_str());
    Poll(0.2);
    if (round == 20) {
      fds_before = descriptors();
      maps_before = mappings();
    }
  }
  EXPECT_EQ(sink_.samples.size(), 200u);
  EXPECT_EQ(sink_.gone.size(), 200u);
  EXPECT_LE(descriptors(), fds_before + 1);
  EXPECT_LE(mappings(), maps_before + 5);
}

// As root nothing is unreadable: the look is taken by a child that has put root's powers down.
TEST(RingSourcePermissions, AnUnreadableDirectoryIsNamedAndMakesTheSourceUnreachable) {
  spdlog::set_level(spdlog::level::off);
  ScratchDirectory directory;
  const std::string closed = directory.path() + "/closed";
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(mkdir(closed.c_str(), 0), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(10);
    testing::ManualClock clock;
    testing::RecordingSink sink;
    RingSourceOptions options;
    options.directories = {closed};
    RingSource source(options, &clock);
    source.Poll(sink, sink, clock.NowNs());
    clock.Advance(10 * kSecond);
    source.Poll(sink, sink, clock.NowNs());
    const auto& errors = source.stats().errors;
    const auto it = errors.find("directory_unreadable");
    // Only what is in the closed directory is out of reach.
    state::ProducerInfo inside, elsewhere;
    inside.ring_path = closed + "/a.steps";
    elsewhere.ring_path = directory.path() + "/open/a.steps";
    if (source.Reaches(inside)) _exit(2);
    if (!source.Reaches(elsewhere)) _exit(3);
    _exit(!source.stats().reachable && it != errors.end() && it->second == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0700), 0);
}

// observer C4: whose file it is and who asks, in one sentence.
TEST(RingSourcePermissions, AnUnreadableRingIsRefusedWithOwnerAndMode) {
  ScratchDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  const std::string path = directory.path() + "/a.steps";
  std::ofstream(path) << std::string(5000, 'x');
  ASSERT_EQ(chmod(path.c_str(), 0200), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(10);
    const RingFileResult result = OpenRingFile(path, LG_RING_KIND_STEPS);
    const bool named = result.message.find(path) != std::string::npos && result.message.find("mode 0200") != std::string::npos &&
                       result.message.find("this process is") != std::string::npos;
    // An owner that may not read its own file is told apart from a stranger by nothing but the numbers.
    _exit(result.cause == "permission_denied" && named && !result.is_pending ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lossgauge::ingest
