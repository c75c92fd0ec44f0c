// The producer's side of a ring, over memory that someone else mapped. ring_abi.h is the specification; this is its host
// writer.
//
// Ownership: the writer neither maps nor frees. Threads: one writer per ring at a time; any number of readers, in any process.
// Nothing here waits, allocates, fails or calls the system. C++17.
#ifndef LOSSGAUGE_RING_RING_WRITER_H_
#define LOSSGAUGE_RING_RING_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/lossgauge/ring/cut_points.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::ring {

// Stores with their order in the name. A release store publishes everything that this thread stored before it.
inline void StoreRelease(std::uint64_t* word, std::uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void StoreRelaxed(std::uint64_t* word, std::uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
inline void StoreRelease(std::int64_t* word, std::int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void StoreRelaxed(std::int64_t* word, std::int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

// Bytes of a ring file with this many slots.
constexpr std::size_t RingFileBytes(std::uint32_t slot_bytes, std::uint32_t slot_count) {
  return LG_RING_HEADER_BYTES + static_cast<std::size_t>(slot_bytes) * slot_count;
}

// Fills in the words that say what a file is; the caller adds segment, times, producer, layout, names.
inline void SetFormat(lg_ring_identity* identity, std::uint32_t kind) {
  const bool steps = kind == LG_RING_KIND_STEPS;
  identity->magic = LG_RING_MAGIC;
  identity->abi_major = LG_RING_ABI_MAJOR;
  identity->abi_minor = LG_RING_ABI_MINOR;
  identity->byte_order = LG_RING_BYTE_ORDER;
  identity->kind = kind;
  identity->header_bytes = LG_RING_HEADER_BYTES;
  identity->slot_bytes = steps ? LG_STEP_SLOT_BYTES : LG_EVENT_SLOT_BYTES;
  identity->slot_count = steps ? LG_STEP_SLOT_COUNT : LG_EVENT_SLOT_COUNT;
  identity->record_words = identity->slot_bytes / 8;
}

// CutPoints: called after every store that a reader could see.
template <class CutPoints = NoCutPoints>
class RingWriter {
 public:
  // `base`: zeroed, writable, page-aligned, RingFileBytes() long. Writes the header, ready word last. `published` > 0 starts
  // the numbering there, as if so many records had gone before (tests of the wrap at 2^32).
  RingWriter(void* base, const lg_ring_identity& identity, std::uint64_t published = 0, CutPoints cut_points = CutPoints())
      : header_(static_cast<lg_ring_header*>(base)),
        slots_(static_cast<unsigned char*>(base) + identity.header_bytes),
        segment_id_{identity.segment_id[0], identity.segment_id[1]},
        slot_bytes_(identity.slot_bytes),
        slot_count_(identity.slot_count),
        words_(identity.record_words),
        published_(published),
        cut_points_(cut_points) {
    // Plain copy: no reader looks at it before `ready`, but for the magic, by which it tells a foreign file from an unfinished
    // one.
    constexpr std::size_t kMagicBytes = sizeof identity.magic;
    std::memcpy(reinterpret_cast<unsigned char*>(&header_->identity) + kMagicBytes,
                reinterpret_cast<const unsigned char*>(&identity) + kMagicBytes, sizeof identity - kMagicBytes);
    cut_points_();
    StoreRelaxed(&header_->identity.magic, identity.magic);
    cut_points_();
    StoreRelaxed(&header_->status.enqueued_step, -1);
    StoreRelaxed(&header_->status.published_step, -1);
    StoreRelaxed(&header_->status.entered_step, -1);
    StoreRelaxed(&header_->status.heartbeat_boot_ns, identity.created_boot_ns);
    StoreRelaxed(&header_->cursor, published);
    cut_points_();
    StoreRelease(&header_->ready, LG_RING_READY);  // publishes the identity
    cut_points_();
  }

  // Writes `record` (record_words words; its sequence and checksum words are filled in here) as the next publication and
  // returns its number. Overwrites the oldest slot, whether or not it was read.
  template <class Record>
  std::uint64_t Publish(const Record& record) {
    static_assert(sizeof(Record) % 8 == 0 && sizeof(Record) <= LG_MAX_SLOT_BYTES, "a record is whole words");
    std::uint64_t words[sizeof(Record) / 8];
    std::memcpy(words, &record, sizeof words);
    const std::uint64_t number = published_ + 1;
    auto* slot = reinterpret_cast<std::uint64_t*>(slots_ + (number - 1) % slot_count_ * slot_bytes_);
    const std::uint64_t last = sizeof(Record) / 8 - 1;
    words[0] = 2 * number;
    words[last] = lg_ring_checksum(segment_id_, words, words_);

    StoreRelaxed(&slot[0], 2 * number - 1);
    cut_points_();
    for (std::uint64_t i = 1; i <= last; ++i) {
      StoreRelease(&slot[i], words[i]);  // keeps the odd sequence word before it: who sees this word sees that one
      cut_points_();
    }
    StoreRelease(&slot[0], 2 * number);  // publishes the record
    cut_points_();
    StoreRelease(&header_->cursor, number);
    cut_points_();
    published_ = number;
    return number;
  }

  std::uint64_t published() const { return published_; }
  lg_ring_status* status() { return &header_->status; }

 private:
  lg_ring_header* const header_;
  unsigned char* const slots_;
  const std::uint64_t segment_id_[2];
  const std::uint32_t slot_bytes_;
  const std::uint32_t slot_count_;
  const std::uint32_t words_;
  std::uint64_t published_;
  CutPoints cut_points_;
};

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_RING_WRITER_H_
