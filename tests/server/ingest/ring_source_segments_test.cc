// Which segments are found and read, in which order, and when they are let go.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/server/ingest/ring_source_fixture.h"

namespace lossgauge::ingest {
namespace {

using state::ProducerState;
using testing::FakeProducer;
using testing::FakeProducerOptions;

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

// Drained before it is reclaimed; a living segment is never touched.
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

// Attach and detach leave nothing behind.
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

}  // namespace
}  // namespace lossgauge::ingest
