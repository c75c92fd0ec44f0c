#include "proto/lossgauge/ring/ring_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/proto/test_ring.h"

namespace lossgauge::ring {
namespace {

void Write(RingWriter<>* writer, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) writer->Publish(NumberedRecord(writer->published() + 1));
}

TEST(RingReader, SeesNothingInANewRing) {
  TestRing ring(8);
  ring.MakeWriter();
  auto reader = ring.MakeReader();
  lg_step_record record;
  EXPECT_EQ(reader.Next(&record).fate, ReadFate::kEmpty);
  EXPECT_FALSE(reader.HasTornRecord());
}

TEST(RingReader, DeliversWhatWasWrittenInOrder) {
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter();
  auto reader = ring.MakeReader();
  lg_step_record record;
  for (std::uint64_t n = 1; n <= 20; ++n) {
    Write(&writer, 1);
    const ReadResult result = reader.Next(&record);
    ASSERT_EQ(result.fate, ReadFate::kRecord);
    ASSERT_EQ(result.publication, n);
    ASSERT_TRUE(IsNumberedRecord(record, n));
    ASSERT_EQ(reader.Next(&record).fate, ReadFate::kEmpty);
  }
}

TEST(RingReader, PausedForThreeRingsLosesExactlyTwo) {
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter();
  auto reader = ring.MakeReader();
  Write(&writer, 24);
  lg_step_record record;
  const ReadResult gap = reader.Next(&record);
  EXPECT_EQ(gap.fate, ReadFate::kLapped);
  EXPECT_EQ(gap.publication, 1u);
  EXPECT_EQ(gap.lost, 16u);
  Tally tally;
  Drain(&reader, &tally);
  EXPECT_EQ(tally.delivered, 8u);
  EXPECT_EQ(tally.wrong, 0u);
}

TEST(RingReader, ResumesAtItsCursorAfterARestartAndStillCountsTheGap) {
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter();
  Write(&writer, 5);
  Tally first, second;
  auto before = ring.MakeReader();
  Drain(&before, &first);
  Write(&writer, 24);
  auto after = ring.MakeReader(before.next());
  Drain(&after, &second);
  EXPECT_EQ(first.delivered, 5u);
  EXPECT_EQ(second.delivered, 8u);
  EXPECT_EQ(second.lapped, 16u);
  EXPECT_EQ(first.accounted() + second.accounted(), writer.published());
}

TEST(RingReader, GoesOnAcrossTheWrapOf32Bits) {
  constexpr std::uint64_t kBefore = (std::uint64_t{1} << 32) - 20;
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter(kBefore);
  auto reader = ring.MakeReader(kBefore + 1);
  Tally tally;
  for (int i = 0; i < 40; ++i) {
    Write(&writer, 1);
    Drain(&reader, &tally);
  }
  EXPECT_EQ(tally.delivered, 40u);
  Write(&writer, 30);  // lapped beyond the wrap, too
  Drain(&reader, &tally);
  EXPECT_EQ(tally.delivered, 48u);
  EXPECT_EQ(tally.lapped, 22u);
  EXPECT_EQ(tally.wrong, 0u);
}

// Publishes at the n-th cut point of a reader: the writer that overtakes it there.
struct PublishAt {
  RingWriter<>* writer;
  int* countdown;
  void operator()() const {
    if ((*countdown)-- == 0) Write(writer, 1);
  }
};

TEST(RingReader, OvertakenBetweenAnyTwoLoadsIsLappedAndNeverDeceived) {
  constexpr int kLoads = LG_STEP_SLOT_BYTES / 8 + 1;  // sequence word, payload and checksum, sequence word again
  for (int cut_point = 0; cut_point < kLoads; ++cut_point) {
    TestRing ring(1);
    RingWriter<> writer = ring.MakeWriter();
    Write(&writer, 1);
    int countdown = cut_point;
    RingReader<lg_step_record, PublishAt> reader(ring.memory(), ring.identity(), 1, PublishAt{&writer, &countdown});
    lg_step_record record;
    const ReadResult first = reader.Next(&record);
    if (cut_point == kLoads - 1) {
      ASSERT_EQ(first.fate, ReadFate::kRecord) << "the second look was over";
      ASSERT_TRUE(IsNumberedRecord(record, 1));
    } else {
      ASSERT_EQ(first.fate, ReadFate::kLapped) << "cut point " << cut_point;
      ASSERT_EQ(first.lost, 1u);
    }
    ASSERT_EQ(reader.Next(&record).fate, ReadFate::kRecord);
    ASSERT_TRUE(IsNumberedRecord(record, 2));
    ASSERT_LT(countdown, 0) << "the cut point was reached";
  }
}

TEST(RingReader, SkipsARecordOfWhichAnyWordChangedAndGoesOn) {
  constexpr std::uint64_t kWords = LG_STEP_SLOT_BYTES / 8;
  for (std::uint64_t word = 1; word < kWords; ++word) {
    TestRing ring(8);
    RingWriter<> writer = ring.MakeWriter();
    Write(&writer, 3);
    ring.Slot(2)[word] ^= std::uint64_t{1} << (word % 64);
    auto reader = ring.MakeReader();
    Tally tally;
    Drain(&reader, &tally);
    ASSERT_EQ(tally.delivered, 2u) << "word " << word;
    ASSERT_EQ(tally.corrupt, 1u) << "word " << word;
    ASSERT_EQ(tally.unsettled, 0u) << "nobody can have begun to overwrite it";
    ASSERT_EQ(tally.wrong, 0u);
  }
}

TEST(RingReader, SkipsASlotWhoseSequenceWordWasOverwritten) {
  for (const std::uint64_t sequence :
       {UINT64_C(0), UINT64_C(1), UINT64_C(2), UINT64_C(5), UINT64_C(6), UINT64_C(1) << 63, ~UINT64_C(0)}) {
    TestRing ring(8);
    RingWriter<> writer = ring.MakeWriter();
    Write(&writer, 3);
    ring.Slot(2)[0] = sequence;
    auto reader = ring.MakeReader();
    Tally tally;
    Drain(&reader, &tally);
    EXPECT_EQ(tally.delivered, 2u) << sequence;
    EXPECT_EQ(tally.corrupt, 1u) << sequence;
  }
}

TEST(RingReader, DoesNotBelieveACursorThatItsSlotContradicts) {
  for (const std::uint64_t cursor : {UINT64_C(5), UINT64_C(1) << 40, UINT64_C(1) << 62, ~UINT64_C(0)}) {
    TestRing ring(8);
    RingWriter<> writer = ring.MakeWriter();
    Write(&writer, 3);
    ring.header()->cursor = cursor;
    auto reader = ring.MakeReader();
    Tally tally;
    Drain(&reader, &tally);
    EXPECT_EQ(tally.delivered, 3u);
    EXPECT_EQ(tally.lapped, 0u);
    EXPECT_TRUE(tally.damaged) << cursor;
  }
}

TEST(RingReader, DoesNotCountOneByOneUpToACursorThatItsSlotBearsOut) {
  constexpr std::uint64_t kFar = UINT64_C(1) << 40;
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter();
  Write(&writer, 3);
  ring.header()->cursor = kFar;
  ring.Slot(kFar)[0] = 2 * kFar;
  auto reader = ring.MakeReader(4);
  lg_step_record record;
  int calls = 0;
  std::uint64_t lost = 0;
  for (ReadResult result{}; calls < 100 && (result = reader.Next(&record)).fate != ReadFate::kEmpty; ++calls)
    lost += result.lost;
  EXPECT_LE(calls, 10);
  EXPECT_EQ(lost, kFar - 3);
}

TEST(RingReader, OfAnotherSegmentsRecordRefusesIt) {
  TestRing ring(8), other(8);
  other.identity().segment_id[0] ^= 1;
  RingWriter<> writer = ring.MakeWriter();
  RingWriter<> other_writer = other.MakeWriter();
  Write(&writer, 1);
  Write(&other_writer, 1);
  std::memcpy(ring.Slot(1), other.Slot(1), LG_STEP_SLOT_BYTES);
  auto reader = ring.MakeReader();
  Tally tally;
  Drain(&reader, &tally);
  EXPECT_EQ(tally.corrupt, 1u);
  EXPECT_EQ(tally.delivered, 0u);
}

// The record as a later minor may have it: 16 words appended before the checksum.
struct LongerRecord {
  std::uint64_t sequence;
  std::uint64_t payload[94];
  std::uint64_t appended[16];
  std::uint64_t checksum;
};
static_assert(sizeof(LongerRecord) == 112 * 8);

TEST(RingReader, ReadsTheKnownPartOfALaterMinorsRecord) {
  TestRing ring(16);
  lg_ring_identity& identity = ring.identity();
  identity.abi_minor = 1;
  identity.slot_bytes = sizeof(LongerRecord);
  identity.record_words = sizeof(LongerRecord) / 8;
  identity.slot_count = 8;
  RingWriter<> writer = ring.MakeWriter();
  LongerRecord written{};
  const lg_step_record known = NumberedRecord(1);
  std::memcpy(&written, &known, sizeof known - 8);
  written.appended[15] = 77;
  writer.Publish(written);
  lg_ring_identity read;
  ASSERT_EQ(ring.Judge(&read), HeaderState::kValid);
  RingReader<lg_step_record> reader(ring.memory(), read);
  lg_step_record record;
  ASSERT_EQ(reader.Next(&record).fate, ReadFate::kRecord);
  EXPECT_TRUE(IsNumberedRecord(record, 1));
  // A word that this reader does not know is still covered by the checksum.
  writer.Publish(written);
  ring.Slot(2);
  reinterpret_cast<std::uint64_t*>(static_cast<char*>(ring.memory()) + LG_RING_HEADER_BYTES + sizeof(LongerRecord))[100] ^= 1;
  EXPECT_EQ(reader.Next(&record).fate, ReadFate::kCorrupt);
}

TEST(RingReader, LeavesWordsZeroThatAnOlderMinorDidNotWrite) {
  TestRing ring(8);
  RingWriter<> writer = ring.MakeWriter();
  Write(&writer, 1);
  lg_ring_identity read;
  ASSERT_EQ(ring.Judge(&read), HeaderState::kValid);
  RingReader<LongerRecord> reader(ring.memory(), read);
  LongerRecord record;
  std::memset(&record, 0xff, sizeof record);
  ASSERT_EQ(reader.Next(&record).fate, ReadFate::kRecord);
  const lg_step_record known = NumberedRecord(1);
  EXPECT_EQ(std::memcmp(record.payload, reinterpret_cast<const char*>(&known) + 8, sizeof record.payload), 0);
  for (const std::uint64_t word : record.appended) EXPECT_EQ(word, 0u);
}

TEST(RingReader, SurvivesRandomBytesInTheWholeSegment) {
  std::mt19937_64 random(3);
  TestRing ring(4);
  std::uint64_t delivered = 0;
  for (int round = 0; round < 20000; ++round) {
    auto* words = static_cast<std::uint64_t*>(ring.memory());
    for (std::size_t i = 0; i < ring.bytes() / 8; ++i) words[i] = random();
    // Half of the rounds get past the header, and sequence words and cursor are near to plausible ones.
    if (round % 2 == 0) {
      ring.header()->identity = ring.identity();
      ring.header()->ready = LG_RING_READY;
      ring.header()->cursor = random() % 16;
      for (std::uint64_t n = 1; n <= 4; ++n) ring.Slot(n)[0] = random() % 32;
    }
    lg_ring_identity identity;
    if (ring.Judge(&identity) != HeaderState::kValid) continue;
    RingReader<lg_step_record> reader(ring.memory(), identity, random() % 8);
    lg_step_record record;
    int calls = 0;
    for (; calls < 100; ++calls) {
      const ReadFate fate = reader.Next(&record).fate;
      if (fate == ReadFate::kRecord) ++delivered;
      if (fate == ReadFate::kEmpty || fate == ReadFate::kDamaged) break;
    }
    ASSERT_LT(calls, 100) << "a drain loop must come to its end";
  }
  EXPECT_EQ(delivered, 0u) << "random bytes passed a 64-bit checksum";
}

}  // namespace
}  // namespace lossgauge::ring
