// What may be believed about bytes that some other process wrote. Pure functions over copies: no reads beyond what they are
// given, no allocation but for the sentences of Describe..., no failure. C++17.
#ifndef LOSSGAUGE_RING_RING_VALIDATE_H_
#define LOSSGAUGE_RING_RING_VALIDATE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::ring {

// Text of a fixed-size field: up to its NUL, or the whole field when a producer forgot the NUL.
inline std::string_view FieldText(const char* field_untrusted, std::size_t field_bytes) {
  const void* end = std::memchr(field_untrusted, 0, field_bytes);
  return {field_untrusted,
          end == nullptr ? field_bytes : static_cast<std::size_t>(static_cast<const char*>(end) - field_untrusted)};
}

enum class HeaderState {
  kValid,
  kNoContent,       // file of 0 bytes: the producer has not reserved its space yet; look again later
  kNotReady,        // reserved but not published; look again later
  kTooShort,        // smaller than a header
  kBadMagic,        // not a lossgauge ring
  kOtherByteOrder,  // written on a machine of the other byte order
  kOtherMajor,      // incompatible layout
  kUnknownKind,     // neither steps nor events
  kBadSizes,        // sizes out of bounds or contradictory
  kTruncated,       // file smaller than its header announces
};

inline const char* HeaderStateName(HeaderState state) {
  switch (state) {
    case HeaderState::kValid:
      return "valid";
    case HeaderState::kNoContent:
      return "no_content";
    case HeaderState::kNotReady:
      return "not_ready";
    case HeaderState::kTooShort:
      return "too_short";
    case HeaderState::kBadMagic:
      return "bad_magic";
    case HeaderState::kOtherByteOrder:
      return "other_byte_order";
    case HeaderState::kOtherMajor:
      return "other_major";
    case HeaderState::kUnknownKind:
      return "unknown_kind";
    case HeaderState::kBadSizes:
      return "bad_sizes";
    case HeaderState::kTruncated:
      return "truncated";
  }
  return "?";
}

// The producer may still be at work on the file: not an error, look again later.
inline bool IsPending(HeaderState state) { return state == HeaderState::kNoContent || state == HeaderState::kNotReady; }

constexpr std::uint32_t MinSlotBytes(std::uint32_t kind) {  // of minor 0: later minors only append
  return kind == LG_RING_KIND_STEPS ? LG_STEP_SLOT_BYTES : LG_EVENT_SLOT_BYTES;
}

// Judges a header. `ready` must have been loaded (acquire) before `identity` was copied. Both may be zeros when file_bytes is
// smaller than a header.
inline HeaderState ValidateHeader(std::uint64_t file_bytes, std::uint64_t ready_untrusted,
                                  const lg_ring_identity& identity_untrusted) {
  const lg_ring_identity& id = identity_untrusted;
  if (file_bytes == 0) return HeaderState::kNoContent;
  if (file_bytes < LG_RING_HEADER_BYTES) return HeaderState::kTooShort;
  // A foreign file is told from one that is not ready by its first word: ours are zero until they are filled in.
  if (id.magic == __builtin_bswap64(LG_RING_MAGIC)) return HeaderState::kOtherByteOrder;
  if (id.magic != LG_RING_MAGIC && !(id.magic == 0 && ready_untrusted == 0)) return HeaderState::kBadMagic;
  if (ready_untrusted == 0) return HeaderState::kNotReady;
  if (id.byte_order == __builtin_bswap32(LG_RING_BYTE_ORDER)) return HeaderState::kOtherByteOrder;
  if (id.abi_major != LG_RING_ABI_MAJOR) return HeaderState::kOtherMajor;
  if (ready_untrusted != LG_RING_READY || id.byte_order != LG_RING_BYTE_ORDER) return HeaderState::kBadMagic;
  if (id.kind != LG_RING_KIND_STEPS && id.kind != LG_RING_KIND_EVENTS) return HeaderState::kUnknownKind;
  if (id.header_bytes < LG_RING_HEADER_BYTES || id.header_bytes > LG_MAX_HEADER_BYTES || id.header_bytes % 64 != 0 ||
      id.slot_bytes < MinSlotBytes(id.kind) || id.slot_bytes > LG_MAX_SLOT_BYTES || id.slot_bytes % 8 != 0 ||
      id.slot_count < 1 || id.slot_count > LG_MAX_SLOT_COUNT || id.record_words != id.slot_bytes / 8) {
    return HeaderState::kBadSizes;
  }
  const std::uint64_t announced = id.header_bytes + std::uint64_t{id.slot_bytes} * id.slot_count;  // below 2^29: no overflow
  return announced > file_bytes ? HeaderState::kTruncated : HeaderState::kValid;
}

