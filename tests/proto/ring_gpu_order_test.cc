// What a reader makes of the orders in which a GPU's stores may be seen: payload before its odd word, the cursor late. Stores are made here one by one.
#include <gtest/gtest.h>

#include <vector>

#include "tests/proto/test_ring.h"

namespace lossgauge::ring {
namespace {

constexpr std::uint64_t kSlots = 8, kWords = LG_STEP_SLOT_BYTES / 8;

class GpuWriter {
 public:
  explicit GpuWriter(TestRing* ring) : ring_(ring) { ring->MakeWriter(); }
  void Odd(std::uint64_t n) { StoreRelaxed(ring_->Slot(n), 2 * n - 1); }
  // Words 1 to count of publication n; the checksum is the last of all.
  void Payload(std::uint64_t n, std::uint64_t count = kWords - 1) {
    for (std::uint64_t i = 1; i <= count; ++i) Word(n, i);
  }
  void Word(std::uint64_t n, std::uint64_t i) {
    const lg_step_record record = NumberedRecord(n);
    std::uint64_t words[kWords];
    std::memcpy(words, &record, sizeof words);
    words[0] = 2 * n;
    words[kWords - 1] = lg_ring_checksum(ring_->identity().segment_id, words, kWords);
    StoreRelaxed(ring_->Slot(n) + i, words[i]);
  }
  void Even(std::uint64_t n) { StoreRelease(ring_->Slot(n), 2 * n); }
  void Cursor(std::uint64_t n) { StoreRelease(&ring_->header()->cursor, n); }
  void Publish(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) Odd(n), Payload(n), Even(n), Cursor(n - 1);
  }

