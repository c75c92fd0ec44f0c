// The reader's side of a ring, over memory that someone else mapped read-only. Every byte there is untrusted and may change at
// any moment: sizes are taken from a validated copy of the header, records are copied before they are judged.
//
// Ownership: the reader neither maps nor frees. Threads: one thread per reader; any number of readers per ring.
// Accounting: each publication is delivered once or reported lost once, so that written = delivered + lost. C++17.
#ifndef LOSSGAUGE_RING_RING_READER_H_
#define LOSSGAUGE_RING_RING_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/lossgauge/ring/cut_points.h"
#include "proto/lossgauge/ring/ring_abi.h"
#include "proto/lossgauge/ring/ring_validate.h"

namespace lossgauge::ring {

inline std::uint64_t LoadAcquire(const std::uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline std::uint64_t LoadRelaxed(const std::uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
inline std::int64_t LoadAcquire(const std::int64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline std::int64_t LoadRelaxed(const std::int64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

// Copies the header of a mapped file of `file_bytes` bytes (as fstat said, and all of them mapped) and judges it. `identity` is
// filled with zeros unless the state says that the producer has published it (kValid, kOtherMajor, kUnknownKind, kBadSizes,
// kTruncated).
inline HeaderState ReadHeader(const void* mapped, std::uint64_t file_bytes, lg_ring_identity* identity) {
  std::memset(identity, 0, sizeof *identity);
  if (file_bytes < LG_RING_HEADER_BYTES) return ValidateHeader(file_bytes, 0, *identity);
  const auto* header = static_cast<const lg_ring_header*>(mapped);
  const std::uint64_t ready = LoadAcquire(&header->ready);
  identity->magic = LoadRelaxed(&header->identity.magic);
  // Before `ready` the producer may be writing; of a foreign file nothing is worth copying.
  if (ready != 0 && identity->magic == LG_RING_MAGIC) std::memcpy(identity, &header->identity, sizeof *identity);
  return ValidateHeader(file_bytes, ready, *identity);
}

enum class ReadFate {
  kRecord,   // delivered
  kEmpty,    // nothing new
  kLapped,   // `lost` publications were overwritten before they were read; call again
  kCorrupt,  // one publication does not validate (`lost` is 1) and was skipped; call again
  kDamaged,  // cursor and slots contradict each other: no writer of ours did that. Nothing was consumed; stop reading this ring
};

struct ReadResult {
  ReadFate fate;
  std::uint64_t publication;  // of the record, or the first lost one
  std::uint64_t lost;
};

// Reads records of type `Record` (lg_step_record or lg_event_record). A ring whose slots are longer (newer minor) is read up to
// what `Record` knows; one whose slots are shorter (older minor) leaves the rest of the record zero.
// CutPoints: called after every load of a slot's word.
template <class Record, class CutPoints = NoCutPoints>
class RingReader {
 public:
  // `identity`: a copy that ReadHeader judged kValid. `next`: first publication wanted, >= 1 (one more than the last one
  // consumed).
  RingReader(const void* mapped, const lg_ring_identity& identity, std::uint64_t next = 1, CutPoints cut_points = CutPoints())
      : header_(static_cast<const lg_ring_header*>(mapped)),
        slots_(static_cast<const unsigned char*>(mapped) + identity.header_bytes),
        segment_id_{identity.segment_id[0], identity.segment_id[1]},
        slot_bytes_(identity.slot_bytes),
        slot_count_(identity.slot_count),
        words_(identity.record_words),
        next_(next == 0 ? 1 : next),
        cut_points_(cut_points) {}

  // The next publication, whatever became of it. Never waits. `record` is written only with kRecord.
  ReadResult Next(Record* record) {
    const std::uint64_t n = next_;
    const std::uint64_t* slot = Slot(n);
    ReadResult result;
    if (TryRead(n, slot, record, &result)) return result;
    // The cursor is stored after the even sequence word: if it counts n, the slot must hold n or something newer.
    const std::uint64_t cursor = LoadAcquire(&header_->cursor);
    if (cursor < n) return {ReadFate::kEmpty, n, 0};
    if (TryRead(n, slot, record, &result)) return result;
    const std::uint64_t sequence = LoadAcquire(&slot[0]);
    // Trust the cursor only as far as its own slot bears it out.
    const std::uint64_t newest = LoadAcquire(&Slot(cursor)[0]);
    if (cursor > kMaxPublication || !IsPublicationOfSlot(newest, cursor) || newest < 2 * cursor) {
      return {ReadFate::kDamaged, n, 0};
    }
    // So far behind that the slot cannot hold n any more, whatever it says: at most one ring of skips can follow.
    if (cursor - n >= slot_count_) return Lapped(n, cursor);
    if (sequence <= 2 * n || !IsPublicationOfSlot(sequence, n)) return Skip(n);
    return Lapped(n, cursor);
  }

  // The publication that Next() would look at: what a cursor in a database has to keep.
  std::uint64_t next() const { return next_; }
  // Publications that the producer has finished, by its own account. Untrusted.
  std::uint64_t published_untrusted() const { return LoadAcquire(&header_->cursor); }
  // The next publication was begun and is not whole. If the producer is dead, it never will be: count it as torn.
  bool HasTornRecord() const { return LoadAcquire(&Slot(next_)[0]) == 2 * next_ - 1; }

 private:
  static constexpr std::uint64_t kMaxPublication = std::uint64_t{1} << 62;

  const std::uint64_t* Slot(std::uint64_t publication) const {
    return reinterpret_cast<const std::uint64_t*>(slots_ + (publication - 1) % slot_count_ * slot_bytes_);
  }

  // Whether a sequence word may stand in the slot where publication n belongs.
  bool IsPublicationOfSlot(std::uint64_t sequence, std::uint64_t n) const {
    if (sequence == 0 || sequence > 2 * kMaxPublication) return false;
    return (sequence + 1) / 2 % slot_count_ == n % slot_count_;
  }

  // Delivers publication n, or skips it if its bytes are wrong. False: the slot does not hold it (any more).
  bool TryRead(std::uint64_t n, const std::uint64_t* slot, Record* record, ReadResult* result) {
    if (LoadAcquire(&slot[0]) != 2 * n) return false;  // equal: makes the payload of n visible
    cut_points_();
    std::uint64_t words[LG_MAX_SLOT_BYTES / 8];
    words[0] = 2 * n;
    // Acquire on each word: seeing a word of a later publication makes its odd sequence word visible to the look below.
    for (std::uint32_t i = 1; i < words_; ++i) {
      words[i] = LoadAcquire(&slot[i]);
      cut_points_();
    }
    if (LoadRelaxed(&slot[0]) != 2 * n) return false;
    cut_points_();
    if (words[words_ - 1] != lg_ring_checksum(segment_id_, words, words_)) {
      *result = Skip(n);
      return true;
    }
    constexpr std::uint32_t kKnownWords = sizeof(Record) / 8;
    const std::uint32_t payload_end = (words_ < kKnownWords ? words_ : kKnownWords) - 1;  // the last word is the checksum
    std::memset(record, 0, sizeof *record);
    std::memcpy(record, words, payload_end * sizeof(std::uint64_t));
    record->checksum = words[words_ - 1];
    lapped_in_a_row_ = 0;
    next_ = n + 1;
    *result = {ReadFate::kRecord, n, 0};
    return true;
  }

  ReadResult Skip(std::uint64_t n) {
    next_ = n + 1;
    return {ReadFate::kCorrupt, n, 1};
  }

  // Publication n is gone. Goes on at the oldest one that the ring still holds; when that one was overtaken too, the writer is
  // at our heels: half a ring of head start lets us deliver a run of records instead of losing a race for each.
  ReadResult Lapped(std::uint64_t n, std::uint64_t cursor) {
    const std::uint64_t kept = lapped_in_a_row_ == 0 ? slot_count_ : (slot_count_ + 1) / 2;
    std::uint64_t target = cursor >= kept ? cursor - kept + 1 : 1;
    if (target <= n) target = n + 1;
    ++lapped_in_a_row_;
    next_ = target;
    return {ReadFate::kLapped, n, target - n};
  }

  const lg_ring_header* const header_;
  const unsigned char* const slots_;
  const std::uint64_t segment_id_[2];
  const std::uint32_t slot_bytes_;
  const std::uint32_t slot_count_;
  const std::uint32_t words_;
  std::uint64_t next_;
  std::uint32_t lapped_in_a_row_ = 0;
  CutPoints cut_points_;
};

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_RING_READER_H_
