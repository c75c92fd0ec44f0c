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

constexpr std::uint64_t kMaxPublication = std::uint64_t{1} << 62;

// Whether a sequence word may stand in the slot where publication n belongs.
inline bool IsPublicationOfSlot(std::uint64_t sequence, std::uint64_t n, std::uint32_t slot_count) {
  if (sequence == 0 || sequence > 2 * kMaxPublication) return false;
  return (sequence + 1) / 2 % slot_count == n % slot_count;
}

// How far what can be seen of a publication may be ahead of the cursor that can be seen: a GPU stores the cursor one late and without a fence of its
// own, and several publications may be one kernel's.
constexpr std::uint64_t kMostAheadOfCursor = 3;

// How far a writer has come: by its cursor, and by what stands in the slots after it. Untrusted.
struct Progress {
  std::uint64_t whole;  // newest publication that is finished
  std::uint64_t begun;  // newest one that is begun: its slot has lost what it held
};
inline Progress ReadProgress(std::uint64_t cursor, const unsigned char* slots, std::uint32_t slot_bytes, std::uint32_t slot_count) {
  Progress progress{cursor, cursor};
  if (cursor > kMaxPublication) return progress;
  for (std::uint64_t n = cursor + 1; n <= cursor + kMostAheadOfCursor; ++n) {
    const std::uint64_t sequence = LoadAcquire(reinterpret_cast<const std::uint64_t*>(slots + (n - 1) % slot_count * slot_bytes));
    if (!IsPublicationOfSlot(sequence, n, slot_count)) continue;
    if (sequence >= 2 * n) progress.whole = n;
    if (sequence >= 2 * n - 1) progress.begun = n;
  }
  return progress;
}
// `identity`: a copy that ReadHeader judged kValid.
inline Progress ReadProgress(const void* mapped, const lg_ring_identity& identity) {
  const std::uint64_t cursor = LoadAcquire(&static_cast<const lg_ring_header*>(mapped)->cursor);
  return ReadProgress(cursor, static_cast<const unsigned char*>(mapped) + identity.header_bytes, identity.slot_bytes, identity.slot_count);
}