 private:
  TestRing* ring_;
};

struct Fixture {
  TestRing ring{kSlots};
  GpuWriter gpu{&ring};
};

TEST(RingGpuOrder, ARecordIsDeliveredBeforeTheCursorCountsIt) {
  Fixture f;
  auto reader = f.ring.MakeReader();
  lg_step_record record;
  for (std::uint64_t n = 1; n <= 3 * kSlots; ++n) {
    f.gpu.Publish(n, n);
    ASSERT_EQ(reader.Next(&record).fate, ReadFate::kRecord) << n;
    ASSERT_TRUE(IsNumberedRecord(record, n));
    ASSERT_EQ(reader.Next(&record).fate, ReadFate::kEmpty);
    ASSERT_EQ(reader.published_untrusted(), n);
  }
}

TEST(RingGpuOrder, AMixtureWithTheNextLapIsLappedAsSoonAsItsOddWordIsSeen) {
  for (std::uint64_t count = 1; count < kWords; ++count) {
    Fixture f;
    f.gpu.Publish(1, kSlots);
    f.gpu.Payload(kSlots + 1, count);
    auto reader = f.ring.MakeReader();
    lg_step_record record;
    for (int call = 0; call < 2; ++call) {
      ASSERT_EQ(reader.Next(&record).fate, ReadFate::kUnsettled) << count << " words";
      ASSERT_EQ(reader.next(), 1u) << "nothing is consumed";
    }
    f.gpu.Odd(kSlots + 1);
    const ReadResult gap = reader.Next(&record);
    ASSERT_EQ(gap.fate, ReadFate::kLapped);
    ASSERT_EQ(gap.lost, 1u);
    Tally tally;
    Drain(&reader, &tally);
    ASSERT_EQ(tally.delivered, kSlots - 1);
    f.gpu.Payload(kSlots + 1);
    f.gpu.Even(kSlots + 1);
    Drain(&reader, &tally);
    ASSERT_EQ(tally.delivered, kSlots);
    ASSERT_EQ(tally.wrong + tally.corrupt + tally.lapped, 0u);
  }
}

// The odd word comes while a call looks: at any of its loads.
struct OddAt {
  GpuWriter* gpu;
  int* countdown;
  void operator()() const {
    if ((*countdown)-- == 0) gpu->Odd(kSlots + 1);
  }
};

TEST(RingGpuOrder, AMixtureWhoseOddWordFollowsWithinMicrosecondsIsSettledInTheSameCall) {
  constexpr int kLoadsOfALook = static_cast<int>(kWords) + 1;
  for (int cut_point = 0; cut_point < 20 * kLoadsOfALook; cut_point += 7) {
    Fixture f;
    f.gpu.Publish(1, kSlots);
    f.gpu.Payload(kSlots + 1, 40);
    int countdown = cut_point;
    RingReader<lg_step_record, OddAt> reader(f.ring.memory(), f.ring.identity(), 1, OddAt{&f.gpu, &countdown});
    lg_step_record record;
    const ReadResult gap = reader.Next(&record);
    ASSERT_EQ(gap.fate, ReadFate::kLapped) << "cut point " << cut_point;
    ASSERT_EQ(gap.lost, 1u);
  }
}

TEST(RingGpuOrder, AMixtureThatStaysOneIsCountedCorruptAfterAFewCalls) {
  Fixture f;
  f.gpu.Publish(1, kSlots);
  f.gpu.Payload(kSlots + 1, 40);
  auto reader = f.ring.MakeReader();
  Tally tally;
  Drain(&reader, &tally);
  EXPECT_EQ(tally.unsettled, 3u);
  EXPECT_EQ(tally.corrupt, 1u);
  EXPECT_EQ(tally.delivered, kSlots - 1);
  EXPECT_EQ(tally.lapped, 0u);
  f.gpu.Publish(kSlots + 1, kSlots + 1);
  Drain(&reader, &tally);
  EXPECT_EQ(tally.accounted(), kSlots + 1);
  EXPECT_EQ(tally.wrong, 0u);
}

TEST(RingGpuOrder, EachUnsettledRecordHasItsOwnPatience) {
  Fixture f;
  f.gpu.Publish(1, kSlots);
  for (std::uint64_t n : {1, 2}) f.gpu.Payload(kSlots + n, 40);
  auto reader = f.ring.MakeReader();
  Tally tally;
  Drain(&reader, &tally);
  EXPECT_EQ(tally.unsettled, 6u);
  EXPECT_EQ(tally.corrupt, 2u);
  EXPECT_EQ(tally.accounted(), kSlots);
}

TEST(RingGpuOrder, WhereTheNextLapCannotHaveBegunAWrongChecksumIsCorruptAtOnce) {
  for (std::uint64_t n = 1; n <= kSlots; ++n) {
    Fixture f;
    f.gpu.Publish(1, kSlots);  // the cursor says one less: what can be under way is at most kMostAheadOfCursor beyond that
    *(f.ring.Slot(n) + 7) ^= 1;
    auto reader = f.ring.MakeReader();
    Tally tally;
    Drain(&reader, &tally);
    EXPECT_EQ(tally.corrupt, 1u);
    EXPECT_EQ(tally.delivered, kSlots - 1);
    EXPECT_EQ(tally.unsettled, n + kSlots <= kSlots - 1 + kMostAheadOfCursor ? 3u : 0u) << n;
  }
}

// However late the cursor is, and whether or not one more was begun: a reader of a ring at rest loses nothing that it still holds.
TEST(RingGpuOrder, ALateReaderOfARestingRingFindsAllThatItHolds) {
  constexpr std::uint64_t kPublished = 3 * kSlots + 2;
  for (std::uint64_t behind = 0; behind < kMostAheadOfCursor; ++behind) {
    for (const bool torn : {false, true}) {
      Fixture f;
      f.gpu.Publish(1, kPublished);
      f.gpu.Cursor(kPublished - behind);
      if (torn) f.gpu.Odd(kPublished + 1);
      auto reader = f.ring.MakeReader();
      EXPECT_EQ(reader.published_untrusted(), kPublished);
      Tally tally;
      Drain(&reader, &tally);
      EXPECT_EQ(tally.delivered, torn ? kSlots - 1 : kSlots) << behind << " behind";
      EXPECT_EQ(tally.accounted(), kPublished);
      EXPECT_EQ(tally.corrupt + tally.wrong, 0u);
      EXPECT_EQ(reader.HasTornRecord(), torn);
    }
  }
}

// Every store of the writer is followed by a drain: all that a reader can meet, with one slot and with more.
TEST(RingGpuOrder, DrainedAfterEachStoreEveryRecordIsAccountedForOnce) {
  for (const std::uint32_t slots : {1u, 2u, 3u, 4u, 8u}) {
    TestRing ring(slots);
    GpuWriter gpu(&ring);
    auto reader = ring.MakeReader();
    Tally tally;
    constexpr std::uint64_t kRecords = 40;
    for (std::uint64_t n = 1; n <= kRecords; ++n) {
      gpu.Payload(n, 30);
      if (n % 4 == 0) Drain(&reader, &tally);
      gpu.Odd(n);
      if (n % 3 == 0) Drain(&reader, &tally);
      gpu.Payload(n);
      if (n % 5 == 0) Drain(&reader, &tally);
      if (n % 2 == 0) gpu.Cursor(n - 1), gpu.Even(n);
      else gpu.Even(n), gpu.Cursor(n - 1);
      if (n % 7 == 0) Drain(&reader, &tally);
    }
    gpu.Cursor(kRecords);  // the end
    Drain(&reader, &tally);
    EXPECT_EQ(tally.accounted(), kRecords) << slots << " slots";
    EXPECT_EQ(tally.wrong, 0u);
    EXPECT_FALSE(tally.damaged);
    EXPECT_EQ(reader.next(), kRecords + 1);
  }
}

}  // namespace
}  // namespace lossgauge::ring