// One sentence for a log line or a dump: what is wrong, what was expected, what was got.
inline std::string DescribeHeader(HeaderState state, std::uint64_t file_bytes, const lg_ring_identity& identity_untrusted) {
  const lg_ring_identity& id = identity_untrusted;
  const auto text = [](std::uint64_t value) { return std::to_string(value); };
  switch (state) {
    case HeaderState::kValid:
      return "valid ring, ABI " + text(id.abi_major) + "." + text(id.abi_minor);
    case HeaderState::kNoContent:
      return "the file is empty: its producer has not reserved space yet";
    case HeaderState::kNotReady:
      return "the header is not ready: its producer is still writing it, or was killed while it did";
    case HeaderState::kTooShort:
      return "the file has " + text(file_bytes) + " bytes, less than a header of " + text(LG_RING_HEADER_BYTES);
    case HeaderState::kBadMagic:
      return "not a lossgauge ring: the file does not begin with LGLRING1 and a ready header";
    case HeaderState::kOtherByteOrder:
      return "the ring was written on a machine of the other byte order";
    case HeaderState::kOtherMajor:
      return "the ring has ABI " + text(id.abi_major) + "." + text(id.abi_minor) + ", this reader knows ABI " +
             text(LG_RING_ABI_MAJOR) + "." + text(LG_RING_ABI_MINOR) +
             ": use a library and a sidecar of the same major version";
    case HeaderState::kUnknownKind:
      return "the ring's kind is " + text(id.kind) + ", known are 1 (steps) and 2 (events)";
    case HeaderState::kBadSizes:
      return "sizes out of bounds: header_bytes " + text(id.header_bytes) + ", slot_bytes " + text(id.slot_bytes) +
             ", slot_count " + text(id.slot_count) + ", record_words " + text(id.record_words);
    case HeaderState::kTruncated:
      return "the file has " + text(file_bytes) + " bytes, its header announces " +
             text(id.header_bytes + std::uint64_t{id.slot_bytes} * id.slot_count);
  }
  return "unknown state";
}

enum class RecordState {
  kValid,
  kBadStep,    // negative, or beyond 2^53
  kBadBlock,   // not below LG_BLOCK_COUNT
  kBadCounts,  // finite > unmasked, unmasked > tokens, ...
  kBadEvent,   // unknown kind, or a text longer than any text
};

inline const char* RecordStateName(RecordState state) {
  switch (state) {
    case RecordState::kValid:
      return "valid";
    case RecordState::kBadStep:
      return "bad_step";
    case RecordState::kBadBlock:
      return "bad_block";
    case RecordState::kBadCounts:
      return "bad_counts";
    case RecordState::kBadEvent:
      return "bad_event";
  }
  return "?";
}

constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;  // exact in a double, and so in every metric and plot

// Judges the meaning of a record whose checksum was right. Doubles may be anything: a NaN is a finding, not a fault of the
// ring.
inline RecordState ValidateRecord(const lg_step_record& record_untrusted) {
  const lg_step_record& r = record_untrusted;
  if (r.step < 0 || r.step > kMaxStep) return RecordState::kBadStep;
  if (r.block >= LG_BLOCK_COUNT) return RecordState::kBadBlock;
  if (r.finite_tokens > r.unmasked_tokens || r.unmasked_tokens > r.tokens || r.nonfinite_rows > r.unmasked_tokens ||
      r.total_finite_tokens > r.total_unmasked_tokens || r.total_unmasked_tokens > r.total_tokens) {
    return RecordState::kBadCounts;
  }
  return RecordState::kValid;
}

// Event kinds beyond those known here are legal: a newer minor may add some, and a reader that does not know them skips them.
inline RecordState ValidateRecord(const lg_event_record& record_untrusted) {
  const lg_event_record& r = record_untrusted;
  if (r.step < -1 || r.step > kMaxStep) return RecordState::kBadStep;
  if (r.kind == 0 || r.text_bytes > (std::uint64_t{1} << 31)) return RecordState::kBadEvent;
  return RecordState::kValid;
}

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_RING_VALIDATE_H_
