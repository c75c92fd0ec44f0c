#include "proto/lossgauge/ring/ring_validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/proto/test_ring.h"

namespace lossgauge::ring {
namespace {

using ::testing::HasSubstr;

class Header : public ::testing::Test {
 protected:
  HeaderState Judge() { return ValidateHeader(file_bytes_, ready_, id_); }
  std::string Sentence() { return DescribeHeader(Judge(), file_bytes_, id_); }

  lg_ring_identity id_ = TestIdentity(LG_RING_KIND_STEPS, 512);
  std::uint64_t file_bytes_ = RingFileBytes(LG_STEP_SLOT_BYTES, 512);
  std::uint64_t ready_ = LG_RING_READY;
};

TEST_F(Header, AsWrittenIsValid) { EXPECT_EQ(Judge(), HeaderState::kValid); }

TEST_F(Header, AnEmptyFileIsPending) {
  file_bytes_ = 0;
  EXPECT_EQ(Judge(), HeaderState::kNoContent);
  EXPECT_TRUE(IsPending(Judge()));
}

TEST_F(Header, OfZerosIsPending) {
  id_ = {};
  ready_ = 0;
  EXPECT_EQ(Judge(), HeaderState::kNotReady);
  EXPECT_TRUE(IsPending(Judge()));
}

TEST_F(Header, WrittenButNotPublishedIsPending) {
  ready_ = 0;
  EXPECT_EQ(Judge(), HeaderState::kNotReady);
}

TEST_F(Header, ShorterThanAHeaderIsNamed) {
  file_bytes_ = 4095;
  EXPECT_EQ(Judge(), HeaderState::kTooShort);
  EXPECT_THAT(Sentence(), HasSubstr("4095"));
}

TEST_F(Header, OfAForeignFileIsNamedWhetherOrNotItLooksReady) {
  id_.magic = 0x464c457f;
  EXPECT_EQ(Judge(), HeaderState::kBadMagic);
  ready_ = 0;
  EXPECT_EQ(Judge(), HeaderState::kBadMagic);
  EXPECT_FALSE(IsPending(Judge()));
}

TEST_F(Header, OfTheOtherByteOrderIsNamed) {
  id_.magic = __builtin_bswap64(LG_RING_MAGIC);
  id_.byte_order = __builtin_bswap32(LG_RING_BYTE_ORDER);
  EXPECT_EQ(Judge(), HeaderState::kOtherByteOrder);
}

TEST_F(Header, OfMajorZeroIsRefusedNamingBothVersions) {
  id_.abi_major = 0;
  id_.abi_minor = 7;
  EXPECT_EQ(Judge(), HeaderState::kOtherMajor);
  EXPECT_THAT(Sentence(), HasSubstr("ABI 0.7"));
  EXPECT_THAT(Sentence(), HasSubstr("knows ABI 1.0"));
}

TEST_F(Header, OfTheNextMajorIsRefusedWhateverElseItSays) {
  id_.abi_major = 2;
  id_.slot_bytes = 3;
  EXPECT_EQ(Judge(), HeaderState::kOtherMajor);
  EXPECT_THAT(Sentence(), HasSubstr("ABI 2.0"));
}

TEST_F(Header, OfALaterMinorIsValidAndMayHaveLongerSlots) {
  id_.abi_minor = 1;
  id_.slot_bytes = 1024;
  id_.record_words = 128;
  file_bytes_ = RingFileBytes(1024, 512);
  EXPECT_EQ(Judge(), HeaderState::kValid);
}

TEST_F(Header, OfAnUnknownKindIsNamed) {
  id_.kind = 3;
  EXPECT_EQ(Judge(), HeaderState::kUnknownKind);
  EXPECT_THAT(Sentence(), HasSubstr("kind is 3"));
}

TEST_F(Header, WhoseFileEndsEarlyIsTruncated) {
  --file_bytes_;
  EXPECT_EQ(Judge(), HeaderState::kTruncated);
  file_bytes_ = LG_RING_HEADER_BYTES;  // header written, body not
  EXPECT_EQ(Judge(), HeaderState::kTruncated);
  EXPECT_THAT(Sentence(), HasSubstr("4096"));
}

TEST_F(Header, OfSizesOutOfBoundsIsRefused) {
  const lg_ring_identity good = id_;
  const auto with = [&](auto change) {
    id_ = good;
    change(id_);
    file_bytes_ = std::numeric_limits<std::uint64_t>::max();
    return Judge();
  };
  using Id = lg_ring_identity;
  EXPECT_EQ(with([](Id& id) { id.slot_bytes = 760, id.record_words = 95; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_bytes = 0, id.record_words = 0; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_bytes = 4104, id.record_words = 513; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_bytes = 772; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.record_words = 97; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_count = 0; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_count = 65537; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_count = 0xffffffff; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.header_bytes = 4032; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.header_bytes = 4097; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.header_bytes = 0xffffffc0; }), HeaderState::kBadSizes);
  EXPECT_EQ(with([](Id& id) { id.slot_count = 65536, id.slot_bytes = 4096, id.record_words = 512; }), HeaderState::kValid);
}

TEST(FieldText, EndsAtItsNulOrAtItsField) {
  const char field[8] = {'a', 'b', 0, 'c'};
  EXPECT_EQ(FieldText(field, sizeof field), "ab");
  const char full[4] = {'a', 'b', 'c', 'd'};
  EXPECT_EQ(FieldText(full, sizeof full), "abcd");
  EXPECT_EQ(FieldText(full, 0), "");
}

TEST(StepRecord, IsJudgedByItsMeaning) {
  lg_step_record record{};
  record.tokens = 8;
  record.unmasked_tokens = 5;
  record.finite_tokens = 4;
  record.nonfinite_rows = 1;
  record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(ValidateRecord(record), RecordState::kValid);
  const auto with = [&record](auto change) {
    lg_step_record changed = record;
    change(changed);
    return ValidateRecord(changed);
  };
  using R = lg_step_record;
  EXPECT_EQ(with([](R& r) { r.step = -1; }), RecordState::kBadStep);
  EXPECT_EQ(with([](R& r) { r.step = kMaxStep + 1; }), RecordState::kBadStep);
  EXPECT_EQ(with([](R& r) { r.block = 8; }), RecordState::kBadBlock);
  EXPECT_EQ(with([](R& r) { r.unmasked_tokens = 9; }), RecordState::kBadCounts);
  EXPECT_EQ(with([](R& r) { r.finite_tokens = 6; }), RecordState::kBadCounts);
  EXPECT_EQ(with([](R& r) { r.nonfinite_rows = 6; }), RecordState::kBadCounts);
  EXPECT_EQ(with([](R& r) { r.total_finite_tokens = 1; }), RecordState::kBadCounts);
}

TEST(EventRecord, IsJudgedByItsMeaning) {
  lg_event_record record{};
  record.kind = LG_EVENT_NOTE;
  record.step = -1;
  EXPECT_EQ(ValidateRecord(record), RecordState::kValid);
  record.kind = 99;  // of a later minor
  EXPECT_EQ(ValidateRecord(record), RecordState::kValid);
  record.kind = 0;
  EXPECT_EQ(ValidateRecord(record), RecordState::kBadEvent);
  record.kind = LG_EVENT_NOTE;
  record.step = -2;
  EXPECT_EQ(ValidateRecord(record), RecordState::kBadStep);
}

}  // namespace
}  // namespace lossgauge::ring
