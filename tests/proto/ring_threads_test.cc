// Writer and reader as two threads: the code that ThreadSanitizer watches (label tsan).
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "tests/proto/test_ring.h"

namespace lossgauge::ring {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kRecords = 20000;
#else
constexpr std::uint64_t kRecords = 300000;
#endif

// Reads until the writer is done, giving the processor away now and then so that the writer laps it.
Tally ReadAlong(TestRing* ring, const std::atomic<bool>& done, bool dawdle) {
  auto reader = ring->MakeReader();
  Tally tally;
  std::uint64_t rounds = 0;
  while (!done.load(std::memory_order_acquire)) {
    Drain(&reader, &tally);
    if (dawdle && ++rounds % 16 == 0) ::sched_yield();
  }
  Drain(&reader, &tally);
  return tally;
}

void WriterAndReaderAgree(std::uint32_t slot_count, bool dawdle) {
  TestRing ring(slot_count);
  RingWriter<> writer = ring.MakeWriter();
  std::atomic<bool> done{false};
  Tally tally;
  std::thread reading([&] { tally = ReadAlong(&ring, done, dawdle); });
  for (std::uint64_t n = 1; n <= kRecords; ++n) writer.Publish(NumberedRecord(n));
  done.store(true, std::memory_order_release);
  reading.join();
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.corrupt, 0u) << "a torn record must be seen as lapped, never as a wrong checksum";
  EXPECT_FALSE(tally.damaged);
  EXPECT_EQ(tally.accounted(), kRecords);
}

TEST(RingThreads, AccountForEveryRecordWhenTheReaderIsLappedAtFullSpeed) { WriterAndReaderAgree(4, true); }
TEST(RingThreads, AccountForEveryRecordInASingleSlot) { WriterAndReaderAgree(1, false); }
TEST(RingThreads, AccountForEveryRecordInAFullSizeRing) { WriterAndReaderAgree(LG_STEP_SLOT_COUNT, false); }

TEST(RingThreads, ReaderThatWaitsForTheHeaderSeesAWholeIdentity) {
  for (int round = 0; round < 200; ++round) {
    TestRing ring(4);
    lg_ring_identity seen;
    std::thread reading([&] {
      HeaderState state;
      while (IsPending(state = ring.Judge(&seen))) ::sched_yield();
      EXPECT_EQ(state, HeaderState::kValid);
    });
    ring.MakeWriter();
    reading.join();
    ASSERT_EQ(std::memcmp(&seen, &ring.identity(), sizeof seen), 0);
  }
}

}  // namespace
}  // namespace lossgauge::ring
