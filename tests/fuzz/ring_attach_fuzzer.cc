// A whole ring file of arbitrary bytes, attached and drained: no crash, no read beyond the file, no endless drain.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "proto/lossgauge/ring/ring_reader.h"

namespace {

template <class Record>
void Drain(const void* mapped, const lg_ring_identity& identity, std::uint64_t next) {
  lossgauge::ring::RingReader<Record> reader(mapped, identity, next);
  Record record;
  std::uint64_t calls = 0;
  int unsettled = 0;
  for (;;) {
    using lossgauge::ring::ReadFate;
    const ReadFate fate = reader.Next(&record).fate;
    if (fate == ReadFate::kEmpty || fate == ReadFate::kDamaged) break;
    if (fate == ReadFate::kUnsettled) {
      if (++unsettled > 3) std::abort();
      continue;
    }
    unsettled = 0;
    if (++calls > 2 * std::uint64_t{identity.slot_count} + 2) std::abort();  // bytes at rest: one lap at most
    if (fate == ReadFate::kRecord) (void)lossgauge::ring::ValidateRecord(record);
  }
  (void)reader.HasTornRecord();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Pages of a mapping are aligned; the tail that is no whole word is no part of any record.
  std::vector<std::uint64_t> words(size / 8);
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * 8);
  lg_ring_identity identity;
  if (lossgauge::ring::ReadHeader(words.data(), words.size() * 8, &identity) != lossgauge::ring::HeaderState::kValid) return 0;
  // The reader's cursor comes from a database: it may be anything too.
  for (const std::uint64_t next : {std::uint64_t{1}, identity.segment_id[0] % 64, ~std::uint64_t{0}}) {
    if (identity.kind == LG_RING_KIND_STEPS) {
      Drain<lg_step_record>(words.data(), identity, next);
    } else {
      Drain<lg_event_record>(words.data(), identity, next);
    }
  }
  return 0;
}
