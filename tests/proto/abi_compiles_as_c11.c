/* The ABI's headers in plain C: what other languages' bindings and tools rely on. */
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_abi.h"

uint64_t lg_test_checksum(const uint64_t segment_id[2], const uint64_t* record);
uint64_t lg_test_checksum(const uint64_t segment_id[2], const uint64_t* record) {
  return lg_ring_checksum(segment_id, record, LG_STEP_SLOT_BYTES / 8);
}

double lg_test_sum(double a, double b);
double lg_test_sum(double a, double b) {
  const lg_fixed128 sum = lg_fixed128_subtract(lg_fixed128_from_double(a), lg_fixed128_negate(lg_fixed128_from_double(b)));
  return lg_fixed128_compare(sum, lg_fixed128_from_int64(0)) == 0 ? 0.0 : lg_fixed128_to_double(sum);
}
