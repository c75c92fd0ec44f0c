// Bytes that a released version wrote stay readable, and today's writer still writes them.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/ring_reader.h"
#include "tests/proto/golden/golden_records.h"

namespace lossgauge::ring {
namespace {

std::vector<std::uint64_t> ReadWords(const std::string& name) {
  std::ifstream file(std::string(LOSSGAUGE_GOLDEN_DIR) + "/" + name, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), words.size() * 8);
  return words;
}

template <class Record>
void ExpectGolden(const std::string& name, std::uint32_t kind, Record (*make)(std::uint64_t)) {
  const std::vector<std::uint64_t> words = ReadWords(name);
  ASSERT_FALSE(words.empty()) << name;
  lg_ring_identity identity;
  ASSERT_EQ(ReadHeader(words.data(), words.size() * 8, &identity), HeaderState::kValid);
  const lg_ring_identity expected_identity = GoldenIdentity(kind);
  EXPECT_EQ(std::memcmp(&identity, &expected_identity, sizeof identity), 0);

  RingReader<Record> reader(words.data(), identity);
  Record record;
  const ReadResult gap = reader.Next(&record);
  EXPECT_EQ(gap.fate, ReadFate::kLapped);
  EXPECT_EQ(gap.lost, 2u);
  for (std::uint64_t n = 3; n <= kGoldenPublications; ++n) {
    ASSERT_EQ(reader.Next(&record).fate, ReadFate::kRecord) << n;
    const Record expected = make(n);
    for (std::size_t word = 1; word + 1 < sizeof record / 8; ++word) {
      std::uint64_t got, want;
      std::memcpy(&got, reinterpret_cast<const char*>(&record) + 8 * word, 8);
      std::memcpy(&want, reinterpret_cast<const char*>(&expected) + 8 * word, 8);
      EXPECT_EQ(got, want) << "publication " << n << ", word " << word;
    }
  }
  EXPECT_EQ(reader.Next(&record).fate, ReadFate::kEmpty);

  std::vector<std::uint64_t> again(words.size());
  RingWriter<> writer(again.data(), expected_identity);
  for (std::uint64_t n = 1; n <= kGoldenPublications; ++n) writer.Publish(make(n));
  EXPECT_EQ(again, words) << "the writer's bytes changed: that needs a new minor and new golden files beside these";
}

TEST(GoldenBytes, OfStepsAbi10AreReadable) { ExpectGolden("abi_1_0.steps", LG_RING_KIND_STEPS, &GoldenStep); }
TEST(GoldenBytes, OfEventsAbi10AreReadable) { ExpectGolden("abi_1_0.events", LG_RING_KIND_EVENTS, &GoldenEvent); }

// Spelled out once by hand, so that a mistake shared by writer and reader shows.
TEST(GoldenBytes, HaveTheWordsOfTheSpecification) {
  const std::vector<std::uint64_t> words = ReadWords("abi_1_0.steps");
  ASSERT_EQ(words.size(), (4096u + 4 * 768) / 8);
  EXPECT_EQ(std::memcmp(words.data(), "LGLRING1", 8), 0);
  EXPECT_EQ(words[1], 1u);                                   // major 1, minor 0
  EXPECT_EQ(words[2], UINT64_C(0x0000000101020304));         // byte order, kind
  EXPECT_EQ(words[3584 / 8], UINT64_C(0x59444145525f474c));  // "LG_READY"
  EXPECT_EQ(words[3648 / 8], 6u);                            // cursor
  const std::uint64_t* slot = &words[(4096 + 768) / 8];      // of publications 2 and 6
  EXPECT_EQ(slot[0], 12u);
  EXPECT_EQ(slot[2], 106u);
  EXPECT_EQ(slot[14], 14u);
  EXPECT_EQ(static_cast<std::int64_t>(slot[15]), -15);
  EXPECT_EQ(slot[76], 76u);
}

}  // namespace
}  // namespace lossgauge::ring
