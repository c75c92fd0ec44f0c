// The writer as a process of its own that is killed between two stores, at every place where that can happen.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/proto/test_ring.h"

namespace lossgauge::ring {
namespace {

// Kills its own process at the n-th cut point, as SIGKILL from outside would.
struct KillAt {
  int* countdown;
  void operator()() const {
    if ((*countdown)-- == 0) ::kill(::getpid(), SIGKILL);
  }
};

// Runs the writer in a child: makes the ring, publishes `records`, and dies at the given cut point. False: it got to its end.
bool KilledAt(TestRing* ring, std::uint64_t records, int cut_point) {
  const pid_t child = ::fork();
  if (child == 0) {
    int countdown = cut_point;
    RingWriter<KillAt> writer(ring->memory(), ring->identity(), 0, KillAt{&countdown});
    for (std::uint64_t n = 1; n <= records; ++n) writer.Publish(NumberedRecord(n));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST(KilledWriter, LeavesOnlyWholeRecordsAtEveryCutPoint) {
  constexpr std::uint64_t kRecords = 6;  // in 4 slots: some overwrite older ones
  constexpr int kWords = LG_STEP_SLOT_BYTES / 8;
  constexpr int kStoresOfRecord = kWords + 2;  // odd, payload and checksum, even, cursor
  constexpr int kStoresOfHeader = 4;
  int torn = 0;
  int cut_point = 0;
  for (;; ++cut_point) {
    TestRing ring(4);
    if (!KilledAt(&ring, kRecords, cut_point)) break;
    lg_ring_identity identity;
    const HeaderState state = ring.Judge(&identity);
    if (cut_point < kStoresOfHeader - 1) {
      ASSERT_EQ(state, HeaderState::kNotReady) << "cut point " << cut_point;
      continue;
    }
    ASSERT_EQ(state, HeaderState::kValid) << "cut point " << cut_point;
    const int stores = cut_point - kStoresOfHeader + 1;  // of records, the one just made included
    const std::uint64_t whole = static_cast<std::uint64_t>((stores + 1) / kStoresOfRecord);  // even is the last but one
    const bool in_the_middle = (stores + 1) % kStoresOfRecord != 0 && stores % kStoresOfRecord != 0;

    RingReader<lg_step_record> reader(ring.memory(), identity);
    Tally tally;
    Drain(&reader, &tally);
    ASSERT_EQ(tally.wrong, 0u) << "cut point " << cut_point;
    ASSERT_EQ(tally.corrupt, 0u) << "cut point " << cut_point;
    ASSERT_FALSE(tally.damaged) << "cut point " << cut_point;
    ASSERT_EQ(tally.accounted(), whole) << "cut point " << cut_point;
    ASSERT_EQ(reader.HasTornRecord(), in_the_middle) << "cut point " << cut_point;
    torn += in_the_middle ? 1 : 0;
  }
  EXPECT_EQ(cut_point, kStoresOfHeader + static_cast<int>(kRecords) * kStoresOfRecord) << "every store has its cut point";
  EXPECT_EQ(torn, static_cast<int>(kRecords) * kWords);
}

TEST(KilledWriter, MayBeReadWhileItLivesAndAfterItsEnd) {
  constexpr std::uint64_t kRecords = 20000;
  TestRing ring(16);
  ring.MakeWriter();  // header ready before the reader looks
  const pid_t child = ::fork();
  if (child == 0) {
    RingWriter<> writer(ring.memory(), ring.identity());
    for (std::uint64_t n = 1; n <= kRecords; ++n) writer.Publish(NumberedRecord(n));
    ::kill(::getpid(), SIGKILL);
  }
  auto reader = ring.MakeReader();
  Tally tally;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) Drain(&reader, &tally);
  Drain(&reader, &tally);
  EXPECT_EQ(tally.accounted(), kRecords) << "written = read + lost";
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.corrupt, 0u);
  EXPECT_FALSE(reader.HasTornRecord());
}

}  // namespace
}  // namespace lossgauge::ring