enum class ReadFate {
  kRecord,     // delivered
  kEmpty,      // nothing new
  kUnsettled,  // the next copy fails its checksum, and its writer may be overwriting it just now. Nothing was consumed: call again, better later than
               // at once. After a few such calls it is counted, whatever the writer does
  kLapped,     // `lost` publications were overwritten before they were read; call again
  kCorrupt,    // one publication does not validate (`lost` is 1) and was skipped; call again
  kDamaged,    // cursor and slots contradict each other: no writer of ours did that. Nothing was consumed; stop reading this ring
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
    if (Look(n, slot, record, &result)) return result;
    // No writer stores n into the cursor before the even sequence word can be seen: then the slot must hold n or something newer.
    const std::uint64_t cursor = LoadAcquire(&header_->cursor);
    if (cursor < n) return {ReadFate::kEmpty, n, 0};
    if (Look(n, slot, record, &result)) return result;
    const std::uint64_t sequence = LoadAcquire(&slot[0]);
    // Trust the cursor only as far as its own slot bears it out.
    const std::uint64_t newest = LoadAcquire(&Slot(cursor)[0]);
    if (cursor > kMaxPublication || !IsPublicationOfSlot(newest, cursor, slot_count_) || newest < 2 * cursor) {
      return {ReadFate::kDamaged, n, 0};
    }
    // So far behind that the slot cannot hold n any more, whatever it says: at most one ring of skips can follow.
    if (cursor - n < slot_count_ && (sequence <= 2 * n || !IsPublicationOfSlot(sequence, n, slot_count_))) return Skip(n);
    // A publication that is begun has taken its slot already, whether or not the cursor tells of it.
    return Lapped(n, ReadProgress(cursor, slots_, slot_bytes_, slot_count_).begun);
  }

  // The publication that Next() would look at: what a cursor in a database has to keep.
  std::uint64_t next() const { return next_; }
  // Publications that the producer has finished, by its own account. Untrusted.
  std::uint64_t published_untrusted() const { return ReadProgress(LoadAcquire(&header_->cursor), slots_, slot_bytes_, slot_count_).whole; }
  // The next publication was begun and is not whole. If the producer is dead, it never will be: count it as torn.
  bool HasTornRecord() const { return LoadAcquire(&Slot(next_)[0]) == 2 * next_ - 1; }

 private:
  // A copy that fails its checksum although its sequence word stood still: a GPU may be overwriting the slot, and its words be seen before the odd
  // one (ring_abi.h), which follows within microseconds. So many looks to a call, and so many calls, before it is taken for damage.
  static constexpr int kLooksOfACall = 64, kUnsettledCalls = 3;

  const std::uint64_t* Slot(std::uint64_t publication) const {
    return reinterpret_cast<const std::uint64_t*>(slots_ + (publication - 1) % slot_count_ * slot_bytes_);
  }

  enum class Copied { kNot, kMixed, kWhole };

  // Delivers publication n, or says what became of it. False: the slot does not hold it (any more).
  bool Look(std::uint64_t n, const std::uint64_t* slot, Record* record, ReadResult* result) {
    for (int looks = 1;; ++looks) {
      switch (Copy(n, slot, record)) {
        case Copied::kNot: return false;
        case Copied::kWhole:
          lapped_in_a_row_ = 0;
          unsettled_ = 0;
          next_ = n + 1;
          *result = {ReadFate::kRecord, n, 0};
          return true;
        case Copied::kMixed:
          if (!MayBeOverwritten(n) || (looks == kLooksOfACall && unsettled_ == kUnsettledCalls)) {
            *result = Skip(n);
            return true;
          }
          if (looks < kLooksOfACall) break;
          ++unsettled_;
          *result = {ReadFate::kUnsettled, n, 0};
          return true;
      }
    }
  }

  // Whether the publication that takes the slot after n can have been begun, as far as can be seen.
  bool MayBeOverwritten(std::uint64_t n) const {
    const std::uint64_t cursor = LoadAcquire(&header_->cursor);
    return cursor >= n ? cursor - n + kMostAheadOfCursor >= slot_count_ : n - cursor + slot_count_ <= kMostAheadOfCursor;
  }

  Copied Copy(std::uint64_t n, const std::uint64_t* slot, Record* record) {
    if (LoadAcquire(&slot[0]) != 2 * n) return Copied::kNot;  // equal: makes the payload of n visible
    cut_points_();
    std::uint64_t words[LG_MAX_SLOT_BYTES / 8];
    words[0] = 2 * n;
    // Acquire on each word: seeing a word of a later publication makes its odd sequence word visible to the look below, if a host wrote it.
    for (std::uint32_t i = 1; i < words_; ++i) {
      words[i] = LoadAcquire(&slot[i]);
      cut_points_();
    }
    if (LoadRelaxed(&slot[0]) != 2 * n) return Copied::kNot;
    cut_points_();
    if (words[words_ - 1] != lg_ring_checksum(segment_id_, words, words_)) return Copied::kMixed;
    constexpr std::uint32_t kKnownWords = sizeof(Record) / 8;
    const std::uint32_t payload_end = (words_ < kKnownWords ? words_ : kKnownWords) - 1;  // the last word is the checksum
    std::memset(record, 0, sizeof *record);
    std::memcpy(record, words, payload_end * sizeof(std::uint64_t));
    record->checksum = words[words_ - 1];
    return Copied::kWhole;
  }

  ReadResult Skip(std::uint64_t n) {
    unsettled_ = 0;
    next_ = n + 1;
    return {ReadFate::kCorrupt, n, 1};
  }

  // Publication n is gone. Goes on at the oldest one that the ring still holds; when that one was overtaken too, the writer is
  // at our heels: half a ring of head start lets us deliver a run of records instead of losing a race for each.
  ReadResult Lapped(std::uint64_t n, std::uint64_t begun) {
    const std::uint64_t kept = lapped_in_a_row_ == 0 ? slot_count_ : (slot_count_ + 1) / 2;
    std::uint64_t target = begun >= kept ? begun - kept + 1 : 1;
    if (target <= n) target = n + 1;
    ++lapped_in_a_row_;
    unsettled_ = 0;
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
  int unsettled_ = 0;  // calls in a row that could not settle publication next_
  CutPoints cut_points_;
};

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_RING_READER_H_
