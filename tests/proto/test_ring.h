// A ring in anonymous memory that a forked child shares, with a small language for tests: Write(), Read(), Expect...
#ifndef LOSSGAUGE_TESTS_PROTO_TEST_RING_H_
#define LOSSGAUGE_TESTS_PROTO_TEST_RING_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "proto/lossgauge/ring/ring_reader.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge::ring {

inline lg_ring_identity TestIdentity(std::uint32_t kind, std::uint32_t slot_count) {
  lg_ring_identity identity{};
  SetFormat(&identity, kind);
  identity.slot_count = slot_count;
  identity.segment_id[0] = UINT64_C(0x1122334455667788);
  identity.segment_id[1] = UINT64_C(0x99aabbccddeeff00);
  identity.layout.world_size = 1;
  identity.layout.dp = identity.layout.tp = identity.layout.pp = identity.layout.cp = identity.layout.ep = {1, 0};
  std::strcpy(identity.run, "test");
  std::strcpy(identity.attempt, "1");
  return identity;
}

// A record all of whose payload words are a function of n, so that a mixture of two records is never mistaken for one.
inline lg_step_record NumberedRecord(std::uint64_t n) {
  std::uint64_t words[sizeof(lg_step_record) / 8];
  for (std::uint64_t i = 0; i < sizeof words / 8; ++i) words[i] = lg_ring_mix(n * 1000 + i);
  lg_step_record record;
  std::memcpy(&record, words, sizeof record);
  record.step = static_cast<std::int64_t>(n);
  return record;
}

inline bool IsNumberedRecord(const lg_step_record& record, std::uint64_t n) {
  const lg_step_record expected = NumberedRecord(n);
  constexpr std::size_t kPayload = sizeof record - 16;  // without sequence and checksum
  return std::memcmp(reinterpret_cast<const char*>(&record) + 8, reinterpret_cast<const char*>(&expected) + 8, kPayload) == 0;
}

class TestRing {
 public:
  explicit TestRing(std::uint32_t slot_count, std::uint32_t kind = LG_RING_KIND_STEPS)
      : identity_(TestIdentity(kind, slot_count)), bytes_(RingFileBytes(identity_.slot_bytes, slot_count)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  ~TestRing() { ::munmap(memory_, bytes_); }
  TestRing(const TestRing&) = delete;
  TestRing& operator=(const TestRing&) = delete;

  void* memory() { return memory_; }
  std::size_t bytes() const { return bytes_; }
  lg_ring_header* header() { return static_cast<lg_ring_header*>(memory_); }
  std::uint64_t* Slot(std::uint64_t publication) {
    return reinterpret_cast<std::uint64_t*>(static_cast<char*>(memory_) + identity_.header_bytes +
                                            (publication - 1) % identity_.slot_count * identity_.slot_bytes);
  }
  lg_ring_identity& identity() { return identity_; }

  RingWriter<> MakeWriter(std::uint64_t published = 0) { return RingWriter<>(memory_, identity_, published); }
  HeaderState Judge(lg_ring_identity* identity) { return ReadHeader(memory_, bytes_, identity); }
  RingReader<lg_step_record> MakeReader(std::uint64_t next = 1) { return RingReader<lg_step_record>(memory_, identity_, next); }

 private:
  lg_ring_identity identity_;
  std::size_t bytes_;
  void* memory_;
};

// What a reader met until it found nothing new.
struct Tally {
  std::uint64_t delivered = 0;
  std::uint64_t lapped = 0;
  std::uint64_t corrupt = 0;
  std::uint64_t wrong = 0;  // delivered, but not the record that was written
  std::uint64_t unsettled = 0;
  bool damaged = false;
  std::uint64_t accounted() const { return delivered + lapped + corrupt; }
};

inline void Drain(RingReader<lg_step_record>* reader, Tally* tally) {
  lg_step_record record;
  for (;;) {
    const ReadResult result = reader->Next(&record);
    switch (result.fate) {
      case ReadFate::kRecord:
        ++tally->delivered;
        if (!IsNumberedRecord(record, result.publication) || record.sequence != 2 * result.publication) ++tally->wrong;
        break;
      case ReadFate::kUnsettled:
        ++tally->unsettled;
        break;
      case ReadFate::kLapped:
        tally->lapped += result.lost;
        break;
      case ReadFate::kCorrupt:
        tally->corrupt += result.lost;
        break;
      case ReadFate::kDamaged:
        tally->damaged = true;
        return;
      case ReadFate::kEmpty:
        return;
    }
  }
}

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_TESTS_PROTO_TEST_RING_H_
